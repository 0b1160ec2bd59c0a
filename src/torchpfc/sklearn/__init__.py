"""Estimators for scikit-learn that say why: a classifier, a regressor and a factorization; and what to compare with.

Needs scikit-learn and safetensors: `pip install "torchpfc[sklearn]"`.
"""

try:
    import sklearn  # noqa: F401  a missing package is named here, with what to do
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'torchpfc.sklearn needs scikit-learn ({error}): pip install "torchpfc[sklearn]"'
    ) from None

from torchpfc.sklearn.baselines import NearestMeanClassifier, RandomFeaturesClassifier, StreamingLDAClassifier
from torchpfc.sklearn.classifier import PFCClassifier
from torchpfc.sklearn.regressor import PFCRegressor
from torchpfc.sklearn.transformer import PFCTransformer

__all__ = [
    "NearestMeanClassifier",
    "PFCClassifier",
    "PFCRegressor",
    "PFCTransformer",
    "RandomFeaturesClassifier",
    "StreamingLDAClassifier",
]
