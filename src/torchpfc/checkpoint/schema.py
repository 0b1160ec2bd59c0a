"""What saved files may say: kinds of values and their bounds, checked before anything is made of them.

Needs msgspec, which every extra with safetensors brings. Keys that are not named here pass: newer versions add some.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta, ValidationError, convert
from torch import Tensor

MOST_COLUMNS = 2**24
MOST_STEPS = 2**40
MOST_LABEL_BYTES = 2**26

_LARGEST = 1.7976931348623157e308
Finite = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
Positive = Annotated[float, Meta(gt=0, le=_LARGEST)]
NotNegative = Annotated[float, Meta(ge=0, le=_LARGEST)]
Number = Annotated[int, Meta(ge=-(2**53), le=2**53)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Column = Annotated[int, Meta(ge=0, le=MOST_COLUMNS)]
Step = Annotated[int, Meta(ge=0, le=MOST_STEPS)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Sha256OrNone = Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")]
Device = Annotated[str, Meta(pattern=r"^[a-z]+(:\d{1,3})?$")]
Plain = str | int | float | bool | None


class Named(TypedDict):
    """The file with tensors that a JSON file names: one beside it."""

    tensors: Annotated[str, Meta(pattern=r"^(model-)?[0-9a-f]{16}\.safetensors$")]
    sha256: Sha256


class Entry(TypedDict):
    """A batch in a ledger."""

    id: Number
    first_step: Step
    columns: list[tuple[Column, Column]]
    rows: list[Number] | None


class LedgerState(TypedDict):
    """A ledger."""

    steps: Step
    num_columns: Column
    batches: list[Entry]
    weights: NotRequired[Sha256]
    """The fingerprint of the model that it speaks of."""


class BlockState(TypedDict):
    """What a block was made with but its sizes."""

    nonnegative: bool
    l1: NotNegative
    init_range: NotRequired[tuple[Finite, Finite]]
    solver: NotRequired[dict[str, Plain]]
    adjoint: NotRequired[dict[str, Plain] | None]


class ModelState(TypedDict):
    """A block with its ledger."""

    block: BlockState
    weights: dict[str, Tensor]
    ledger: NotRequired[LedgerState]
    solver: NotRequired[dict[str, Plain]]
    """Where version 0.1.0 had it."""
    about: dict[str, Any]


class LabelState(TypedDict):
    """Labels of classes."""

    dtype: Annotated[str, Meta(pattern=r"^([<>|]?([biu][1248]|f[248])|[<>]?U\d{1,6}|\|?O)$")]
    values: list[str | int | float | bool]


class ScaleState(TypedDict):
    """A scale of inputs."""

    size: Positive
    constant: bool
    center: NotRequired[Tensor | None]
    spread: NotRequired[Tensor | None]


class RowState(TypedDict):
    """Rows that were held out."""

    x: Tensor
    target: Tensor
    weight: Tensor
    batch: Tensor


class UsualState(TypedDict):
    """What is usual of rows."""

    residual: Tensor
    size: Tensor
    weight: Tensor
    signed: NotRequired[bool]


class ExtraState(TypedDict):
    """What each kind of estimator adds."""

    n_iter: NotRequired[Count]
    classes: NotRequired[LabelState]
    sharpness: NotRequired[Finite]
    multilabel: NotRequired[bool]
    base: NotRequired[list[Finite]]
    output_scale: NotRequired[list[Finite]]
    one_output: NotRequired[bool]
    reconstruction_err: NotRequired[Finite | None]


class EstimatorState(TypedDict):
    """Any estimator."""

    format: int
    estimator: Annotated[str, Meta(pattern=r"^\w{1,100}$")]
    params: dict[str, Plain]
    n_features_in: Annotated[int, Meta(ge=1, le=MOST_COLUMNS)]
    feature_names_in: list[str] | None


class FittedState(EstimatorState):
    """An estimator after `fit`."""

    block: BlockState
    weights: dict[str, Tensor]
    scale: ScaleState
    held_out: RowState
    learned_from: NotRequired[UsualState | None]
    ledger: LedgerState
    extra: ExtraState


class TaughtBatches(TypedDict):
    """What a classifier was taught batch by batch."""

    announced: LabelState | None
    labels: LabelState | None
    held: list[tuple[Any, Tensor, LabelState, Tensor]]
    learner: dict[str, Tensor]


class TaughtState(EstimatorState):
    """A classifier after `partial_fit`."""

    taught: TaughtBatches
    seed: Count


class RecordState(TypedDict):
    """A batch in a certificate."""

    name: Any
    rows: Count
    sha256: Sha256
    seed: Annotated[int, Meta(ge=0)] | None
    per_class: Annotated[int, Meta(ge=1, le=MOST_COLUMNS)] | None
    parts: Column


class SketchState(TypedDict):
    """How features are distributed."""

    points: Tensor
    mass: Tensor


class MomentState(TypedDict):
    """Means and deviations of features."""

    total: Tensor
    mass: Tensor
    mean: Tensor
    deviation: Tensor


class SummaryState(TypedDict):
    """What a batch of a regressor or a transformer leaves behind."""

    parts: Tensor
    counts: Tensor
    sketch: SketchState
    moments: MomentState
    held: Tensor
    weight: Tensor
    record: NotRequired[RecordState | None]


class StagedBatches(TypedDict):
    """What a regressor or a transformer was taught batch by batch."""

    features: Count
    batches: list[tuple[Any, SummaryState]]
    runs: list[tuple[list[Any], Column]]


class StagedState(FittedState):
    """A regressor or a transformer after `partial_fit`."""

    taught: StagedBatches
    seed: Count


class IndexState(TypedDict):
    """What a folder of snapshots holds."""

    skipped: list[Number]
    examples: list[Number]
    moments: list[tuple[Step, Step, Count, Number, Number]]


class CertificateState(TypedDict):
    """A certificate of forgetting."""

    format: int
    learner: Annotated[str, Meta(pattern=r"^\w{1,100}$")]
    how: Literal["remove", "zero", "reinitialize", "replay"]
    exact: bool
    batches: list[Any]
    examples: list[Number]
    unrecorded: list[Any]
    learned: list[RecordState]
    settings: dict[str, Any] | None
    obstacle: str
    columns: list[tuple[Column, Column]]
    num_columns: Column
    share: Finite
    others_affected: list[Any]
    resumed_at: Step | None
    replayed: Step | None
    machine: dict[str, Plain]
    sha256_before: Sha256OrNone
    sha256_after: Sha256OrNone
    guaranteed: list[str]
    not_guaranteed: list[str]
    checksum: Sha256


def conform(content: Any, kind: Any) -> None:
    """Raises `ValueError` where content is not of a kind.

    Args:
        content: Plain values and tensors.
        kind: A type, such as one of this file.

    Example:
        >>> conform({"steps": 10**15, "num_columns": 3, "batches": []}, LedgerState)
        Traceback (most recent call last):
        ValueError: Expected `int` <= 1099511627776 - at `$.steps`
    """
    try:
        convert(content, kind)
    except ValidationError as error:
        raise ValueError(str(error)) from None


def conform_ledger(content: Any) -> None:
    """Raises `ValueError` where content is no ledger that could have come about.

    Args:
        content: Plain values.
    """
    conform(content, LedgerState)
    batches = content["batches"]
    if len({batch["id"] for batch in batches}) < len(batches):
        raise ValueError("a batch that has two entries")
    for batch in batches:
        if batch["first_step"] >= content["steps"]:
            raise ValueError(f"batch {batch['id']} begins with step {batch['first_step']} of {content['steps']}")
        for start, stop in batch["columns"]:
            if not start < stop <= content["num_columns"]:
                raise ValueError(f"batch {batch['id']} has columns {start} to {stop} of {content['num_columns']}")
