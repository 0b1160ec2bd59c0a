from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchpfc import FISTA, PFCBlock, ResidualPFC, RMSprop, RMSpropSLW, Windowed, keep_nonnegative
from torchpfc.checkpoint import CorruptFileError
from torchpfc.data.streams import Stream, fixed_shuffle
from torchpfc.optim.ledger import Ledger
from torchpfc.training import BestWeights, EarlyStopping, SquaredErrors, WarmCodes, evaluate, fit, random_stream
from torchpfc.unlearning import Snapshots, fingerprint, forget, load_ledger, retrain_without, save_ledger

IN, OUT, BASIS, BATCHES, BATCH_SIZE = 5, 3, 10, 6, 3
COUNT = BATCHES * BATCH_SIZE


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_data() -> tuple[Tensor, Tensor]:
    x = torch.rand(COUNT, IN, generator=seeded(1), dtype=torch.float64)
    return x, torch.eye(OUT, dtype=torch.float64).repeat(COUNT, 1)[:COUNT]


class Training:
    """A whole training: every object that has a state, made from scratch."""

    def __init__(
        self,
        *,
        epochs: int = 2,
        every: int = 2,
        kind: str = "RMSpropSLW",
        width: int = 3,
        speed: float = 0.5,
        reset: bool = True,
        warm: bool = False,
        num_basis: int = BASIS,
        seed: int | None = None,
        residual: bool = False,
        folder: Path | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        options: dict[str, Any] = {"solver": FISTA.paper(4), "init_range": (0.0, 0.5), "dtype": torch.float64}
        make: Any = ResidualPFC if residual else PFCBlock
        self.model: nn.Module = make(IN, OUT, num_basis, generator=seeded(0), **options)
        self.growth = random_stream(0, "growth")
        self.optimizer = self.make_optimizer(kind, width=width, sweep_speed=speed)
        keep_nonnegative(self.model, self.optimizer)
        self.stream = Stream(*make_data(), fixed_shuffle(COUNT, seed=2), batch_size=BATCH_SIZE, seed=seed)
        self.codes = WarmCodes(self.model, COUNT) if warm else None
        self.stopping, self.best = EarlyStopping(patience=50), BestWeights(self.model)
        self.ledger = Ledger() if ledger is None else ledger
        self.epochs, self.reset = epochs, reset
        self.finished: list[int] = []
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        also: dict[str, Any] = {"stopping": self.stopping.state, "growth": self.growth, "scheduler": self.scheduler}
        if num_basis == BASIS:  # a copy of the best weights cannot follow growth
            also["best"] = self.best.values
        self.snapshots = Snapshots(
            self.model, self.optimizer, self.ledger, every=every, codes=self.codes, also=also, folder=folder
        )

    def make_optimizer(self, kind: str, **window: Any) -> Any:
        if kind == "RMSprop":
            return RMSprop(self.model.parameters(), lr=1e-2, weight_decay=1e-3)
        if kind == "Adam":
            return Windowed(torch.optim.Adam(self.model.parameters(), lr=1e-2), grow=self.grow, **window)
        return RMSpropSLW(self.model.parameters(), lr=1e-2, weight_decay=1e-3, grow=self.grow, **window)

    def grow(self, missing: int) -> None:
        blocks = [module for module in self.model.modules() if isinstance(module, PFCBlock)]
        for block in blocks:
            block.add_basis(missing, optimizer=self.optimizer, generator=self.growth)

    def train(self) -> None:
        batches = self.snapshots.follow(self.stream)
        for stats in fit(
            self.model,
            self.optimizer,
            batches,
            SquaredErrors(0.5, 0.5),
            epochs=self.epochs,
            first_epoch=self.snapshots.epoch,
            codes=self.codes,
        ):
            self.finished.append(stats.epoch)
            if self.reset and not isinstance(self.optimizer, RMSprop):
                self.optimizer.reset_window()
            self.scheduler.step()
            valid = evaluate(self.model, [make_data()], SquaredErrors())
            better = self.stopping.update(valid.loss, valid.accuracy)
            if "best" in self.snapshots.also:
                self.best.keep(self.model, better)

    def state(self) -> dict[str, Any]:
        """All that there is to compare."""
        with torch.no_grad():
            predictions = self.model.eval()(make_data()[0])
        self.model.train()
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "codes": None if self.codes is None else self.codes.state_dict(),
            "stopping": self.stopping.state,
            "scheduler": self.scheduler.state_dict(),
            "best": self.best.values,
            "growth": self.growth.get_state(),
            "ledger": self.ledger.state_dict(),
            "predictions": predictions,
        }


