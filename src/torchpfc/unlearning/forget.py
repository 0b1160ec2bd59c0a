"""Removing the columns that batches or examples could write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc.continual import ContinualPFC
from torchpfc.continual.certificate import Certificate, How, fingerprint
from torchpfc.machine import describe_bits
from torchpfc.nn.block import PFCBlock
from torchpfc.nn.recording import named_blocks
from torchpfc.optim.ledger import Ledger, merged, whole_numbers
from torchpfc.training import WarmCodes
from torchpfc.unlearning.keeping import keep_forgotten, state_of_columns
from torchpfc.unlearning.report import guaranteed, not_guaranteed


def forget(
    model: nn.Module,
    ledger: Ledger,
    *,
    batches: Iterable[int] | None = None,
    examples: Iterable[int] | Tensor | None = None,
    how: How = "zero",
    optimizer: Optimizer | None = None,
    codes: WarmCodes | None = None,
    generator: torch.Generator | None = None,
) -> Certificate:
    """Removes what batches or examples wrote: exactly the columns that the ledger names, in every block of a model.

    Whatever else was learned in these columns goes too, and what later batches learned elsewhere stays, although those
    computed their gradients with these columns in place (Section 5.5). The certificate says so; `retrain_without` is
    exact.

    Args:
        model: Any module that contains PFC blocks, or one itself.
        ledger: The record of its training; it is told what has gone.
        batches: What to forget, by the numbers of the batches. Give either these or `examples`.
        examples: What to forget, by the numbers of the examples. Every batch that held one of them counts.
        how: `"zero"` leaves zeros, which no further training fills; `"reinitialize"` leaves fresh random weights, which
            further training may use; `"remove"` makes the blocks narrower.
        optimizer: The optimizer of the weights: its state for the columns is cleared, and steps from now on leave
            columns of zeros alone (`keep_forgotten`). Needed whenever training is to go on.
        codes: The warm codes of the training, which forget the columns, and the examples altogether.
        generator: Source of the fresh weights.

    Example:
        >>> from torchpfc import PFCBlock, RMSpropSLW
        >>> block = PFCBlock(8, 3, num_basis=20)
        >>> optimizer = RMSpropSLW(block.parameters(), width=4, sweep_speed=2)
        >>> ledger = Ledger()
        >>> handle = ledger.watch(optimizer)
        >>> for id in range(6):
        ...     optimizer.zero_grad()
        ...     block(torch.rand(5, 8)).square().sum().backward()
        ...     with ledger.batch(id):
        ...         optimizer.step()
        >>> report = forget(block, ledger, batches=range(2, 4), optimizer=optimizer)
        >>> report.columns, report.others_affected, report.share
        (((4, 10),), (1, 4), 0.3)
        >>> bool(block.weight_x[:, 4:10].any() or block.weight_y[:, 4:10].any())
        False
    """
    if how not in ("zero", "reinitialize", "remove"):
        raise ValueError(f"how must be 'zero', 'reinitialize' or 'remove', got {how!r}")
    if examples is not None:
        examples = whole_numbers(examples, "examples")
    if batches is not None:
        batches = whole_numbers(batches, "batches")
    asked, known = affected_batches(ledger, batches, examples)
    blocks = named_blocks(model)
    widest = max(block.num_basis for block in blocks.values())
    ranges = merged(range(part.start, min(part.stop, widest)) for part in ledger.columns_of(known))
    every = [column for part in ranges for column in part]
    columns = {
        name: torch.tensor([c for c in every if c < block.num_basis], dtype=torch.int64, device=block.weight_x.device)
        for name, block in blocks.items()
    }
    if how != "reinitialize":
        _check_something_is_left(blocks, columns)
    others = sorted(set(ledger.batches_of(every)).difference(known))
    rows = [row for id in known if ledger.has_rows(id) for row in ledger.rows_of(id)] if examples is None else examples
    share = sum(map(len, columns.values())) / sum(block.num_basis for block in blocks.values())
    before = fingerprint(model)
    for name, block in blocks.items():
        _forget_in_block(block, columns[name], how, optimizer, generator)
        if codes is not None:
            _forget_codes(codes, name, block.solver.floor, columns[name], rows, removed=how == "remove")
    for module in model.modules():
        if isinstance(module, ContinualPFC):
            module.columns_forgotten(every, removed=how == "remove")
    if how == "remove":
        ledger.columns_removed(every)
    else:
        ledger.erase(every)
    if how == "zero" and optimizer is not None:
        keep_forgotten(model, optimizer)
    like = next(iter(blocks.values())).weight_x
    return Certificate(
        learner=type(model).__name__,
        how=how,
        exact=False,
        batches=tuple(known),
        examples=() if examples is None else tuple(rows),
        unrecorded=tuple(sorted(set(asked).difference(known))),
        columns=tuple((part.start, part.stop) for part in ranges),
        num_columns=len(every),
        share=share,
        others_affected=tuple(others),
        machine=describe_bits(like.device, like.dtype),
        sha256_before=before,
        sha256_after=fingerprint(model),
        guaranteed=guaranteed(how, optimizer, codes),
        not_guaranteed=not_guaranteed(model, how, optimizer, codes, _outside(model)),
    )


def affected_batches(
    ledger: Ledger, batches: Iterable[int] | None, examples: Iterable[int] | Tensor | None
) -> tuple[list[int], list[int]]:
    """The batches that are meant, and those of them that the ledger has; it must have one at least."""
    if (batches is None) == (examples is None):
        raise ValueError("either batches or examples must be given, got " + ("neither" if batches is None else "both"))
    if batches is None:
        assert examples is not None
        asked = ledger.batches_with(examples)
    else:
        asked = sorted(set(batches))
    learned = set(ledger.batches)
    known = [id for id in asked if id in learned]
    if not known:
        name = "examples" if batches is None else "batches"
        raise ValueError(f"{name} must have been learned from, got none that the ledger has an entry of")
    return asked, known


@torch.no_grad()
def _forget_in_block(
    block: PFCBlock, columns: Tensor, how: How, optimizer: Optimizer | None, generator: torch.Generator | None
) -> None:
    if how == "remove":
        block.remove_basis(columns.tolist(), optimizer=optimizer)
        return
    for weight in (block.weight_x, block.weight_y):
        weight.grad = None  # may come from what is to be forgotten
        fresh = weight.new_zeros((*weight.shape[:-1], len(columns)))
        if how == "reinitialize":
            block.draw_(fresh, generator)
        weight.index_copy_(-1, columns, fresh)
        if optimizer is not None:
            for state in state_of_columns(optimizer, weight):
                state.index_fill_(-1, columns, 0)
    block.reset_step_size()


def _forget_codes(
    codes: WarmCodes, name: str, floor: float, columns: Tensor, rows: list[int], *, removed: bool
) -> None:
    held = codes.state_dict()  # the codes themselves: what is put here is used from the next batch on
    code = held[name]
    code.index_fill_(-1, columns, floor)
    code.index_fill_(-2, torch.tensor(rows, dtype=torch.int64, device=code.device), floor)
    if removed:
        kept = torch.ones(code.shape[-1], dtype=torch.bool, device=code.device).index_fill_(0, columns, False)
        held[name] = code[..., kept]


def _check_something_is_left(blocks: Mapping[str, PFCBlock], columns: Mapping[str, Tensor]) -> None:
    for name, block in blocks.items():
        if not block.weight_x.detach().index_fill(-1, columns[name], 0).any():
            raise ValueError(
                f"the columns to forget must leave at least one in every block, got all {block.num_basis} of "
                f"{name or 'the block'}; training without a window writes every column: use how='reinitialize' to "
                "start anew, or retrain_without()"
            )


def _outside(model: nn.Module) -> list[str]:
    """Parameters that belong to no PFC block."""
    inside = {id(p) for block in named_blocks(model).values() for p in block.parameters()}
    return [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in inside]
