"""The states that a training went through, to go back to one and on from there without some of the data."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc.checkpoint import (
    STATE_FILE,
    CorruptFileError,
    load_checkpoint,
    read_json,
    reading,
    save_checkpoint,
    write_atomically,
)
from torchpfc.data.streams import Stream, StreamBatch
from torchpfc.nn.block import replace_data
from torchpfc.nn.recording import named_blocks
from torchpfc.optim.ledger import Ledger, whole_numbers
from torchpfc.optim.windowed import WindowedOptimizer
from torchpfc.training import WarmCodes

INDEX_FILE = "snapshots.json"


class _Moment(NamedTuple):
    """When a snapshot was taken."""

    step: int
    """How many batches had come before, learned or skipped."""
    learned: int
    """How many steps the ledger had."""
    epoch: int
    next_id: int
    """The batch that was about to come."""
    last_id: int
    """The last batch of the epoch."""

    @property
    def rest(self) -> range:
        """The batches that were to come in the epoch."""
        return range(self.next_id, self.last_id + 1)


class Snapshots:
    """The states that a training went through, so that it can go back to one and on without some of the data.

    A snapshot holds the weights with the vector behind the solver's step size, the optimizer with its window, the warm
    codes, the ledger, and whatever else is named in `also`: it takes as much room as all these together. One is taken
    before the first batch and before every `every`-th from there. They are kept in memory or in a folder.

    A training that can be replayed is a function that starts at `epoch`, takes its batches from `follow`, and does
    whatever it does between epochs *after* an epoch, since it may start in the middle of one:

        def train():
            batches = snapshots.follow(stream)
            for stats in fit(model, optimizer, batches, objective, epochs=8, first_epoch=snapshots.epoch, codes=codes):
                optimizer.reset_window()

    What is random in it must follow from the epoch, or come from a generator in `also`. Training several streams, keep
    the number of the current one in a dict in `also`.

    Args:
        model: A model with PFC blocks.
        optimizer: Of its weights.
        ledger: Watches the optimizer from now on, and is told of every batch.
        every: Batches from one snapshot to the next.
        codes: The warm codes of the training.
        also: What else the training changes, by name: whatever has `state_dict` and `load_state_dict`, such as a
            learning rate scheduler, an `EarlyStopping` and `BestWeights`; generators; and dicts that it changes in
            place.
        folder: Where to keep the snapshots; None keeps them in memory. With those of an earlier process in it, call
            `rewind()` to go on at the last, or `retrain_without` with the ledger that was saved.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        ledger: Ledger,
        *,
        every: int,
        codes: WarmCodes | None = None,
        also: Mapping[str, Any] | None = None,
        folder: Path | None = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.model, self.optimizer, self.ledger, self.every = model, optimizer, ledger, every
        self.codes, self.also, self.folder = codes, dict(also or {}), folder
        self._moments: list[_Moment] = []
        self._states: dict[int, Any] = {}  # in memory: by the step
        self._skipped: set[int] = set()
        self._examples: set[int] = set()
        self.steps = 0
        """How many batches have come so far, learned or skipped."""
        self._resume: _Moment | None = None
        ledger.watch(optimizer)
        if folder is not None and (folder / INDEX_FILE).exists():
            self._load_index(folder)
        self._found = bool(self._moments)  # snapshots of an earlier process that nobody has gone back to yet

    @property
    def epoch(self) -> int:
        """The epoch to go on at: 0, or after a `rewind` that of the snapshot, until it has begun."""
        return 0 if self._resume is None else self._resume.epoch

    @property
    def taken_at(self) -> list[int]:
        """The steps before which a snapshot was taken."""
        return [moment.step for moment in self._moments]

    @property
    def passed_over(self) -> tuple[list[int], list[int]]:
        """The batches and the examples that `skip` and replays have named so far."""
        return sorted(self._skipped), sorted(self._examples)

    def follow(self, stream: Stream) -> Followed:
        """The batches of a stream, for `torchpfc.training.fit`, with a snapshot now and then and without what to skip.

        On a CUDA device call `fit` with `capture=False`: a recorded step calls no hooks, and moves no window.

        Args:
            stream: Where the batches come from.
        """
        return Followed(self, stream)

    def skip(self, *, batches: Iterable[int] = (), examples: Iterable[int] | Tensor = ()) -> None:
        """Passes over data from now on, in this training and in every replay.

        Args:
            batches: The window moves on as in a step, and nothing is learned.
            examples: They are taken out of their batches. A batch with no other examples is skipped.
        """
        self._pass_over(batches, examples)
        self._save_index()

    def rewind(
        self,
        learned: int | None = None,
        *,
        batches: Iterable[int] = (),
        examples: Iterable[int] | Tensor = (),
    ) -> int:
        """Puts everything back to the last snapshot at or before a step, and deletes those that came later.

        Args:
            learned: A step as the ledger counts them; None means the end.
            batches: What to skip from there on, as in `skip`.
            examples: What to skip from there on, as in `skip`.

        Returns:
            How many batches had come before the snapshot.
        """
        until = [moment for moment in self._moments if learned is None or moment.learned <= learned]
        if not until:
            raise RuntimeError("there must be a snapshot before what is to be forgotten, got none")
        batches, examples = whole_numbers(batches, "batches"), whole_numbers(examples, "examples")
        skipped = self._skipped.union(batches)
        # An epoch needs a batch to learn from: where all the rest of it is to be skipped, start a little earlier.
        moment = next((m for m in reversed(until) if not skipped.issuperset(m.rest)), None)
        if moment is None:
            raise ValueError("batches must leave some to learn from, got all of them; begin a new training instead")
        state = self._load(moment)
        self._pass_over(batches, examples)
        with self._reading(moment):
            self._restore(state)
        self._resume, self.steps, self._found = moment, moment.step, False
        self._moments = [other for other in self._moments if other.step <= moment.step]
        self._save_index()  # first, so that a process which ends here leaves nothing that names a deleted file
        self._delete_unnamed()
        return moment.step

    def branch(self, folder: Path) -> None:
        """Goes on in a copy of the folder of the snapshots, which stays as it is. The copy shares its files.

        Args:
            folder: The new one; what was there is deleted.
        """
        if self.folder is None:
            raise RuntimeError("snapshots must be in a folder to be copied, got those in memory")
        shutil.rmtree(folder, ignore_errors=True)
        copy_snapshots(self.folder, folder)
        self.folder = folder

    def _pass_over(self, batches: Iterable[int], examples: Iterable[int] | Tensor) -> None:
        skipped, passed = whole_numbers(batches, "batches"), whole_numbers(examples, "examples")
        self._skipped.update(skipped)
        self._examples.update(passed)

    def _rows_left(self, id: int, rows: Tensor) -> Tensor:
        """What is left of a batch, on the CPU; possibly nothing."""
        if id in self._skipped:
            return rows[:0]
        if not self._examples:
            return rows
        return rows[~torch.isin(rows, torch.tensor(sorted(self._examples)))]

    def _take(self, moment: _Moment) -> None:
        state = {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "codes": None if self.codes is None else self.codes.state_dict(),
            "ledger": self.ledger.state_dict(),
            "also": {name: _state_of(item) for name, item in self.also.items()},
        }
        if self.folder is None:
            self._states[moment.step] = deepcopy(state)
        else:
            save_checkpoint(self._folder_of(moment), state)
        self._moments.append(moment)
        self._save_index()

    def _load(self, moment: _Moment) -> Any:
        if self.folder is None:
            return deepcopy(self._states[moment.step])  # because what is put back will change in place
        with self._reading(moment):
            return _load(self._folder_of(moment))

    def _reading(self, moment: _Moment) -> AbstractContextManager[None]:
        in_memory = self.folder is None
        return nullcontext() if in_memory else reading(self._folder_of(moment), "a snapshot of this training")

    def _restore(self, state: Mapping[str, Any]) -> None:
        _restore_model(self.model, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.codes is not None:
            held = self.codes.state_dict()  # the codes themselves, which may have had other sizes then
            held.update({name: code.to(held[name].device) for name, code in state["codes"].items()})
        self.ledger.load_state_dict(state["ledger"])
        for name, item in self.also.items():
            _put_back(item, state["also"][name])

    def _delete_unnamed(self) -> None:
        """Deletes the snapshots that the index does not name, also those that an earlier process has left."""
        if self.folder is None:
            self._states = {step: self._states[step] for step in self.taken_at}
            return
        named = {self._folder_of(moment) for moment in self._moments}
        for path in self.folder.iterdir():
            if path.is_dir() and path.name.isdigit() and path not in named:
                shutil.rmtree(path)

    def _folder_of(self, moment: _Moment) -> Path:
        assert self.folder is not None
        return self.folder / f"{moment.step:08d}"

    def _load_index(self, folder: Path) -> None:
        from torchpfc.checkpoint.schema import IndexState, conform

        index = read_json(folder / INDEX_FILE)
        with reading(folder, "snapshots of a training"):
            conform(index, IndexState)
        self._skipped, self._examples = set(index["skipped"]), set(index["examples"])
        self._moments = [_Moment(*moment) for moment in index["moments"]]

    def _save_index(self) -> None:
        if self.folder is not None:
            index = {
                "skipped": sorted(self._skipped),
                "examples": sorted(self._examples),
                "moments": [list(moment) for moment in self._moments],
            }
            write_atomically(self.folder / INDEX_FILE, json.dumps(index) + "\n")


class Followed:
    """The batches of a stream, as `Snapshots.follow` gives them."""

    def __init__(self, snapshots: Snapshots, stream: Stream) -> None:
        self._snapshots, self._stream = snapshots, stream

    def __len__(self) -> int:
        return len(self._stream)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of an epoch."""
        self._stream.set_epoch(epoch)

    def __iter__(self) -> Iterator[StreamBatch]:
        kept, stream = self._snapshots, self._stream
        ids = self._ids()
        for id in ids:
            if kept.steps % kept.every == 0 and kept.steps not in kept.taken_at:  # as after a rewind
                kept._take(_Moment(kept.steps, kept.ledger.steps, stream.epoch, id, ids[-1]))
            rows = kept._rows_left(id, stream.rows_of(id))
            if len(rows):
                with kept.ledger.expect(id, rows):
                    yield stream.take(rows)
            elif isinstance(kept.optimizer, WindowedOptimizer):
                kept.optimizer.skip()
            kept.steps += 1

    def _ids(self) -> range:
        """The batches of this epoch, or the rest of it from where a rewind has led."""
        if self._snapshots._found:
            raise RuntimeError(
                f"{self._snapshots.folder} must not hold snapshots where a training begins; call rewind() to go on "
                "with them, or delete the folder"
            )
        ids, resume = self._stream.ids, self._snapshots._resume
        if resume is None:
            return ids
        if self._stream.epoch != resume.epoch or resume.next_id not in ids:
            raise RuntimeError(
                f"training must go on at epoch {resume.epoch} with batch {resume.next_id}, got epoch "
                f"{self._stream.epoch} with batches {ids.start} to {ids.stop - 1}; use first_epoch=snapshots.epoch"
            )
        self._snapshots._resume = None
        return range(resume.next_id, ids.stop)


def _load(folder: Path) -> Any:
    """A snapshot from its own folder: a link could lead to what somebody else has written."""
    from torchpfc.checkpoint.schema import conform_ledger

    if folder.is_symlink() or folder.parent.is_symlink():
        raise CorruptFileError(f"{folder} must be a folder, got a link; put the folder itself there")
    state = load_checkpoint(folder)
    if state is None:
        raise ValueError(f"no {STATE_FILE} in it")
    conform_ledger(state["ledger"])
    return state


def _restore_model(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Loads weights, also where a model has gained or lost columns since they were saved."""
    for name, block in named_blocks(model).items():
        prefix = f"{name}." if name else ""
        for key in ("weight_x", "weight_y"):
            saved, weight = state[prefix + key], block.get_parameter(key)
            if saved.shape != weight.shape:
                replace_data(weight, weight.new_empty(saved.shape))
        block.power_vector = block.power_vector.new_empty(state[f"{prefix}power_vector"].shape)
    model.load_state_dict(state)


def copy_snapshots(folder: Path, copy: Path) -> None:
    """Copies snapshots; both folders share their files where the disk can do that, and change without each other.

    Args:
        folder: That of the snapshots.
        copy: The new one.
    """
    shutil.copytree(folder, copy, symlinks=True, copy_function=_share)  # links stay links: they are not ours to follow


def _share(source: str, target: str) -> None:
    """A second name of a file, which is never changed in place, or a copy where the disk knows no such thing."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _state_of(item: Any) -> Any:
    if isinstance(item, torch.Generator):
        return item.get_state()
    return item.state_dict() if hasattr(item, "state_dict") else dict(item)


def _put_back(item: Any, state: Any) -> None:
    if isinstance(item, torch.Generator):
        item.set_state(state)
    elif hasattr(item, "load_state_dict"):
        item.load_state_dict(state)
    else:
        values = {key: _on_device_of(item.get(key), value) for key, value in state.items()}
        item.clear()
        item.update(values)


def _on_device_of(current: Any, value: Any) -> Any:
    return value.to(current.device) if isinstance(value, Tensor) and isinstance(current, Tensor) else value
