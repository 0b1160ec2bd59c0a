from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.paper.stopped import Killed
from torchpfc.checkpoint import CorruptFileError, save_checkpoint
from torchpfc.paper.devices import open_fabric
from torchpfc.paper.registry import Experiment, Job
from torchpfc.paper.results import Result, load_results
from torchpfc.paper.runner import UNFINISHED, Context, Group, make_groups, run_groups


@dataclass(frozen=True)
class Sized:
    size: int = 1
    colour: str = "red"

    def stack_key(self) -> object:
        return self.size

    def stack_size(self) -> int:
        return 3

    def shared_batch(self) -> int:
        return int(getattr(self, "batch_size", 1))

    def cost(self) -> float:
        return float(self.size)


@dataclass
class Recorder:
    """Stands for an experiment: keeps what it was asked for, and ends where it is told to."""

    calls: list[tuple[tuple[Job, ...], Context]] = field(default_factory=list)
    stop: bool = False
    saves: bool = False

    def __call__(self, jobs: Sequence[Job], context: Context) -> Iterator[Result]:
        self.calls.append((tuple(jobs), context))
        context.tick(0.5)
        if self.saves:
            save_checkpoint(context.folder, {})
        if self.stop:
            raise Killed
        for job in jobs:
            config = {"size": job.config.size, "colour": job.config.colour}
            yield Result(experiment="made", config=config, seed=job.seed, metrics={"stack": len(jobs)})


def make(recorder: Any, name: str = "made") -> Experiment:
    return Experiment(name, "made up", Sized, recorder, {})


JOBS = [Job(Sized(colour=colour), seed) for colour in ("red", "blue") for seed in range(2)]


@pytest.fixture
def fabric() -> Any:
    return open_fabric("cpu", "32")


def test_what_stacks_is_run_at_once_and_the_cheapest_first() -> None:
    large, small = [Job(Sized(5), seed) for seed in range(2)], [Job(Sized(1), seed) for seed in range(4)]
    first, second = make(None), make(None, "other")
    groups = make_groups([(first, [large[0], *small, large[1], small[0]]), (second, [Job(Sized(2), 0)])])
    assert [(group.experiment.name, group.work, len(group.jobs)) for group in groups] == [
        ("made", 1.0, 1),
        ("other", 2.0, 1),
        ("made", 3.0, 3),
        ("made", 10.0, 2),
    ]
    assert groups[2].jobs == tuple(small[:3]) and groups[0].jobs == (small[3],)  # asked for twice, run once


def test_processes_must_divide_a_batch() -> None:
    @dataclass(frozen=True)
    class Batched(Sized):
        batch_size: int = 50

    requests = [(make(None), [Job(Batched(), 0)])]
    assert len(make_groups(requests, processes=2)) == 1
    with pytest.raises(ValueError, match="batch_size must be a multiple of the 3 processes, got 50"):
        make_groups(requests, processes=3)
    with pytest.raises(
        ValueError, match=r"devices must be 1 for .* with Sized, whose batches cannot be divided, got 3"
    ):
        make_groups([(make(None), JOBS)], processes=3)
    assert len(make_groups([(make(None), JOBS)])) == 2


def test_the_key_of_a_group_is_that_of_its_jobs() -> None:
    experiment = make(None)
    key = Group(experiment, tuple(JOBS)).key
    assert Group(experiment, tuple(JOBS)).key == key
    others = [Group(experiment, tuple(JOBS[1:])), Group(make(None, "other"), tuple(JOBS))]
    others.append(Group(experiment, (replace(JOBS[0], seed=9), *JOBS[1:])))
    assert len({key, *(group.key for group in others)}) == 4


def test_every_job_leaves_a_result_and_nothing_else(
    fabric: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder()
    groups = make_groups([(make(recorder), JOBS)])
    options: dict[str, Any] = {"data_dir": tmp_path, "test": False, "precision": "64", "checkpoint_seconds": 7.0}
    new = run_groups(groups, fabric, tmp_path / "r", describe=lambda result: f"seed {result.seed}", **options)
    assert len(new) == 4
    assert sorted((result.config["colour"], result.seed) for result in load_results(tmp_path / "r")) == [
        ("blue", 0), ("blue", 1), ("red", 0), ("red", 1),
    ]  # fmt: skip
    files = [path for path in (tmp_path / "r").rglob("*") if path.is_file()]
    assert len(files) == 4 and all(path.parent.name == "made" for path in files)
    assert capsys.readouterr().err.splitlines() == ["seed 1", "seed 0", "seed 1", "seed 0"]
    context = recorder.calls[0][1]
    assert (context.data_dir, context.test, context.precision, context.checkpoint_seconds) == (
        tmp_path,
        False,
        "64",
        7.0,
    )
    assert context.folder == tmp_path / "r" / UNFINISHED / groups[0].key


def test_what_has_a_result_is_skipped(fabric: Any, tmp_path: Path) -> None:
    recorder = Recorder()
    assert len(run_groups(make_groups([(make(recorder), JOBS[:2])]), fabric, tmp_path)) == 2
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("made/*.json")}
    groups = make_groups([(make(recorder), JOBS[:3])])
    assert len(run_groups(groups, fabric, tmp_path)) == 1
    assert recorder.calls[-1][0] == (JOBS[2],)
    assert len(run_groups(groups, fabric, tmp_path)) == 0 and len(recorder.calls) == 2
    assert all(path.stat().st_mtime_ns == written for path, written in before.items())