def assert_same(one: Any, other: Any, path: str = "") -> None:
    """Equal to the last bit, and of the same types."""
    assert type(one) is type(other), path
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype, path
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{path}.{i}")
    else:
        assert one == other, path


def never_saw(batches: Iterable[int] = (), examples: Iterable[int] = (), **options: Any) -> Training:
    training = Training(**options)
    training.snapshots.skip(batches=batches, examples=examples)
    training.train()
    return training


# Bit for bit


@settings(max_examples=20)
@given(
    batches=st.sets(st.integers(0, BATCHES - 1), min_size=1, max_size=BATCHES - 1),
    epochs=st.integers(1, 3),
    every=st.integers(1, 7),
    width=st.integers(1, 4),
    speed=st.floats(0, 1),
    reset=st.booleans(),
    warm=st.booleans(),
    kind=st.sampled_from(["RMSpropSLW", "Adam", "RMSprop"]),
)
def test_a_replay_equals_a_training_that_never_saw_the_batches(batches: set[int], **options: Any) -> None:
    if not options["reset"]:  # enough columns to be swept once
        options["speed"] = options["speed"] / 3
    training = Training(**options)
    training.train()
    saw = fingerprint(training.model)
    report = retrain_without(training.train, training.snapshots, batches=batches)
    expected = never_saw(batches, **options)
    assert_same(training.state(), expected.state())
    assert training.snapshots.taken_at == expected.snapshots.taken_at
    assert report.batches == tuple(sorted(batches))
    assert report.resumed_at <= min(batches)
    assert report.resumed_at + report.replayed == options["epochs"] * BATCHES
    assert report.share == report.replayed / (options["epochs"] * BATCHES)
    assert report.sha256_before == saw != report.sha256_after == fingerprint(expected.model)


@settings(max_examples=8)
@given(examples=st.sets(st.integers(0, COUNT - 1), min_size=1, max_size=9), warm=st.booleans())
def test_a_replay_without_examples_equals_a_training_that_never_saw_them(examples: set[int], warm: bool) -> None:
    training = Training(warm=warm)
    training.train()
    report = retrain_without(training.train, training.snapshots, examples=torch.tensor(sorted(examples)))
    assert_same(training.state(), never_saw(examples=examples, warm=warm).state())
    assert training.ledger.batches_with(examples) == []
    assert 0 < report.share <= 1


def test_examples_that_fill_a_batch_make_it_a_skipped_one() -> None:
    training, other = Training(every=3), Training(every=3)
    rows = training.stream.rows_of(4).tolist()
    training.train()
    other.train()
    retrain_without(training.train, training.snapshots, examples=rows)
    retrain_without(other.train, other.snapshots, batches=[4])
    assert_same(training.state(), other.state())


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 3},
        {"residual": True, "warm": True},
        {"num_basis": 5, "speed": 1.3, "reset": False},
        {"num_basis": 5, "speed": 1.3, "reset": False, "kind": "Adam", "residual": True},
    ],
    ids=["new order each epoch", "two blocks", "growth", "growth of two blocks"],
)
def test_a_replay_is_exact_in_other_trainings_too(options: dict[str, Any]) -> None:
    training = Training(every=2, **options)
    training.train()
    batches = [3, 8] if "seed" in options else [3]
    retrain_without(training.train, training.snapshots, batches=batches)
    assert_same(training.state(), never_saw(batches, every=2, **options).state())


def test_forgetting_step_by_step_equals_forgetting_at_once() -> None:
    training = Training(warm=True, every=3)
    training.train()
    resumed = [retrain_without(training.train, training.snapshots, batches=[id]).resumed_at for id in (1, 5, 4)]
    assert resumed == [0, 3, 3]  # one snapshot serves twice
    assert_same(training.state(), never_saw([1, 4, 5], warm=True, every=3).state())


