"""What all estimators share: a block inside, looked at, asked, made to forget, saved and loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from torchpfc.checkpoint import reading
from torchpfc.continual.certificate import COPIES, Certificate, How, hash_of
from torchpfc.continual.scaling import Scale, Sketch
from torchpfc.interpret import ColumnReport, Explanation, describe_columns
from torchpfc.interpret.recognition import Usual
from torchpfc.machine import describe_bits
from torchpfc.nn.block import PFCBlock
from torchpfc.nn.saving import block_from, block_settings
from torchpfc.optim.ledger import Ledger, whole_numbers
from torchpfc.sklearn.learning import codes, couple
from torchpfc.sklearn.rows import MOST_HELD_OUT, Array, InputScale, Rows, dense, feature_scale
from torchpfc.sklearn.saving import SAVED, load_estimator, plain_params, save_estimator
from torchpfc.sklearn.taught import Taught, as_names
from torchpfc.solvers import FISTA, FewParts, Implicit
from torchpfc.unlearning import forget

DTYPES = (np.float64, np.float32)
"""The types that inputs are computed in; all others become the first."""

LENIENT: Any = {"accept_sparse": "csr", "ensure_all_finite": "allow-nan"}
"""What inputs may be: sparse, and missing in places."""


class PFCEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """An estimator with a PFC block.

    After `fit` it has the block itself as `block_`, and as `ledger_` the record of which batch wrote which parts.
    """

    block_: PFCBlock
    ledger_: Ledger
    _taught: Taught
    """What `partial_fit` was given, batch by batch; nothing after `fit`."""
    batch_seed_: int
    """One seed for all batches: what one leaves must not depend on how many came before."""
    scale_: InputScale
    held_out_: Rows
    n_features_in_: int
    _learned_from: Usual | None = None
    """What is usual by the rows that `fit` learned from, where few were held out."""
    n_iter_: int

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn should know."""
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self.nonnegative is True
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags

    # What a concrete estimator says of itself

    @abstractmethod
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs."""

    def _affine(self) -> tuple[Tensor, Tensor]:
        """Base and scale of the outputs: what the user sees is base + scale * block."""
        like = self.block_.weight_y.detach()[:, 0].double()
        return torch.zeros_like(like), torch.ones_like(like)

    def _answer(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Codes, predictions and reconstructions of inputs as the block sees them."""
        return couple(self.block_, x)

    @abstractmethod
    def _extra_state(self) -> dict[str, Any]:
        """What else is to be saved, as plain values."""

    @abstractmethod
    def _load_extra_state(self, state: dict[str, Any]) -> None:
        """Takes over what `_extra_state` gave."""

    def _constant(self, *, signed: bool) -> bool:
        """Whether inputs get one more feature, a constant."""
        return False

    @abstractmethod
    def _new_taught(self) -> Taught:
        """What knows no batch yet."""

    @abstractmethod
    def _follow(self) -> None:
        """Computes all else from what was taught; without any batch, the estimator is one that was never fitted."""

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is a block."""
        return hasattr(self, "block_")

    # Looking at it

    @property
    def n_components_(self) -> int:
        """How many parts there are, without those that were forgotten and left as zeros."""
        weights = self.block_.weight_x.detach(), self.block_.weight_y.detach()
        return int((weights[0].any(0) | weights[1].any(0)).sum())

    @property
    def components_(self) -> Array:
        """The parts in the units of the input, of shape (n_components_, n_features_in_)."""
        return self._numpy(self._decoded(self.block_.weight_x.detach().mT))

    def codes(self, X: Any) -> Array:
        """How much of each part every input contains.

        Args:
            X: Inputs, of shape (n, n_features_in_).

        Returns:
            The amounts, of shape (n, n_components_).
        """
        return self._numpy(self._couple(X)[1])

    def encode(self, x: Tensor) -> Tensor:
        """Inputs as the block sees them.

        Args:
            x: Inputs, of shape (n, n_features_in_).
        """
        return self.scale_.encode(x).to(self.block_.weight_x.dtype)

    def reconstruct(self, X: Any) -> Array:
        """Inputs put together from parts.

        Args:
            X: Inputs, of shape (n, n_features_in_).

        Returns:
            The reconstructions, of the same shape.
        """
        return self._numpy(self.scale_.restored(self._decoded(self._couple(X)[3])))

    def explain(self, X: Any, *, features: Sequence[str] = ()) -> Explanation:
        """Takes predictions apart: which parts, how much of each, and what each adds to every output.

        Args:
            X: Inputs, of shape (n, n_features_in_).
            features: Names of the features, by which parts are called; by default those of the data frame that the
                estimator was fitted with.

        Returns:
            The sums, checked to add up, in the units of inputs and outputs; prints as tables. Where features have
            scales of their own, inputs and parts are what lies above and below the centers of these.
        """
        given, h, y, _ = (part.double() for part in self._couple(X))
        base, scale = self._affine()
        spread = self.scale_.spread
        names = self.output_names()
        shown = slice(len(names))  # a model without outputs has a block with one that says nothing
        return Explanation(
            x=self.scale_.around_center(given).cpu(),
            y=(base + scale * y)[:, shown].cpu(),
            h=h.cpu(),
            weight_x=self.scale_.decode(self.block_.weight_x.detach().mT).mT.cpu(),
            weight_y=(scale.unsqueeze(1) * self.block_.weight_y.detach().double())[shown].cpu(),
            base=base[shown].cpu(),
            outputs=names,
            classes=hasattr(self, "classes_") and not getattr(self, "multilabel_", False),
            features=tuple(map(str, features if len(features) else getattr(self, "feature_names_in_", ()))),
            units=None if spread is None else spread.cpu(),
        )

    def describe_parts(self, X: Any, y: Any = None) -> ColumnReport:
        """Says of every part how many inputs contain it, which ones most, what it predicts and who wrote it.

        Args:
            X: Inputs, of shape (n, n_features_in_).
            y: Their classes, for a classifier.
        """
        h = self._couple(X)[1].cpu()  # where it is quick to look at one number after another
        labels = None
        if y is not None:
            if not hasattr(self, "classes_"):
                raise ValueError(f"y must be None for a {type(self).__name__}, which has no classes, got one")
            labels = torch.tensor(np.searchsorted(self.classes_, np.asarray(y)))
        return describe_columns(self.block_, h, labels=labels, ledger=self.ledger_)

    def recognition_score(self, X: Any) -> Array:
        """Is this input like what was learned? The share of rows held out that are as odd as this one, or odder.

        An input is odd where the parts leave much of it, relative to its size, or where it is larger or smaller than
        others. For inputs like those of the training, each p-value is as likely as any other; one of 0.001 says that
        such an input hardly ever came up. None is below `smallest_p_value_`.

        Args:
            X: Inputs, of shape (n, n_features_in_).

        Returns:
            A p-value for each.
        """
        given, _, _, reconstruction = self._couple(X)
        return self._numpy(self._usual.p_values(self.encode(given), reconstruction))

    @property
    def smallest_p_value_(self) -> float:
        """The smallest that `recognition_score` can be: 1 over 1 more than there are rows held out."""
        return self._usual.smallest

    # Forgetting

    def forget(self, batches: Any, *, how: How = "remove") -> Certificate:
        """Removes what batches wrote: after `partial_fit`, what is left is the model that never saw them, bit for bit.

        Args:
            batches: The names of the batches, as given to `partial_fit`; one name, or several.
            how: `"remove"` makes the model smaller; `"zero"` leaves parts of zeros, so that the numbers of the others
                stay; `"reinitialize"` leaves random parts, in a model of `fit` alone.

        Returns:
            What was done, and what that does and does not guarantee; see `torchpfc verify`.
        """
        if not hasattr(self, "_taught"):
            check_is_fitted(self)
            return self._forget_learned(whole_numbers(as_names(batches), "batches"), how)
        before, dtype = hash_of(self.bits), self.block_.weight_x.dtype if hasattr(self, "block_") else torch.float32
        count, settings = len(self._taught.batches), self._announced()
        done = self._taught.forget(as_names(batches, self._taught.batches), how=how)
        self._follow()
        return self._certified(
            replace(
                done,
                learner=type(self).__name__,
                settings=None,
                obstacle="",
                machine=describe_bits(self._device(), dtype),
                sha256_before=before,
                sha256_after=hash_of(self.bits),
            ),
            settings,
            complete=len(done.learned) == count,
        )

    def _certified(self, certificate: Certificate, announced: dict[str, Any] | None, *, complete: bool) -> Certificate:
        """A certificate with the settings of this estimator, if they can be written down."""
        if not complete:
            return certificate.unrepeatable("some batches were learned without a record of their content")
        try:
            # Batches have the seed that was drawn for them, and the certificate says on what they were learned.
            params = plain_params(self.get_params(deep=False) | {"random_state": None, "device": None})
            certificate = replace(certificate, settings={"params": params, "classes": announced})
            certificate.to_dict()
        except TypeError as error:
            return certificate.unrepeatable(error)
        return certificate

    def bits(self) -> dict[str, Any]:
        """All that batches have taught, as tensors and plain values; nothing without any."""
        if not hasattr(self, "_taught") or not self._taught.batches:
            return {}
        learned = self._learned()
        return {name: learned[name] for name in learned if name not in self._about_features()}

    def _announced(self) -> dict[str, Any] | None:
        """The labels that there will ever be, where somebody said it, for JSON."""
        return None

    def _draw_batch_seed(self) -> None:
        # Once, however often all batches are forgotten: a state or a generator gives another number each time.
        if not hasattr(self, "batch_seed_"):
            self.batch_seed_ = int(self._generator().initial_seed())

    def _forget_batches(self) -> None:
        """Forgets that there ever was a `partial_fit`."""
        for name in ("_taught", "batch_seed_"):
            self.__dict__.pop(name, None)

    def _forget_learned(self, asked: list[int], how: How) -> Certificate:
        """Removes what `fit` wrote, or batches of version 0.1."""
        generator = self._generator() if how == "reinitialize" else None
        report = forget(self.block_, self.ledger_, batches=asked, how=how, generator=generator)
        kept = ~torch.isin(self.held_out_.batch, torch.tensor(asked))
        self.held_out_, self._learned_from = self.held_out_.select(kept), None
        self.block_.eval()
        self._calibrate()
        return replace(report, learner=type(self).__name__, guaranteed=report.guaranteed[:2], not_guaranteed=_OF_FIT)

    # Saving

    def save_pretrained(self, folder: str | Path) -> None:
        """Saves the estimator into a folder: `state.json`, and its tensors as safetensors.

        What the folder held before is replaced in one stroke: whoever looks finds the old model or the new one.

        Args:
            folder: Where; made if need be.
        """
        check_is_fitted(self)
        save_estimator(Path(folder), type(self).__name__, self.get_params(deep=False), self._learned())

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str | torch.device | None = None) -> Self:
        """Loads what `save_pretrained` saved.

        Args:
            folder: Where.
            device: Where to put the model; where it was to be when saved by default.
        """
        params, learned = load_estimator(Path(folder), cls.__name__)
        with reading(Path(folder), SAVED):
            estimator = cls(**params)
        if device is not None:
            estimator.device = str(device)
        place = estimator._device()
        with reading(Path(folder), SAVED):
            estimator._take_over(learned, place)
        return estimator

    def _learned(self) -> dict[str, Any]:
        """All that was learned, as tensors and plain values."""
        learned = self._about_features() | {
            "scale": vars(self.scale_),
            "block": block_settings(self.block_),
            "weights": dict(self.block_.state_dict()),
            "held_out": self.held_out_._asdict(),
            "learned_from": None if self._learned_from is None else vars(self._learned_from),
            "ledger": self.ledger_.state_dict(),
            "extra": self._extra_state(),
        }
        if hasattr(self, "_taught"):
            learned |= {"taught": self._taught.state(), "seed": self.batch_seed_}
        return learned

    def _about_features(self) -> dict[str, Any]:
        names = getattr(self, "feature_names_in_", None)
        names = None if names is None else [str(name) for name in names]
        return {"n_features_in": self.n_features_in_, "feature_names_in": names}

    def _take_over_features(self, learned: dict[str, Any]) -> None:
        self.n_features_in_ = int(learned["n_features_in"])
        if learned["feature_names_in"] is not None:
            self.feature_names_in_ = np.array(learned["feature_names_in"], dtype=object)

    def _take_over(self, learned: dict[str, Any], device: torch.device) -> None:
        """Takes over what `_learned` gave."""
        self._take_over_features(learned)
        if "taught" in learned:
            self._taught, self.batch_seed_ = self._new_taught(), int(learned["seed"])
            self._taught.load(learned["taught"])
        self.scale_ = InputScale(**learned["scale"])
        self.block_ = block_from(learned["block"], learned["weights"]).to(device).eval()
        by = learned.get("learned_from")  # version 0.1.0 knew nothing of it
        self._learned_from = None if by is None else Usual(**by).to(device)
        held = Rows(**learned["held_out"])
        self.held_out_ = Rows(held.x.to(device), held.target.to(device), held.weight.to(device), held.batch)
        self.ledger_ = Ledger()
        self.ledger_.load_state_dict(learned["ledger"])
        self._load_extra_state(learned["extra"])
        self._calibrate()

    # Inside

    def _couple(self, X: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs as given, their codes, and the block's predictions and reconstructions."""
        given = self._given(X)
        return given, *self._answer(self.encode(given))

    def _outputs(self, X: Any) -> Tensor:
        """The block's predictions alone, which need no reconstructions."""
        given = self._given(X)
        return F.linear(codes(self.block_, self.encode(given)), self.block_.weight_y.detach())

    def _given(self, X: Any) -> Tensor:
        """Inputs as the user gives them, checked; NaN where they are not observed."""
        check_is_fitted(self)
        return torch.tensor(self._checked(X, reset=False), device=self.block_.weight_x.device)

    def _checked(self, X: Any, *, reset: bool) -> Array:
        """Inputs as a dense array."""
        return dense(validate_data(self, X, dtype=DTYPES, reset=reset, **LENIENT))

    def _decoded(self, rows: Tensor) -> Tensor:
        """Rows of the block in the units of the user."""
        return self.scale_.decode(rows)

    def _rows(self, x: Array, target: Tensor, weight: Array, dtype: torch.dtype | None = None) -> Rows:
        """The examples of `fit` as the block sees them; in a type of their own by default."""
        given = torch.tensor(np.ascontiguousarray(x), device=self._device())
        inputs = self.scale_.encode(given).to(given.dtype if dtype is None else dtype)
        like: Any = {"dtype": inputs.dtype, "device": inputs.device}
        batch = torch.zeros(len(x), dtype=torch.int64)
        return Rows(inputs, target.to(**like), torch.tensor(weight, **like), batch)

    def _keep_held_out(self, rows: Rows, generator: torch.Generator) -> None:
        """Calibrates with rows and keeps them, but not too many."""
        if len(rows.x) > MOST_HELD_OUT:
            rows = rows.select(torch.randperm(len(rows.x), generator=generator)[:MOST_HELD_OUT].sort().values)
        self.held_out_ = rows
        self._calibrate()

    def _usual_of(self, rows: Rows) -> Usual:
        """What the parts leave of some rows, and their sizes."""
        return Usual.of(rows.x, self._answer(rows.x)[2], rows.weight)

    def _calibrate(self) -> Tensor:
        """Looks at the rows held out anew, after the block has changed; gives the predictions of the block."""
        y = self._answer(self.held_out_.x)[1]
        usual = self._usual_of(self.held_out_)
        self._usual = usual if self._learned_from is None else usual.joined(self._learned_from)
        return y

    def _new_block(self, weight_x: Tensor, weight_y: Tensor, *, nonnegative: bool) -> PFCBlock:
        """A block with these weights."""
        steps = int(getattr(self, "inference_steps", 100))
        block = PFCBlock(
            weight_x.shape[0],
            weight_y.shape[0],
            weight_x.shape[1],
            nonnegative=nonnegative,
            l1=float(self.l1),
            # Parts with signs do not all look alike: steps get far, and in tables exact codes predicted worse.
            solver=FewParts(max_iter=steps) if nonnegative else FISTA(max_iter=steps),
            adjoint=Implicit.fast(),
            device=weight_x.device,
            dtype=weight_x.dtype,
        )
        block.set_parts_(weight_x, weight_y)
        return block.eval()

    def _begin_with(self, block: PFCBlock) -> None:
        """Begins with a block, all of which `fit` learned."""
        self.block_, self.ledger_ = block.eval(), Ledger()
        self.ledger_.record(0, range(block.num_basis))

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        """Puts all attributes back where something fails inside."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _check_sign(self, given: Tensor) -> None:
        if self.block_.nonnegative and len(given) and (lowest := float(given.nan_to_num(nan=0.0).min())) < 0:
            raise ValueError(_negative(lowest, type(self).__name__))

    def _check_scale(self) -> None:
        if self.scale not in ("auto", "features", "common", None):
            raise ValueError(f"scale must be 'auto', 'features', 'common' or None, got {self.scale!r}")

    def _lowest(self, x: Array) -> float:
        """The lowest of all entries, or 0, if the parameter `nonnegative` allows for it."""
        if self.nonnegative not in (True, False, "auto"):
            raise ValueError(f"nonnegative must be True, False or 'auto', got {self.nonnegative!r}")
        lowest = float(np.nanmin(x, initial=0.0))
        if self.nonnegative is True and lowest < 0:
            raise ValueError(_negative(lowest, type(self).__name__))
        return lowest

    def _look(self, sketch: Sketch, lowest: float) -> tuple[Scale | None, bool]:
        """The scale of each feature, None for a common one, and whether parts are non-negative."""
        scale = feature_scale(sketch, self.scale, around_zero=self.nonnegative is True)
        signed = lowest < 0 if self.nonnegative == "auto" else not self.nonnegative
        return scale, not signed and (scale is None or self.nonnegative is True)

    def _numpy(self, values: Tensor) -> Array:
        array: Array = values.detach().cpu().numpy()
        return array.copy()

    def _generator(self) -> torch.Generator:
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        return torch.Generator().manual_seed(int(seed))

    def _check_counts(self, *names: str) -> None:
        """Checks parameters that are ints of at least 1, or "auto"."""
        for name in names:
            if (value := getattr(self, name)) != "auto":
                if isinstance(value, str):
                    raise ValueError(f"{name} must be an int or 'auto', got {value!r}")
                self._check_numbers(name, integer=True, low=1)

    def _check_numbers(
        self, *names: str, low: float, high: float = np.inf, integer: bool = False, above: bool = False
    ) -> None:
        """Raises `ValueError` or `TypeError` where a parameter is not a number from `low` (or above it) to `high`."""
        kinds = (int, np.integer) if integer else (int, float, np.integer, np.floating)
        for name in names:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise TypeError(f"{name} must be {'an int' if integer else 'a number'}, got {value!r}")
            number = float(value)
            if not (low < number if above else low <= number) or not number <= high or number == np.inf:
                bounds = f"{'greater than' if above else 'at least'} {low:g}"
                if high < np.inf:
                    bounds += f" and at most {high:g}"
                raise ValueError(f"{name} must be {bounds}, got {value!r}")

    def _device(self) -> torch.device:
        try:
            device = torch.device("cpu" if self.device is None else self.device)
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"device must name a device of PyTorch or be None, got {self.device!r} ({error})"
            ) from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device must be one that is there, got {self.device!r} and no CUDA device")
        return device

    def _say(self, message: str) -> None:
        if self.verbose:
            print(f"[{type(self).__name__}] {message}", flush=True)


_OF_FIT = (
    "fit learned all parts together, by gradients: what is left may depend on what is forgotten here. Only what is "
    "fitted anew without it does not.",
    COPIES,
)
"""What no forgetting after `fit` can promise."""


def _negative(lowest: float, name: str) -> str:
    return (
        f"X must be non-negative for non-negative parts, got an entry of {lowest:.3g} (Negative values in data passed "
        f"to {name}); nonnegative=False allows signs"
    )