def test_a_group_that_was_stopped_goes_on_with_the_jobs_it_began_with(fabric: Any, tmp_path: Path) -> None:
    recorder = Recorder()
    run_groups(make_groups([(make(recorder), JOBS[:1])]), fabric, tmp_path)
    groups = make_groups([(make(recorder), JOBS[:3])])
    recorder.stop = recorder.saves = True
    with pytest.raises(Killed):
        run_groups(groups, fabric, tmp_path)
    assert recorder.calls[-1][0] == tuple(JOBS[1:3]) and len(load_results(tmp_path)) == 1
    recorder.stop = False
    assert len(run_groups(groups, fabric, tmp_path)) == 2
    assert recorder.calls[-1][0] == tuple(JOBS[1:3])  # a stack of two, as it was begun
    assert recorder.calls[-1][1].folder == recorder.calls[-2][1].folder
    assert not (tmp_path / UNFINISHED).exists()


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_group_stopped_between_its_results_writes_them_all(
    written: int, fabric: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = make_groups([(make(Recorder()), JOBS[:3])])
    save, saved = Result.save, []

    def stop(result: Result, folder: Path) -> Path:
        if len(saved) == written:
            raise Killed
        saved.append(result)
        return save(result, folder)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Result, "save", stop)
        run_groups(groups, fabric, tmp_path)
    assert len(load_results(tmp_path)) == written
    assert len(run_groups(groups, fabric, tmp_path)) == 3
    results = load_results(tmp_path)
    assert len(results) == 3 and {result.metrics["stack"] for result in results} == {3}


def test_a_group_stopped_after_its_last_result_is_done(fabric: Any, tmp_path: Path) -> None:
    recorder = Recorder()
    groups = make_groups([(make(recorder), JOBS[:2])])
    run_groups(groups, fabric, tmp_path)
    left = tmp_path / UNFINISHED / groups[0].key
    left.mkdir(parents=True)
    (left / "jobs.json").write_text('{"jobs": []}')
    assert len(run_groups(groups, fabric, tmp_path)) == 0
    assert len(recorder.calls) == 1 and not left.exists()


def test_a_list_of_jobs_that_cannot_be_read_is_named(fabric: Any, tmp_path: Path) -> None:
    groups = make_groups([(make(Recorder()), JOBS[:2])])
    left = tmp_path / UNFINISHED / groups[0].key
    left.mkdir(parents=True)
    (left / "jobs.json").write_text("{")
    with pytest.raises(CorruptFileError, match=r"jobs\.json must hold JSON"):
        run_groups(groups, fabric, tmp_path)