@pytest.mark.parametrize("how", ["zero", "reinitialize", "remove"])
def test_columns_can_be_forgotten_first_and_exactly_later(how: Any) -> None:
    training = Training(warm=True)
    training.train()
    forget(training.model, training.ledger, batches=[3], how=how, optimizer=training.optimizer, codes=training.codes)
    retrain_without(training.train, training.snapshots, batches=[3])
    assert_same(training.state(), never_saw([3], warm=True).state())


def test_snapshots_alone_change_nothing() -> None:
    one, other = Training(every=1, warm=True), Training(every=100, warm=True)
    one.train()
    other.train()
    assert_same(one.state(), other.state())
    assert one.snapshots.taken_at == list(range(12))
    assert other.snapshots.taken_at == [0]


@pytest.mark.parametrize("kind", ["RMSpropSLW", "RMSprop"])
def test_a_replay_equals_a_plain_loop_that_passes_the_batches_by(kind: str) -> None:
    training, plain = (Training(kind=kind, reset=False, speed=0.4) for _ in range(2))
    training.train()
    retrain_without(training.train, training.snapshots, batches=[1, 4])
    objective = SquaredErrors(0.5, 0.5)
    for _ in range(plain.epochs):
        for id, (x, target, rows) in zip(plain.stream.ids, plain.stream, strict=True):
            if id in (1, 4):
                if kind == "RMSpropSLW":
                    plain.optimizer.skip()
                continue
            plain.optimizer.zero_grad()
            objective(plain.model, x, target).loss.backward()
            with plain.ledger.batch(id, rows):
                plain.optimizer.step()
        plain.scheduler.step()
    for part in ("model", "optimizer", "ledger", "predictions"):
        assert_same(training.state()[part], plain.state()[part])


