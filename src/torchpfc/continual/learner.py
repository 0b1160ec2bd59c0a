"""A model that learns classes one after another, from their own examples alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor, nn

from torchpfc.continual.certificate import (
    BatchRecord,
    Certificate,
    Content,
    How,
    content_of,
    hash_of,
)
from torchpfc.continual.checks import names, numbers, weights
from torchpfc.continual.cones import ConeCoupling, Cones, Look
from torchpfc.continual.forgetting import certify, portions_of, records_of
from torchpfc.continual.names import new_name
from torchpfc.continual.portion import Portion
from torchpfc.continual.readout import RidgeReadout
from torchpfc.continual.recipe import Recipe
from torchpfc.continual.saving import take_from_state, to_state
from torchpfc.continual.settings import options_from
from torchpfc.nn.block import PFCBlock
from torchpfc.optim.ledger import Ledger
from torchpfc.solvers import FISTA, Solver
from torchpfc.solvers.checks import check_at_least_one

_ROWS_AT_ONCE = 1000


class ContinualPFC(nn.Module):
    r"""Learns classes one after another: each gets parts of its own, and a batch can be taken out as if never seen.

    The parts of a class are means of similar examples of it (k-means), refined by a few passes of a factorization of
    them all, and scaled to norm 1. An input belongs to the class whose parts explain it best, each class by itself:

    $$\hat c = \arg\min_c \min_{h \ge 0} \tfrac12 \|x - W_c h\|^2 + l_1 \sum_r h_r$$

    So nothing has to be seen twice, no step changes an old part, and the number of classes need not be known.

    What a batch leaves behind depends on that batch alone: parts and, where they are needed, a sketch of how its
    features are distributed and sums for a read-out. Whatever speaks of all batches, such as scales, is computed from
    these in the order in which they came. So `forget` gives, bit for bit, the model that never saw the batch. The
    exceptions are batches that share parts, by `max_parts` or `wait`; `inexact` lists them.

    None of the parts is a copy of an example, unless all examples of its class in a batch are the same, as where there
    is one alone: `copies` lists these, and `wait` avoids them.

    All parts together are the columns of one `PFCBlock`, with one-hot columns of `weight_y`: they can be looked at, a
    `Ledger` knows which examples each was made of, and `torchpfc.forget` removes them. Arrays and lists do as well as
    tensors, and NaN says that an entry is not observed.

    Args:
        in_features: Size of the input.
        num_classes: How many classes there may be; None for as many as are shown.
        columns_per_class: Parts that `learn` adds for each class it is shown, unless told otherwise.
        l1: Weight of the sum of h, for inputs of norm 1.
        power: Inputs are raised to this power first; less than 1 makes bright pixels count less.
        refine: Passes of the factorization, with the same `l1`; 0 keeps the means. Only with a common scale.
        views: Gives several looks at inputs, such as `Shifts`. A class explains an input as well as the look that it
            explains best. Parts are made of the inputs as they are.
        solver: How h is found, `FISTA()` by default. `FewParts()` is several times as fast where classes have hundreds
            of parts.
        scale: `"common"` takes features as they are: images, counts, embeddings. `"features"` brings each to a scale of
            its own, around its median, for tables. Where there are signs, each feature becomes two, what is above zero
            and what is below. `"auto"` is the former for features that look like pixels or counts: 16 or more, never
            negative and alike in size (`Sketch.in_one_unit`).
        read_out: Adds the scores of a linear read-out of fixed features, from sums that are kept by batch. Its ridge
            may be another later, its features may not.
        max_parts: How many parts there may be, but one for each class; beyond that the two most alike of the class with
            most parts become one. Bounds memory, and the time that a call takes.
        wait: Whether a class waits for its second example before it gets a part. The first is kept until then.
        device: Where the weights live.
        dtype: Their type.

    Shape:
        - x: $(*, \text{in_features})$
        - y: $(*, \text{num_classes})$, for each class the share of the input that its parts explain, from 0 to 1, and
          what the read-out adds

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> model = ContinualPFC(8, 2, columns_per_class=3)
        >>> zeros, ones = torch.rand(20, 8, generator=generator).chunk(2)
        >>> zeros[:, :4], ones[:, 4:] = 0, 0
        >>> model.learn(zeros, torch.zeros(10).long(), batch="monday")
        {0: range(0, 3)}
        >>> model.learn(ones, torch.ones(10).long(), batch="tuesday")
        {1: range(3, 6)}
        >>> model(torch.cat([zeros, ones])).argmax(-1).tolist() == [0] * 10 + [1] * 10
        True
        >>> certificate = model.forget(["monday"])
        >>> certificate.exact, certificate.batches, certificate.num_columns
        (True, ('monday',), 3)
    """

    block: PFCBlock | None
    _anchor: Tensor

    def __init__(
        self,
        in_features: int,
        num_classes: int | None = None,
        *,
        columns_per_class: int = 135,
        l1: float = 0.2,
        power: float = 0.5,
        refine: int = 5,
        views: Callable[[Tensor], Tensor] | None = None,
        solver: Solver | None = None,
        scale: Literal["common", "features", "auto"] = "common",
        read_out: RidgeReadout | None = None,
        max_parts: int | None = None,
        wait: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_at_least_one(in_features=in_features, columns_per_class=columns_per_class)
        check_at_least_one(num_classes=num_classes, max_parts=max_parts)
        if not l1 >= 0:
            raise ValueError(f"l1 must be non-negative, got {l1}")
        if not power > 0:
            raise ValueError(f"power must be positive, got {power}")
        if refine < 0:
            raise ValueError(f"refine must be at least 0, got {refine}")
        if scale not in ("common", "features", "auto"):
            raise ValueError(f"scale must be 'common', 'features' or 'auto', got {scale!r}")
        self.in_features, self.columns_per_class = in_features, columns_per_class
        self.l1, self.power, self.refine, self.views = l1, power, refine, views
        self.solver = FISTA(max_iter=100) if solver is None else solver
        self.scale, self.read_out, self.max_parts, self.wait = scale, read_out, max_parts, wait
        self.block = None
        self.announced = num_classes
        """How many classes there may be, where somebody said it."""
        self._portions: list[Portion] = []
        self._records: dict[Hashable, BatchRecord | None] = {}
        self._found_weight: tuple[RidgeReadout, Tensor] | None = None
        self._found_cones: tuple[tuple[int, int], Cones] | None = None
        # Says where the model lives while there is no part yet.
        self.register_buffer("_anchor", torch.empty(0, device=device, dtype=dtype), persistent=False)
        self._encoding = self._recipe.encoding([])

    # What it knows

    @property
    def num_classes(self) -> int:
        """How many classes there may be, or are where nobody said it."""
        seen = max((portion.label for portion in self._portions), default=-1) + 1
        return seen if self.announced is None else self.announced

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return self._anchor.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights."""
        return self._anchor.dtype

    @property
    def num_basis(self) -> int:
        """Number of parts of all classes together."""
        return 0 if self.block is None else self.block.num_basis

    @property
    def owners(self) -> Tensor:
        """The class of each part; -1 for parts that were forgotten."""
        if self.block is None:
            return torch.empty(0, dtype=torch.int64)
        used = self.block.weight_x.detach().any(0)
        return torch.where(used, self.block.weight_y.detach().argmax(0), -1)

    @property
    def portions(self) -> tuple[Portion, ...]:
        """What each batch has left of each class, in the order in which they came."""
        return tuple(self._portions)

    @property
    def batches(self) -> tuple[Hashable, ...]:
        """The batches that were learned from, in the order in which they came."""
        return tuple(self._records)

    @property
    def records(self) -> tuple[BatchRecord | None, ...]:
        """What is known of each batch beside its parts; None where version 0.1.0 learned it."""
        return tuple(self._records.values())

    @property
    def inexact(self) -> tuple[Hashable, ...]:
        """The batches that share parts with others, so that they cannot be forgotten without those."""
        shared = (portion.batches for portion in self._portions if len(portion.batches) > 1)
        return tuple(dict.fromkeys(batch for batches in shared for batch in batches))

    @property
    def copies(self) -> tuple[int, ...]:
        """The columns that are the same as an example."""
        flags = [portion.copies for portion in self._portions]
        return tuple(torch.cat(flags).nonzero()[:, 0].tolist()) if flags else ()

    def parts_of(self, c: int) -> Tensor:
        """The parts of a class as the model sees them, one per column.

        Args:
            c: The class.
        """
        if self.block is None:
            return self._anchor.new_empty(self.in_features, 0)
        return self.block.weight_x.detach()[:, self.owners == c]

    # Learning and forgetting

    @torch.no_grad()
    def learn(
        self,
        x: Tensor | ArrayLike,
        label: Tensor | ArrayLike,
        *,
        weight: Tensor | ArrayLike | None = None,
        count: int | None = None,
        batch: Hashable = None,
        content: Content | None = None,
        ledger: Ledger | None = None,
        rows: Iterable[int] | Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[int, range]:
        """Adds parts for every class of some examples; those that are there stay as they are.

        Call it once for all examples of a class, or for each portion of them that arrives: then parts are added for
        each portion, and depend on that portion alone. A call that fails changes nothing.

        Args:
            x: The examples.
            label: Their classes, numbers from 0 on.
            weight: What each example counts in its part.
            count: Parts for each class, by default `columns_per_class`; at most one for every two examples.
            batch: The name under which `forget` knows these examples, anything that can be a key of a dict; a free
                number by default.
            content: What certificates are to say of the batch, where these examples are only some of it; by default
                what `content_of` finds.
            ledger: Is told which parts were made of which examples, as one batch for each class.
            rows: The numbers of the examples, for the ledger.
            generator: Its seed decides where k-means starts; how much it has been used makes no difference.

        Returns:
            The columns that each class has gained; no columns where a class waits, and where parts became fewer.
        """
        given = x, label, weight
        x, label = self._examples(x, label)
        check_at_least_one(count=count)
        weight = None if weight is None else weights(weight, x)
        if ledger is not None and self.max_parts is not None:
            raise ValueError("ledger must be None with max_parts, which makes one part of several, got one")
        numbers = None if rows is None else torch.as_tensor(rows if isinstance(rows, Tensor) else list(rows)).cpu()
        if numbers is not None and len(numbers) != len(x):
            raise ValueError(f"rows must number each of the {len(x)} examples, got {len(numbers)} numbers")
        batch = new_name(batch, self._records)
        portions, gained = list(self._portions), {}
        seed = 0 if generator is None else generator.initial_seed()
        for c in torch.unique(label).tolist():
            own = label == c
            w = None if weight is None else weight[own]
            portions.append(self._learn_class(portions, x[own], c, w, count, batch, seed))
            start = sum(portion.count for portion in portions[:-1])
            gained[c] = range(start, start + portions[-1].count)
        total = sum(portion.count for portion in portions)
        sha256, held = content_of(*given) if content is None else content
        record = BatchRecord(batch, held, sha256, seed, count, sum(map(len, gained.values())))
        if self.max_parts is not None:
            portions = self._recipe.fewer(portions, self.max_parts)
        self._replace(portions, self._records | {batch: record})
        if sum(portion.count for portion in portions) < total:
            gained = dict.fromkeys(gained, range(0))
        if ledger is not None:
            for c, columns in gained.items():
                ledger.record(ledger.next_id, columns, None if numbers is None else numbers[(label == c).cpu()])
        return gained

    @torch.no_grad()
    def forget(self, batches: Iterable[Hashable], *, how: How = "remove") -> Certificate:
        """Takes batches out: what is left is, bit for bit, the model that never saw them.

        Where `max_parts` has made one part of several that stay, it is not, and the certificate says so.

        Args:
            batches: Their names. Batches that share parts can only be taken out together.
            how: `"remove"`, or `"zero"` for columns that stay, so that the numbers of the others do too.
        """
        if how not in ("zero", "remove"):
            raise ValueError(f"how must be 'zero' or 'remove', got {how!r}")
        asked = dict.fromkeys(names(batches))
        if unknown := [batch for batch in asked if batch not in self._records]:
            raise ValueError(f"batches must have been learned from, got {unknown[0]!r}")
        gone = set(map(id, portions_of(self._portions, asked.keys())))  # portions are not compared, but the same
        owners = [id(portion) for portion in self._portions for _ in range(portion.count)]
        columns = [column for column, owner in enumerate(owners) if owner in gone]
        learned, before = self.records, hash_of(self.state_dict)
        left = [portion.emptied() if id(portion) in gone else portion for portion in self._portions]
        self._replace(left if how == "zero" else [p for p in self._portions if id(p) not in gone])
        return certify(self, how, asked, learned, columns, len(owners), before)

    @torch.no_grad()
    def relabel(self, labels: Sequence[int], num_classes: int | None) -> None:
        """Gives classes other numbers.

        Args:
            labels: The new number of each class, by its old one.
            num_classes: How many classes there may be from now on.
        """
        portions = [p if p.label < 0 else replace(p, label=labels[p.label]) for p in self._portions]
        self.announced = num_classes
        self._replace(portions, self._records)

    @torch.no_grad()
    def columns_forgotten(self, columns: Iterable[int], *, removed: bool) -> None:
        """Follows `torchpfc.forget`, which has emptied or removed columns of the block: their portions go as a whole.

        Args:
            columns: The numbers that the columns had before.
            removed: Whether they are gone, rather than empty.
        """
        gone, start, kept = set(columns), 0, []
        for portion in self._portions:
            own = range(start, start + portion.count)
            start += portion.count
            if gone.isdisjoint(own):
                kept.append(portion)
            elif removed:
                rest = torch.tensor([c not in gone for c in own], device=portion.parts.device)
                if rest.any():
                    kept.append(portion.emptied().select(rest))
            else:
                kept.append(portion.emptied())
        self._replace(kept)

    # Asking

    def forward(self, x: Tensor | ArrayLike) -> Tensor:
        """The scores of each class."""
        x = self._inputs(x)
        flat = x.reshape(-1, self.in_features)
        y = torch.cat([self._scores(rows) for rows in torch.split(flat, _ROWS_AT_ONCE)])
        return y.view(*x.shape[:-1], self.num_classes)

    @torch.no_grad()
    def couple(self, x: Tensor | ArrayLike) -> ConeCoupling:
        """The scores of each class, and the parts that they come from.

        Args:
            x: Inputs, of shape (n, in_features).
        """
        flat = self._inputs(x).reshape(-1, self.in_features)
        h = self._anchor.new_zeros(len(flat), self.num_basis)
        gain, base = torch.zeros_like(h), self._anchor.new_zeros(len(flat), self.num_classes)
        y = torch.zeros_like(base)
        for start in range(0, len(flat), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            base[rows] = y[rows] = self._base(flat[rows])
            for c, columns, codes, gains in self._cones().codes(self._looks(flat[rows])):
                h[rows, columns], gain[rows, columns] = codes, gains
                y[rows, c] += gains.sum(1)
        return ConeCoupling(y, h, gain, base)

    @property
    def means(self) -> Tensor:
        r"""The parts in units of the input, one per row; where the scale is common, up to a factor for each.

        Shape:
            - the result: $(r, \text{in_features})$
        """
        if not self._portions:
            return self._anchor.new_empty(0, self.in_features)
        if self.scale != "common":
            return torch.cat([portion.parts for portion in self._portions], 1).mT
        return self._encoding.decode(self._recipe.columns(self._portions, self._encoding).mT)

    def reconstruct(self, x: Tensor | ArrayLike) -> Tensor:
        """What the parts of the class that explains an input best make of it, in units of the input.

        Args:
            x: Inputs, of shape (n, in_features).
        """
        flat = self._inputs(x).reshape(-1, self.in_features)
        return self._encoding.restored(self.explained(self.couple(flat)), flat)

    def explained(self, coupling: ConeCoupling) -> Tensor:
        """The reconstructions by the class that explains each input best, as the parts see inputs.

        Args:
            coupling: What `couple` gave.
        """
        return F.linear(self.by_answer(coupling), self._weight())

    def by_answer(self, coupling: ConeCoupling) -> Tensor:
        """The codes with those of all classes but the answer set to 0.

        Args:
            coupling: What `couple` gave.
        """
        return coupling.h * (self.owners.to(coupling.h.device) == coupling.y.argmax(1, keepdim=True))

    def _weight(self) -> Tensor:
        return self._anchor.new_empty(self.in_features, 0) if self.block is None else self.block.weight_x.detach()

    def prepare(self, x: Tensor) -> Tensor:
        """Inputs as the parts see them: raised to a power, and of norm 1, so that l1 means the same for all."""
        return self._encoding.encode(x)

    def extra_repr(self) -> str:
        """The sizes and settings shown when a model is printed."""
        sizes = f"in_features={self.in_features}, num_classes={self.num_classes}, num_basis={self.num_basis}"
        return f"{sizes}, l1={self.l1}, power={self.power}, scale={self.scale!r}, solver={self.solver}"

    # Inputs

    def _inputs(self, x: Tensor | ArrayLike) -> Tensor:
        """Inputs as a tensor of floating-point numbers, in their own precision."""
        tensor = numbers(x, "x")
        if not tensor.ndim or tensor.shape[-1] != self.in_features:
            raise ValueError(f"x must have shape (..., {self.in_features}), got {tuple(tensor.shape)}")
        if tensor.isinf().any():
            raise ValueError("x must be finite, or NaN where it is not observed, got an infinite entry")
        return tensor.to(self._anchor.device, tensor.dtype if tensor.is_floating_point() else self._anchor.dtype)

    def _examples(self, x: Tensor | ArrayLike, label: Tensor | ArrayLike) -> tuple[Tensor, Tensor]:
        """Examples and their classes, checked."""
        x = self._inputs(x)
        label = numbers(label, "label").to(x.device)
        if x.ndim != 2 or not len(x):
            raise ValueError(f"x must have shape (n, {self.in_features}) with n at least 1, got {tuple(x.shape)}")
        if label.shape != x.shape[:1]:
            raise ValueError(f"label must have shape {tuple(x.shape[:1])} to match x, got {tuple(label.shape)}")
        if label.is_floating_point() or label.dtype == torch.bool:
            raise TypeError(f"label must be whole numbers, got {label.dtype}")
        lowest, highest = int(label.min()), int(label.max())
        if lowest < 0 or (self.announced is not None and highest >= self.announced):
            most = "" if self.announced is None else f" to {self.announced - 1}"
            wrong = lowest if lowest < 0 else highest
            raise ValueError(f"label must be from 0{most or ' on'}, got {wrong}")
        return x, label

    # Learning

    def _learn_class(
        self,
        portions: list[Portion],
        x: Tensor,
        c: int,
        weight: Tensor | None,
        count: int | None,
        batch: Hashable,
        seed: int,
    ) -> Portion:
        """What the examples of one class leave behind; one that waited for them leaves the other portions."""
        batches: tuple[Hashable, ...] = (batch,)
        for place, portion in enumerate(portions):
            if portion.label == c and portion.waiting is not None:
                x, batches = torch.cat([portion.waiting.to(x), x]), (*portion.batches, batch)
                weight = None if weight is None else F.pad(weight, (1, 0), value=1.0)
                del portions[place]
                break
        if self.wait and len(x) == 1:
            return self._recipe.waiting(x, c, batches)
        return self._recipe.portion(x, c, weight, count or self.columns_per_class, batches, seed)

    @property
    def _recipe(self) -> Recipe:
        settings = self.in_features, self.scale, self.power, self.l1, self.refine, self.solver, self.read_out
        return Recipe(*settings, self._anchor.dtype)

    # What follows from the portions

    def _replace(self, portions: list[Portion], records: dict[Hashable, BatchRecord | None] | None = None) -> None:
        """Puts portions in the place of those that there are: all else is computed first, and changed last."""
        encoding = self._recipe.encoding(portions)
        labels = [portion.label for portion in portions for _ in range(portion.count)]
        block = None
        if labels:
            W = self._recipe.columns(portions, encoding)
            outputs = max(max(labels) + 1, 1) if self.announced is None else self.announced
            owners = torch.arange(outputs, device=W.device).unsqueeze(1) == torch.tensor(labels, device=W.device)
            block = self._make_block(len(W), outputs, len(labels))
            block.set_parts_(W, owners.to(W.dtype))
        self._portions, self._encoding, self.block = portions, encoding, block
        # A stream has many names: whoever knows them says so.
        self._records = records_of(portions, self._records) if records is None else records
        self._found_weight = self._found_cones = None

    def _make_block(self, in_features: int, num_classes: int, num_basis: int) -> PFCBlock:
        options: dict[str, Any] = {"device": self._anchor.device, "dtype": self._anchor.dtype}
        sizes = in_features, num_classes, num_basis
        return PFCBlock(*sizes, solver=self.solver, l1=self.l1, **options).train(self.training)

    def _cones(self) -> Cones:
        """The parts of each class."""
        weight = self._weight()
        version = weight.data_ptr(), weight._version
        if self._found_cones is None or self._found_cones[0] != version:
            self._found_cones = version, Cones.of(weight, self.owners, self.l1, self.solver)
        return self._found_cones[1]

    def _looks(self, x: Tensor) -> list[Look]:
        """The looks at some inputs."""
        looks = [x] if self.views is None else self.views(x).unbind()
        return [(self._encoding.encode(look), self._encoding.observed(look)) for look in looks]

    def _scores(self, x: Tensor) -> Tensor:
        """The scores of a few inputs."""
        y = self._base(x)
        for labels, shares in self._cones().shares(self._looks(x)):
            y[:, labels] += shares.T
        return y

    def _base(self, x: Tensor) -> Tensor:
        """What the read-out says of some inputs; zeros without one."""
        if (weight := self.read_out_weight) is None or self.read_out is None:
            return self._anchor.new_zeros(len(x), self.num_classes)
        return F.linear(self.read_out.features(x.nan_to_num(nan=0.0)).to(weight), weight[:, 1:], weight[:, 0])

    @property
    def read_out_weight(self) -> Tensor | None:
        r"""A constant, and what each feature of the read-out adds to the score of each class; None without a read-out.

        Shape:
            - the result: $(\text{num_classes}, 1 + d)$
        """
        if self.read_out is None or not any(portion.sums is not None for portion in self._portions):
            return None
        if self._found_weight is None or self._found_weight[0] is not self.read_out:
            kept = [(p.label, p.factor, p.sums) for p in self._portions if p.factor is not None and p.sums is not None]
            sums = kept[0][2].new_zeros(self.num_classes, len(kept[0][2]))
            for c, _, total in kept:
                sums[c] += total
            weight = self.read_out.solve([factor for _, factor, _ in kept], sums).to(self._anchor.dtype)
            self._found_weight = self.read_out, weight
        return self._found_weight[1]

    # Moving and saving

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves also what is kept by batch."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._portions = [portion.map(fn) for portion in self._portions]
        self._encoding = self._recipe.encoding(self._portions)
        self._found_weight = self._found_cones = None
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.update(to_state(self._portions, self._records, prefix))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Makes room for as many parts as were saved."""
        portions, known = take_from_state(state_dict, prefix, self._anchor.device)
        self._replace(portions, records_of(portions, known))
        super()._load_from_state_dict(state_dict, prefix, *args)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], *, dtype: torch.dtype | None = None) -> Self:
        """A learner that knows nothing, with the settings of a certificate.

        Args:
            settings: Plain values.
            dtype: The type of its weights.
        """
        return cls(**options_from(settings), dtype=dtype)
