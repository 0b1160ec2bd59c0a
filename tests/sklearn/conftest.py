import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from torchpfc.sklearn import PFCClassifier


@pytest.fixture(scope="session")
def digits():
    """Digits to learn from, and digits to ask about."""
    X, y = load_digits(return_X_y=True)
    return train_test_split(X, y, test_size=0.25, stratify=y, random_state=0)


@pytest.fixture(scope="session")
def fitted(digits):
    """A classifier that knows the digits; whoever changes it changes a copy."""
    X, _, y, _ = digits
    return PFCClassifier(random_state=0).fit(X, y)


@pytest.fixture(scope="session")
def by_class(digits):
    """A classifier that was shown one class after another, each once."""
    X, _, y, _ = digits
    model = PFCClassifier(random_state=0)
    for label in range(10):
        model.partial_fit(X[y == label], y[y == label], classes=np.arange(10), batch_id=100 + label)
    return model