def test_several_streams_one_after_another() -> None:
    """The number of the task stands in a dict that the snapshots keep."""

    def make() -> tuple[Training, Any]:
        training, task = Training(every=2, reset=False, speed=0.2), {"number": 0}
        training.snapshots.also["task"] = task
        streams = [
            Stream(*make_data(), rows, batch_size=BATCH_SIZE, first_id=3 * number)
            for number, rows in enumerate(torch.arange(COUNT).split(COUNT // 2))
        ]

        def train() -> None:
            while task["number"] < len(streams):
                training.stream = streams[task["number"]]
                training.train()
                training.optimizer.state.clear()
                task["number"] += 1

        return training, train

    (training, train), (expected, train_expected) = make(), make()
    train()
    report = retrain_without(train, training.snapshots, batches=[4])
    expected.snapshots.skip(batches=[4])
    train_expected()
    assert_same(training.state(), expected.state())
    assert training.finished == [0, 1, 0, 1, 0, 1]  # the second task again, from its first epoch on
    assert report.resumed_at == 6


# Files


def test_snapshots_in_a_folder_serve_another_process(tmp_path: Path) -> None:
    options: dict[str, Any] = {"warm": True, "kind": "Adam"}
    first = Training(folder=tmp_path / "snapshots", **options)
    first.train()
    save_ledger(tmp_path / "ledger.json", first.ledger)

    second = Training(folder=tmp_path / "snapshots", ledger=load_ledger(tmp_path / "ledger.json"), **options)
    report = retrain_without(second.train, second.snapshots, batches=[3])
    assert report.resumed_at == 2
    assert_same(second.state(), never_saw([3], **options).state())

    third = Training(folder=tmp_path / "snapshots", **options)  # goes on, and still leaves the batch out
    assert third.snapshots.rewind() == 10
    third.train()
    assert_same(third.state(), second.state())
    folders = sorted(path.name for path in (tmp_path / "snapshots").iterdir() if path.is_dir())
    assert folders == [f"{step:08d}" for step in range(0, 12, 2)]


def test_snapshots_that_had_seen_the_batch_are_gone() -> None:
    training = Training(every=1)
    training.train()
    training.snapshots.rewind(3)
    assert training.snapshots.taken_at == [0, 1, 2, 3]
    assert training.snapshots.epoch == 0
    assert training.snapshots.steps == 3


def test_a_new_training_does_not_mix_with_old_snapshots(tmp_path: Path) -> None:
    Training(folder=tmp_path).train()
    with pytest.raises(RuntimeError, match="must not hold snapshots where a training begins; call rewind"):
        Training(folder=tmp_path).train()


# Errors and reports


def test_a_replay_has_to_go_on_where_the_snapshot_is() -> None:
    training = Training(every=4, epochs=2)
    training.train()
    training.snapshots.rewind(8)
    assert training.snapshots.epoch == 1
    batches = training.snapshots.follow(training.stream)
    assert len(batches) == BATCHES
    batches.set_epoch(0)
    with pytest.raises(
        RuntimeError, match="training must go on at epoch 1 with batch 2, got epoch 0 with batches 0 to 5"
    ):
        next(iter(batches))


def test_where_the_rest_of_an_epoch_is_skipped_the_replay_begins_earlier() -> None:
    training = Training(every=1)
    training.train()
    report = retrain_without(training.train, training.snapshots, batches=[4, 5])
    assert report.resumed_at == 3
    assert_same(training.state(), never_saw([4, 5], every=1).state())


def test_batches_that_were_never_learned_are_refused() -> None:
    training = Training()
    with pytest.raises(ValueError, match="batches must have been learned from, got none"):
        retrain_without(training.train, training.snapshots, batches=[0])
    with pytest.raises(RuntimeError, match="there must be a snapshot before what is to be forgotten, got none"):
        training.snapshots.rewind()
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        Training(every=0)


def test_the_report_prints_the_share() -> None:
    training = Training(every=3)
    training.train()
    text = str(retrain_without(training.train, training.snapshots, batches=[3, 77]))
    assert "Forgot 1 batches (replay, exactly)." in text and "Columns" not in text
    assert "Replayed 9 of 12 batches, 75.0%" in text
    assert fingerprint(training.model) in text


@pytest.mark.parametrize("in_memory", [True, False])
def test_forgetting_everything_is_refused_and_changes_nothing(in_memory: bool, tmp_path: Path) -> None:
    training = Training(every=2, folder=None if in_memory else tmp_path)
    training.train()
    before, files = training.state(), {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for what in ({"batches": range(BATCHES)}, {"examples": range(COUNT)}):
        with pytest.raises(ValueError, match="batches must leave some to learn from, got all of them"):
            retrain_without(training.train, training.snapshots, **what)
        assert_same(training.state(), before)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    retrain_without(training.train, training.snapshots, batches=[3])
    assert_same(training.state(), never_saw([3]).state())


def test_a_snapshot_that_is_not_there_is_named_before_anything_changes(tmp_path: Path) -> None:
    training = Training(folder=tmp_path)
    training.train()
    (tmp_path / "00000002" / "state.json").unlink()
    before, index = training.state(), (tmp_path / "snapshots.json").read_bytes()
    with pytest.raises(CorruptFileError, match=r"00000002 must hold a snapshot of this training \(no state"):
        retrain_without(training.train, training.snapshots, batches=[3])
    assert_same(training.state(), before)
    assert (tmp_path / "snapshots.json").read_bytes() == index


def test_a_branch_leaves_the_snapshots_as_they_are(tmp_path: Path) -> None:
    training = Training(folder=tmp_path / "one")
    training.train()
    files = {path: path.read_bytes() for path in (tmp_path / "one").rglob("*") if path.is_file()}
    training.snapshots.branch(tmp_path / "other")
    retrain_without(training.train, training.snapshots, batches=[3])
    assert_same(training.state(), never_saw([3]).state())
    assert {path: path.read_bytes() for path in (tmp_path / "one").rglob("*") if path.is_file()} == files
    first = Training(folder=tmp_path / "one", ledger=Ledger())
    first.snapshots.rewind()
    first.train()
    assert_same(first.state(), never_saw().state())
    with pytest.raises(RuntimeError, match="snapshots must be in a folder to be copied"):
        Training().snapshots.branch(tmp_path / "memory")


def test_snapshots_that_an_earlier_process_did_not_delete_are_gone_after_the_next_rewind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(folder=tmp_path)
    training.train()
    with monkeypatch.context() as patch:
        patch.setattr("torchpfc.unlearning.snapshots.shutil.rmtree", lambda path: None)
        training.snapshots.rewind(3, batches=[3])
    again = Training(folder=tmp_path)
    again.snapshots.rewind()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["00000000", "00000002"]
