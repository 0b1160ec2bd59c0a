"""Non-negative matrix factorization as a transformer, also of data with gaps."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from torchpfc.continual.certificate import content_of
from torchpfc.continual.scaling import Moments, Sketch
from torchpfc.nmf import factorize
from torchpfc.nmf.normalization import unit_columns
from torchpfc.sklearn.rows import Array, InputScale, hold_out, sketched
from torchpfc.sklearn.staged import StagedPFC, TaughtNumbers
from torchpfc.solvers import ConvergenceWarning as SolverWarning
from torchpfc.solvers import nnls

_MOST_STEPS = 1000


@dataclass(eq=False, repr=False)
class PFCTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, StagedPFC):  # type: ignore[misc]
    r"""Finds parts such that every input is close to a sum of them, $X \approx H W^\top$, and gives the amounts H.

    Takes the place of `sklearn.decomposition.NMF` with its squared error. Entries that are missing, as NaN, are left
    out of the sum that is minimized.

    Args:
        n_components: How many parts; as many as there are features with `"auto"` or None.
        init: Where to start: None or `"random"` for random numbers, `"custom"` for the W and H that `fit_transform` is
            given.
        nonnegative: Whether parts are non-negative (NMF) or free (semi-NMF), for data with negative entries. Amounts
            are never negative.
        scale: `"common"` minimizes the error in the units of the data; `"features"` brings each feature to a scale of
            its own first, and around its median where parts may be negative; None takes all as they are, also in what
            `l1` means; `"auto"` is the second unless features look like pixels or counts, as in `PFCClassifier`.
        l1: Weight of the amounts in what is minimized, for inputs scaled to a size of 1 and parts of norm 1; makes
            codes sparse.
        tol: Stop once the objective falls by less than this, relatively, per iteration, or the parts leave less than
            this of the norm of the data.
        max_iter: Iterations at most.
        validation_fraction: Rows that the parts are not learned from, for `recognition_score`. 0 learns from all rows,
            as `NMF` does, and `recognition_score` then compares with those.
        parts_per_batch: How many parts each call of `partial_fit` adds; `"auto"` is `n_components`.
        device: Where to compute, such as `"cuda"`; the CPU by default.
        random_state: Seed of everything random.
        verbose: Whether to print progress.

    Attributes:
        components_: The parts, of shape (n_components_, n_features_in_).
        reconstruction_err_: The norm of what the parts leave of the data of `fit`, as far as they are observed.
        n_iter_: Iterations that `fit` made, or batches that `partial_fit` was given and that are not forgotten.
        ledger_: Which batch wrote which parts.

    Example:
        >>> X = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 2.0], [2.0, np.nan, 4.0]])
        >>> model = PFCTransformer(2, tol=0, max_iter=500, random_state=0)
        >>> H = model.fit_transform(X)
        >>> bool(np.allclose(model.inverse_transform(H), [[1, 1, 0], [0, 0, 2], [2, 2, 4]], atol=0.01))
        True
    """

    n_components: int | str | None = "auto"
    _: KW_ONLY
    init: str | None = None
    nonnegative: bool = True
    scale: str | None = "common"
    l1: float = 0.0
    tol: float = 1e-4
    max_iter: int = 200
    validation_fraction: float = 0.0
    parts_per_batch: int | str = "auto"
    device: str | torch.device | None = None
    random_state: Any = None
    verbose: int = 0
    reconstruction_err_: float = field(init=False)

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn should know."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Learns parts from all examples at once.

        Args:
            X: Inputs, of shape (n, n_features), NaN where they are not observed.
            y: Not used.
            params: As for `fit_transform`.
        """
        self.fit_transform(X, y, **params)
        return self

    def fit_transform(self, X: Any, y: Any = None, W: Any = None, H: Any = None) -> Array:
        """Learns parts from all examples at once, and gives the amounts of each in every example.

        Args:
            X: Inputs, of shape (n, n_features), NaN where they are not observed.
            y: Not used.
            W: Amounts to start from with `init="custom"`, of shape (n, n_components); the name is that of `NMF`.
            H: Parts to start from with `init="custom"`, of shape (n_components, n_features).

        Returns:
            The amounts, of shape (n, n_components).
        """
        self._check_params()
        X = self._checked(X, reset=True)
        start = self._start(X, W, H)
        self._forget_batches()
        generator = self._generator()
        self._begin(X)
        rows = self._rows(X, torch.ones(len(X), 1), np.ones(len(X)))
        train, kept = hold_out(rows, None, self.validation_fraction if start is None else 0.0, generator)
        if start is not None:
            W_start = torch.tensor(start[1], dtype=rows.x.dtype, device=rows.x.device).mT / self.scale_.size
            start = W_start, torch.tensor(start[0], dtype=rows.x.dtype, device=rows.x.device)
        weight, self.n_iter_ = self._factorize(train.x, self._count(X, start), start, generator)
        if self.n_iter_ == self.max_iter and self.tol > 0:
            warnings.warn(
                f"Maximum number of iterations {self.max_iter} reached. Increase it to improve convergence.",
                ConvergenceWarning,
                stacklevel=2,
            )
        outputs = weight.new_zeros(1, weight.shape[1])
        self._begin_with(self._new_block(weight, outputs, nonnegative=self.nonnegative))
        self._keep_held_out(kept, generator)
        h, _, reconstruction = self._answer(rows.x)
        rest = (rows.x - reconstruction).nan_to_num(nan=0.0)
        self.reconstruction_err_ = float(rest.norm()) * self.scale_.size
        return self._numpy(h)

    def partial_fit(self, X: Any, y: Any = None, batch_id: Hashable = None) -> Self:
        """Learns from one batch, and leaves what was learned before as it is: each call adds parts of its own.

        What a batch leaves depends on it alone, and scales are computed from what all batches left: `forget` gives the
        model that never saw one of them, bit for bit. A call that fails changes nothing. After `fit`, the first call
        begins anew, with a warning.

        Args:
            X: Inputs, of shape (n, n_features), NaN where they are not observed.
            y: Not used.
            batch_id: The name under which `forget` knows this batch, anything that can be a key of a dict; a free
                number by default.
        """
        self._check_params()
        with self._unchanged_by_errors():
            X = self._checked(X, reset=not hasattr(self, "_taught"))
            self._lowest(X)
            self._teach(X, X[:, :0], np.ones(len(X)), batch_id, content_of(X, None, None))
            self.__dict__.pop("reconstruction_err_", None)
        return self

    def transform(self, X: Any) -> Array:
        """How much of each part every input contains.

        Args:
            X: Inputs, of shape (n, n_features_in_), NaN where they are not observed.

        Returns:
            The amounts, of shape (n, n_components_).
        """
        return self.codes(X)

    def inverse_transform(self, X: Any) -> Array:
        """Inputs from amounts.

        Args:
            X: Amounts, of shape (n, n_components_).
        """
        check_is_fitted(self)
        amounts = np.asarray(X)
        if amounts.ndim != 2 or amounts.shape[1] != self.block_.num_basis:
            raise ValueError(f"X must have shape (n, {self.block_.num_basis}), got {amounts.shape}")
        inputs: Array = amounts @ self.components_
        return inputs

    @property
    def _n_features_out(self) -> int:
        return self.block_.num_basis

    # Inside

    def _given(self, X: Any) -> Tensor:
        given = super()._given(X)
        self._check_sign(given)
        return given

    def _decoded(self, rows: Tensor) -> Tensor:
        return super()._decoded(rows).to(rows.dtype)

    def _answer(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self._solve(x)
        return h, h.new_zeros(len(h), 1), h @ self.block_.weight_x.detach().mT

    @torch.no_grad()
    def _solve(self, x: Tensor) -> Tensor:
        """Amounts to a tolerance, whatever is missing."""
        filled, mask = _filled(x)
        tol = 1e-5 if x.dtype == torch.float32 else 1e-8
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SolverWarning)  # parts that are nearly the same: amounts hardly matter
            solution = nnls(
                filled,
                self.block_.weight_x.detach(),
                l1=float(self.l1),
                mask=mask,
                tol=tol,
                max_iter=_MOST_STEPS,
            )
        return solution.h

    def _begin(self, X: Array) -> None:
        scale, _ = self._look(sketched(X), self._lowest(X))
        self.scale_ = InputScale(1.0, False)
        if self.scale is not None:
            self.scale_ = InputScale.of(X, np.ones(len(X)), constant=False, scale=scale)

    def _parts_of_batch(
        self, rows: Tensor, weight: Tensor, sketch: Sketch, moments: Moments, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        scale, _ = self._scale_by(sketch, moments, self.n_features_in_)
        count = rows.shape[1] if self.parts_per_batch == "auto" else int(self.parts_per_batch)
        if self.parts_per_batch == "auto" and self.n_components not in (None, "auto"):
            count = int(self.n_components)
        W, _ = self._factorize(scale.encode(rows.to(self._device())), count, None, generator)
        parts = W if scale.spread is None else W * scale.spread.nan_to_num(posinf=0.0).to(W).unsqueeze(1)
        return parts, weight.sum().expand(count) / count

    def _weights(self, sketch: Sketch, moments: Moments) -> tuple[Tensor, Tensor, bool]:
        self.scale_, nonnegative = self._scale_by(sketch, moments, self.n_features_in_)
        W, spread = self._taught.parts, self.scale_.spread
        W_x = unit_columns(W if spread is None else W / spread.unsqueeze(1)).to(W).to(self._device())
        return W_x, W_x.new_zeros(1, W_x.shape[1]), nonnegative

    def _targets(self, raw: Array) -> Tensor:
        return torch.ones(len(raw), 1)

    def _new_taught(self) -> TaughtNumbers:
        return TaughtNumbers(self.n_features_in_)

    def _factorize(
        self, x: Tensor, count: int, start: tuple[Tensor, Tensor] | None, generator: torch.Generator
    ) -> tuple[Tensor, int]:
        filled, mask = _filled(x)
        exact = 0.5 * float(self.tol) ** 2 * float(filled.double().square().sum())

        def watch(iteration: int, objective: float) -> bool:
            if iteration % 10 == 0:
                self._say(f"iteration {iteration}: objective {objective:.6g}")
            return objective < exact

        found = factorize(
            filled,
            count,
            mask=mask,
            l1=float(self.l1),
            nonnegative=bool(self.nonnegative),
            init=start,
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            generator=generator,
            callback=watch,
            progress=False,
        )
        return found.W, len(found.history.objective)

    def _count(self, X: Array, start: tuple[Tensor, Tensor] | None) -> int:
        if start is not None:
            return start[0].shape[1]
        return X.shape[1] if self.n_components in (None, "auto") else int(self.n_components)

    def _start(self, X: Array, W: Any, H: Any) -> tuple[Any, Any] | None:
        """Amounts and parts to start from, checked."""
        if self.init != "custom":
            if W is not None or H is not None:
                warnings.warn(
                    "W and H are used with init='custom' only, and ignored with another", RuntimeWarning, stacklevel=3
                )
            return None
        if W is None or H is None:
            raise ValueError("W and H must both be given with init='custom', got " + ("no W" if W is None else "no H"))
        W, H = np.asarray(W), np.asarray(H)
        count = H.shape[0] if self.n_components in (None, "auto") and H.ndim == 2 else self.n_components
        for name, given, shape in (("W", W, (len(X), count)), ("H", H, (count, X.shape[1]))):
            if given.shape != shape:
                raise ValueError(f"{name} must have shape {shape}, got {given.shape}")
            if given.dtype != X.dtype:
                raise TypeError(f"H and W should have the same dtype as X: {name} must be {X.dtype}, got {given.dtype}")
        return W, H

    def _check_params(self) -> None:
        self._check_counts(*(() if self.n_components is None else ("n_components",)), "parts_per_batch")
        if self.init not in (None, "random", "custom"):
            raise ValueError(f"init must be None, 'random' or 'custom', got {self.init!r}")
        if not isinstance(self.nonnegative, bool):
            raise ValueError(f"nonnegative must be True or False, got {self.nonnegative!r}")
        self._check_numbers("max_iter", integer=True, low=1)
        self._check_numbers("l1", "tol", low=0)
        self._check_numbers("validation_fraction", low=0, high=0.5)
        self._check_scale()

    def output_names(self) -> tuple[str, ...]:
        """None: a transformer predicts nothing."""
        return ()

    def _extra_state(self) -> dict[str, Any]:
        return {"n_iter": self.n_iter_, "reconstruction_err": getattr(self, "reconstruction_err_", None)}

    def _load_extra_state(self, state: dict[str, Any]) -> None:
        self.n_iter_ = int(state["n_iter"])
        if state["reconstruction_err"] is not None:
            self.reconstruction_err_ = float(state["reconstruction_err"])


def _filled(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Inputs with zeros where they are not observed, and where they are; None for everywhere."""
    observed = ~x.isnan()
    return x.nan_to_num(nan=0.0), None if bool(observed.all()) else observed