def test_a_run_that_fails_before_its_first_checkpoint_leaves_nothing(fabric: Any, tmp_path: Path) -> None:
    recorder = Recorder(stop=True)
    groups = make_groups([(make(recorder), JOBS[:2])])
    with pytest.raises(Killed):
        run_groups(groups, fabric, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_progress_is_that_of_all_groups_together(fabric: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr("torchpfc.progress.Progress.at", lambda self, done, label=None: told.append(done))
    groups = make_groups([(make(Recorder()), [Job(Sized(1), 0), Job(Sized(4), 0)])])
    run_groups(groups, fabric, tmp_path)
    assert told == [0.0, 0.5, 1.0, 1.0, 3.0, 5.0]  # each begins where the one before ended


def test_only_the_first_process_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Second:
        """What a process that is not the first sees of Fabric."""

        is_global_zero = False
        told: ClassVar = [tuple(JOBS[:2]), ()]

        def broadcast(self, _: Any) -> Any:
            return self.told.pop(0)

        def barrier(self) -> None:
            pass

    recorder = Recorder()
    other: Any = Second()
    assert len(run_groups(make_groups([(make(recorder), JOBS[:2])]), other, tmp_path)) == 2
    assert len(recorder.calls) == 1 and list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_a_context_has_defaults(fabric: Any, tmp_path: Path) -> None:
    context = Context(fabric, tmp_path)
    context.tick(0.5)
    assert context.test and context.checkpoint_seconds == 60.0


# What others have left, or do at the moment


def begin(tmp_path: Path, fabric: Any, **options: Any) -> tuple[Recorder, Path]:
    """A group of two that was stopped after a checkpoint."""
    recorder = Recorder(stop=True, saves=True)
    with pytest.raises(Killed):
        run_groups(make_groups([(make(recorder), JOBS[:2])]), fabric, tmp_path, **options)
    recorder.stop = False
    (left,) = (tmp_path / UNFINISHED).iterdir()
    return recorder, left


@pytest.mark.parametrize("content", ['{"jobs": []}', '{"jobs": ["0123456789abcdef"]}', '{"jobs": 3}', "{}", None])
def test_a_list_that_names_no_job_of_the_group_is_refused_and_the_checkpoint_stays(
    content: str | None, fabric: Any, tmp_path: Path
) -> None:
    recorder, left = begin(tmp_path, fabric)
    (left / "jobs.json").unlink() if content is None else (left / "jobs.json").write_text(content)
    with pytest.raises(CorruptFileError, match=r"jobs\.json must name the runs that were begun together, got others"):
        run_groups(make_groups([(make(recorder), JOBS[:2])]), fabric, tmp_path)
    assert len(recorder.calls) == 1 and (left / "state.json").exists()


def test_what_was_begun_on_something_else_is_not_gone_on_with(fabric: Any, tmp_path: Path) -> None:
    recorder, left = begin(tmp_path, fabric, precision="32")
    groups = make_groups([(make(recorder), JOBS[2:]), (make(recorder), JOBS[:2])])
    with pytest.raises(CorruptFileError, match=r"precision must be 32, with which the run in .* was begun, got 64"):
        run_groups(groups, fabric, tmp_path, precision="64")
    assert len(recorder.calls) == 1 and (left / "state.json").exists()  # and the other group was not begun
    assert len(run_groups(groups, fabric, tmp_path, precision="32")) == 4


def test_a_result_that_is_gone_is_made_again_after_those_that_were_begun(fabric: Any, tmp_path: Path) -> None:
    run_groups(make_groups([(make(Recorder()), JOBS[:1])]), fabric, tmp_path)
    recorder = Recorder(stop=True, saves=True)
    groups = make_groups([(make(recorder), JOBS[:3])])
    with pytest.raises(Killed):
        run_groups(groups, fabric, tmp_path)
    next(tmp_path.glob("made/*.json")).unlink()
    recorder.stop = False
    assert len(run_groups(groups, fabric, tmp_path)) == 3
    assert [call[0] for call in recorder.calls[1:]] == [tuple(JOBS[1:3]), (JOBS[0],)]


@pytest.mark.parametrize("spoil", [lambda content: content[:-40], lambda content: content.replace("red", "blue")])
def test_a_result_that_is_none_does_not_count(spoil: Any, fabric: Any, tmp_path: Path) -> None:
    recorder = Recorder()
    run_groups(make_groups([(make(recorder), JOBS[:1])]), fabric, tmp_path)
    (path,) = tmp_path.glob("made/*.json")
    path.write_text(spoil(path.read_text()))
    with pytest.raises(CorruptFileError, match=r"\.json must hold"):
        run_groups(make_groups([(make(recorder), JOBS[:2])]), fabric, tmp_path)
    assert len(recorder.calls) == 1  # nothing was run before it was said


def test_locks_that_a_killed_process_has_left_are_deleted_where_all_is_done(fabric: Any, tmp_path: Path) -> None:
    groups = make_groups([(make(Recorder()), JOBS[:2])])
    run_groups(groups, fabric, tmp_path)
    with groups[0].held(tmp_path):
        left = {path: path.read_bytes() for path in (tmp_path / UNFINISHED).iterdir()}
    (tmp_path / UNFINISHED).mkdir()
    for path, content in left.items():
        path.write_bytes(content)
    assert len(left) == 4 and run_groups(groups, fabric, tmp_path) == []
    assert not (tmp_path / UNFINISHED).exists()


def test_jobs_that_another_process_runs_are_left_to_it_and_the_others_run(
    fabric: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder()
    mine, other = make_groups([(make(recorder), JOBS[:2])]), make_groups([(make(recorder), JOBS[1:3])])
    alone = make_groups([(make(recorder), JOBS[3:])])
    with other[0].held(tmp_path):
        assert len(run_groups([*mine, *alone], fabric, tmp_path)) == 1
    assert [call[0] for call in recorder.calls] == [(JOBS[3],)]
    told = capsys.readouterr().err.splitlines()[0]
    assert told.startswith(f"left to another: made with seed 1 in {tmp_path} must be free, got held by process")
    assert len(run_groups(mine, fabric, tmp_path)) == 2 and not (tmp_path / UNFINISHED).exists()
