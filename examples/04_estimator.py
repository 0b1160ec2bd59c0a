"""A classifier for scikit-learn: ask it why, ask it whether it knows such inputs, make it forget."""

# needs: sklearn

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from torchpfc.sklearn import PFCClassifier

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, stratify=y, random_state=0)

model = PFCClassifier(random_state=0).fit(X, y)
print(f"{model.score(X_test, y_test):.1%} of the test digits are right.\n")
print(model.explain(X_test[:1]))

noise = np.random.default_rng(0).permuted(X_test, axis=1)  # the same pixels, in disorder
like, unlike = (np.median(model.recognition_score(inputs)) for inputs in (X_test, noise))
print(f"\nRecognition: {like:.2f} for test digits, {unlike:.3f} for the same pixels in disorder.")

staged = PFCClassifier(random_state=0)
for label in range(10):  # one class after another, none of them twice
    staged.partial_fit(X[y == label], y[y == label], classes=range(10), batch_id=label)
print(f"\nOne class after another: {staged.score(X_test, y_test):.1%}.")

certificate = staged.forget(3)
right = staged.predict(X_test) == y_test
print(
    f"After forgetting the threes ({certificate.num_columns} parts): {right[y_test == 3].mean():.1%} of these, ", end=""
)
print(f"{right[y_test != 3].mean():.1%} of the others.")
