"""What to compare with: classifiers from running sums, which learn in stages without forgetting, too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from torchpfc.running_sums import FourierRidge, NearestMean, RunningSums, StreamingLDA
from torchpfc.sklearn.rows import Array


class SumsClassifier(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """A classifier from running sums: no example is kept, and the order of the batches hardly matters."""

    classes_: Array
    sums_: RunningSums
    n_features_in_: int
    _arrived: Array
    """The classes in the order in which they came, which is that of the sums."""

    @abstractmethod
    def _new_sums(self) -> RunningSums:
        """Sums over nothing."""

    def fit(self, X: Any, y: Any) -> Self:
        """Learns from all examples at once.

        Args:
            X: Inputs, of shape (n, n_features).
            y: Their classes.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        if len(classes := np.unique(column_or_1d(y, warn=True))) < 2:
            raise ValueError(f"y must hold at least two classes, got {len(classes)} class")
        return self._learn(X, y, classes, first=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learns from one batch.

        Args:
            X: Inputs, of shape (n, n_features).
            y: Their classes; new ones may come with any batch.
            classes: Those that are sure to come; need not be given.
        """
        first = not hasattr(self, "sums_")
        X, y = validate_data(self, X, y, dtype=np.float64, reset=first)
        return self._learn(X, y, y if classes is None else np.union1d(y, classes), first=first)

    def _learn(self, X: Array, y: Any, classes: Array, *, first: bool) -> Self:
        y = column_or_1d(y)
        check_classification_targets(y)
        arrived = np.unique(classes) if first else np.append(self._arrived, np.setdiff1d(classes, self._arrived))
        sums = self._new_sums() if first else self.sums_
        sums.make_room(len(arrived))
        order = arrived.argsort()
        label = order[np.searchsorted(arrived, y, sorter=order)]
        sums.learn(torch.tensor(X), torch.tensor(label))
        self.sums_, self._arrived, self.classes_ = sums, arrived, arrived[order]
        return self

    def decision_function(self, X: Any) -> Array:
        """The scores of the classes.

        Args:
            X: Inputs, of shape (n, n_features_in_).

        Returns:
            An array of shape (n, n_classes); with two classes, how much the score of the second exceeds that of the
            first, of shape (n,).
        """
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> Array:
        """The class with the highest score.

        Args:
            X: Inputs, of shape (n, n_features_in_).
        """
        found: Array = self._scores(X).argmax(1)
        labels: Array = self.classes_[found]
        return labels

    def _scores(self, X: Any) -> Array:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        scores: Array = self.sums_.scores(torch.tensor(X)).numpy()
        return scores[:, self._arrived.argsort()]


class NearestMeanClassifier(SumsClassifier):
    """Chooses the class whose mean is closest.

    scikit-learn's `NearestCentroid`, in stages.

    Example:
        >>> model = NearestMeanClassifier().partial_fit([[0.0], [1.0]], ["low", "low"])
        >>> model.partial_fit([[9.0]], ["high"]).predict([[2.0], [7.0]]).tolist()
        ['low', 'high']
    """

    def _new_sums(self) -> RunningSums:
        return NearestMean(self.n_features_in_)


@dataclass(eq=False, repr=False)
class StreamingLDAClassifier(SumsClassifier):
    r"""Linear discriminant analysis from running sums: a mean for each class, and one covariance for all.

    All classes count the same, however often they come.

    Args:
        shrinkage: Share of the identity in the covariance, from 0 to 1. Inputs should have a variance of about 1 or
            less; where they are all small, so should this be.
    """

    shrinkage: float = 1e-4

    def _new_sums(self) -> RunningSums:
        return StreamingLDA(self.n_features_in_, shrinkage=self.shrinkage)


@dataclass(eq=False, repr=False)
class RandomFeaturesClassifier(SumsClassifier):
    """Ridge regression to one-hot targets on random Fourier features, from running sums.

    Comes close to ridge regression with a normal kernel as features grow in number, and keeps $D^2$ numbers for D of
    them. The width of the kernel is decided by the first batch, and by it alone.

    Args:
        n_features: How many random features there are.
        bandwidth: Width of the kernel, in median distances between examples of the first batch.
        ridge: Penalty of the regression.
        random_state: Seed of the features.
    """

    n_features: int = 1000
    bandwidth: float = 0.5
    ridge: float = 0.1
    random_state: Any = None

    def _new_sums(self) -> RunningSums:
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        return FourierRidge(
            self.n_features_in_,
            num_features=self.n_features,
            bandwidth=self.bandwidth,
            ridge=self.ridge,
            generator=torch.Generator().manual_seed(int(seed)),
        )
