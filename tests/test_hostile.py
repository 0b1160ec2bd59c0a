"""Every kind of saved folder, damaged by accident or on purpose: refused in one line, or loaded, and always at once."""

import hashlib
import json
import os
import random
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("safetensors")

from tests.unlearning.trained import make_block, make_stream
from torchpfc import PFCBlock, RMSpropSLW
from torchpfc.audio.models import load_separator, save_separator
from torchpfc.checkpoint import CorruptFileError, load_checkpoint, save_checkpoint, states
from torchpfc.data.formats import DataError
from torchpfc.explorer.loading import load
from torchpfc.explorer.session import Session
from torchpfc.machine import CPU_INFO
from torchpfc.nn.recurrent import VanillaRNN
from torchpfc.optim.ledger import Ledger
from torchpfc.paper.results import Result
from torchpfc.sklearn import PFCClassifier, PFCRegressor, PFCTransformer
from torchpfc.training import SquaredErrors, fit
from torchpfc.unlearning import (
    Snapshots,
    fingerprint,
    load_ledger,
    load_model,
    save_ledger,
    save_model,
)

EARLIER = Path(__file__).parent / "fixtures" / "0.1.0"
X = np.random.default_rng(0).random((40, 6))
Y = np.arange(40) % 3


class Kind(NamedTuple):
    """A kind of folder."""

    make: Callable[[Path], object]
    answers: Callable[[Path], Any]
    """What is in it, to compare."""
    sealed: bool = True
    """Whether every change is noticed."""


def make_model(folder: Path) -> None:
    ledger = Ledger()
    for id in range(3):
        ledger.record(id, range(2 * id, 2 * id + 3), rows=[id, id + 3])
    block = PFCBlock(64, 10, 8, generator=torch.Generator().manual_seed(0))
    save_model(folder, block, ledger, {"config": {"dataset": "digits"}})


def answers_of_model(folder: Path) -> Any:
    saved = load_model(folder)
    return fingerprint(saved.block), saved.ledger.state_dict(), saved.about, saved.ledger.writers(8)


def explored(folder: Path) -> Any:
    session = Session(load(folder))
    return session.time(), session.part(0), session.explain(example=0), session.forget([0])


def make_taught(folder: Path) -> None:
    model = PFCClassifier(random_state=0, parts_per_batch=2, validation_fraction=0.3)
    for k in range(3):
        model.partial_fit(X[k::3], np.array(["abc"[k]] * len(X[k::3])), classes=["a", "b", "c"])
    model.save_pretrained(folder)


def taught_numbers(model: Any, *targets: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for k in range(2):
            model.partial_fit(X[k::2], *(target[k::2] for target in targets))
        model.save_pretrained(folder)

    return make


def make_ledger(folder: Path) -> None:
    ledger = Ledger()
    ledger.record(2, range(3, 5), rows=[1, 4])
    save_ledger(folder / "ledger.json", ledger)


def snapshots_in(folder: Path) -> Snapshots:
    block = make_block()
    return Snapshots(block, RMSpropSLW(block.parameters(), width=4, sweep_speed=2), Ledger(), every=4, folder=folder)


def train(folder: Path) -> None:
    snapshots = snapshots_in(folder)
    list(fit(snapshots.model, snapshots.optimizer, snapshots.follow(make_stream()), SquaredErrors(), epochs=1))


def rewound(folder: Path) -> Any:
    snapshots = snapshots_in(folder)
    snapshots.rewind()
    return fingerprint(snapshots.model), snapshots.ledger.state_dict(), snapshots.taken_at


STATE = {"round": 3, "best": [0.5, {"w": torch.ones(3)}], 7: (None, True), "text": "ä", "curve": [1.0, 2.5]}


def answers_of_checkpoint(folder: Path) -> Any:
    state = load_checkpoint(folder)
    if state is None:
        raise FileNotFoundError("nothing was saved")
    return state


def result_of(folder: Path) -> Any:
    return [vars(Result.load(path)) for path in sorted(folder.glob("*/*"))]


def saved(model: Any, *given: Any) -> Callable[[Path], object]:
    return lambda folder: model.fit(X, *given).save_pretrained(folder)


KINDS = {
    "model": Kind(make_model, answers_of_model),
    "explored": Kind(make_model, explored),
    "classifier": Kind(
        saved(PFCClassifier(4, max_iter=0, random_state=0), Y),
        lambda folder: PFCClassifier.from_pretrained(folder).predict_proba(X).tolist(),
    ),
    "regressor": Kind(
        saved(PFCRegressor(4, max_iter=0, random_state=0), X[:, 0]),
        lambda folder: PFCRegressor.from_pretrained(folder).predict(X).tolist(),
    ),
    "transformer": Kind(
        saved(PFCTransformer(3, max_iter=2, tol=0, random_state=0)),
        lambda folder: PFCTransformer.from_pretrained(folder).transform(X).tolist(),
    ),
    "taught": Kind(make_taught, lambda folder: PFCClassifier.from_pretrained(folder).predict_proba(X).tolist()),
    "taught regressor": Kind(
        taught_numbers(PFCRegressor(random_state=0, parts_per_batch=2), X[:, 0]),
        lambda folder: PFCRegressor.from_pretrained(folder).predict(X).tolist(),
    ),
    "taught transformer": Kind(
        taught_numbers(PFCTransformer(random_state=0, parts_per_batch=2)),
        lambda folder: PFCTransformer.from_pretrained(folder).transform(X).tolist(),
    ),
    "checkpoint": Kind(lambda folder: save_checkpoint(folder, STATE), answers_of_checkpoint),
    "snapshots": Kind(train, rewound, sealed=False),  # its index has none
    "ledger": Kind(make_ledger, lambda folder: load_ledger(folder / "ledger.json").state_dict(), sealed=False),
    "result": Kind(
        lambda folder: Result(experiment="e", config={"lr": 0.1}, seed=0, metrics={"a": 1.5}, curves={"c": [1.0]}).save(
            folder
        ),
        result_of,
        sealed=False,
    ),
    "separator": Kind(
        lambda folder: save_separator(folder, VanillaRNN(350, 4, 350)),
        lambda folder: [weight.tolist() for weight in load_separator(folder).model.state_dict().values()],
    ),
    "earlier model": Kind(
        lambda folder: shutil.copytree(EARLIER / "models" / "unlearning-0", folder), answers_of_model, sealed=False
    ),
    "earlier classifier": Kind(
        lambda folder: shutil.copytree(EARLIER / "estimators" / "PFCClassifier", folder),
        lambda folder: PFCClassifier.from_pretrained(folder).predict_proba(X).tolist(),
        sealed=False,
    ),
}

# Damage to any file


def truncate(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))])


def flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 1, 5])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def garble(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    place = chance.randrange(len(data))
    path.write_bytes(data[:place] + b"\xff\xfe\x00" + data[place:])


def nest(path: Path, chance: random.Random) -> None:
    depth = chance.choice([60, 900, 100_000])
    opening, closing = chance.choice([(b"[", b"]"), (b'{"a":', b"}")])
    path.write_bytes(b'{"state": ' + opening * depth + b"1" + closing * depth + b"}")


def widen(path: Path, chance: random.Random) -> None:
    path.write_bytes(b'{"state": [' + b"[]," * 10_000_000 + b"[]]}")


def link(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.symlink_to(chance.choice(["/etc/passwd", "/dev/zero", "/proc/self/mem", "/nowhere", path.parent]))


def link_to_itself_elsewhere(path: Path, chance: random.Random) -> None:
    elsewhere = path.parent.parent / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def pipe(path: Path, chance: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def make_folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def grow(path: Path, chance: random.Random) -> None:
    os.truncate(path, 2**43)  # of holes: it takes no room


def empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def remove(path: Path, chance: random.Random) -> None:
    path.unlink()


def repeat_key(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    if path.suffix == ".json":
        path.write_bytes(b'{"state": {}, "sha256": 1, "batches": [],' + data[data.index(b"{") + 1 :])


ACCIDENTS = [
    truncate,
    flip,
    flip,
    garble,
    nest,
    widen,
    link,
    link_to_itself_elsewhere,
    pipe,
    make_folder,
    grow,
    empty,
    remove,
    repeat_key,
]

# What somebody writes on purpose: JSON and tensors that say something else, with checksums and seals that are right

VALUES: list[Any] = [
    10**12,
    10**15,
    10**400,
    -1,
    2**31,
    0,
    1.5,
    1e308,
    float("nan"),
    float("inf"),
    True,
    None,
    "x",
    "",
    "x" * 10_000,
    [],
    {},
    [[0, 10**12]],
    [[[[[[[[]]]]]]]],
    {"<tensor>": "0:state.weights.weight_x"},
    {"<pairs>": [[[], 1]]},
    {"<tuple>": 3},
    "/etc/passwd",
    "../../../../etc/passwd",
    "/dev/zero",
    "<U300000000",
    "|O",
    "V99",
    "f4,(100000,100000)f8",
    "meta",
    "cuda:99",
]


def places(content: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every list or dict inside, with every key of it."""
    for key in list(content) if isinstance(content, dict) else range(min(len(content), 50)):
        found.append((content, key))
        if isinstance(content[key], dict | list):
            places(content[key], found)
    return found


def write_sealed(path: Path, content: Any) -> None:
    if isinstance(content, dict) and "seal" in content:
        content["seal"] = states._seal(content)
    path.write_text(json.dumps(content))


def lie(folder: Path, chance: random.Random) -> None:
    path = chance.choice(sorted(folder.rglob("*.json")))
    content = json.loads(path.read_text())
    holder, key = chance.choice(places(content, []))
    if chance.random() < 0.2:
        del holder[key]
    else:
        holder[key] = chance.choice(VALUES)
    write_sealed(path, content)


def lie_in_tensors(folder: Path, chance: random.Random) -> None:
    paths = sorted(folder.rglob("*.safetensors"))
    if not paths:
        return lie(folder, chance)
    path = chance.choice(paths)
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    names = [name for name in header if name != "__metadata__"]
    tensor = header[chance.choice(names)]
    what = chance.randrange(7)
    if what == 0:
        tensor["shape"] = chance.choice([[2**40, 2**40], [10**12], [0, 2**40], [0, 2**62], [-1], "x", [1] * 5000, []])
    elif what == 1:
        tensor["dtype"] = chance.choice(["F64", "I8", "C64", "F4", "BOOL", "F8_E4M3", "<U300000000", 3])
    elif what == 2:
        tensor["data_offsets"] = chance.choice([[0, 10**15], [5, 1], [0], [0, 0]])
    elif what == 3:
        tensor["shape"], tensor["data_offsets"] = [0, 2**30], [0, 0]
    elif what == 4:
        begin, end = tensor["data_offsets"]
        if tensor["dtype"] in ("F32", "F64") and begin < end:
            kind = np.float32 if tensor["dtype"] == "F32" else np.float64
            body[begin : begin + np.dtype(kind).itemsize] = np.array(chance.choice([np.nan, np.inf]), kind).tobytes()
    elif what == 5:
        header = chance.choice([[], {}, {"a": None}, {**header, "more": tensor}])
    text = json.dumps(header).encode()
    if what == 6:
        text = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    length = chance.choice([len(text)] * 4 + [2**40, 2**63, 0])
    data = length.to_bytes(8, "little") + text + bytes(body)
    digest = hashlib.sha256(data).hexdigest()
    earlier = path.name
    path.unlink()
    path = path.with_name(f"{digest[:16]}.safetensors")
    path.write_bytes(data)
    for named in path.parent.glob("*.json"):
        content = json.loads(named.read_text())
        if content.get("tensors") == earlier:
            write_sealed(named, {**content, "tensors": path.name, "sha256": digest})


# What is watched while a folder is read

OPENED: list[tuple[str, int]] | None = None


def _watch(event: str, given: tuple[Any, ...]) -> None:
    if event == "open" and OPENED is not None and isinstance(given[0], str | bytes | os.PathLike):
        OPENED.append((os.fsdecode(given[0]), given[2] or 0))


sys.addaudithook(_watch)


@contextmanager
def watching() -> Iterator[list[tuple[str, int]]]:
    """The files that are opened, with at most 3 GiB of memory more."""
    global OPENED
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    OPENED = found = []
    resource.setrlimit(resource.RLIMIT_AS, (now + 3 * 2**30, hard))
    try:
        yield found
    finally:
        OPENED = None
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def is_inside(name: str, flags: int, folder: Path) -> bool:
    path = Path(name)
    if path == CPU_INFO:
        return flags & os.O_ACCMODE == os.O_RDONLY
    if path.parent.resolve().is_relative_to(folder):
        return not path.is_symlink() or bool(flags & os.O_NOFOLLOW)
    return path.suffix in (".py", ".pyc") or path.is_relative_to(sys.prefix) or path.is_relative_to(sys.base_prefix)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """Makes a folder of each kind once, and loads it."""
    made: dict[str, tuple[Path, Any]] = {}

    def original(name: str) -> tuple[Path, Any]:
        if name not in made:
            folder = tmp_path_factory.mktemp("kinds") / "saved"
            KINDS[name].make(folder)
            made[name] = folder, repr(KINDS[name].answers(folder))
        return made[name]

    return original


def check(seed: int, original: Callable[[str], tuple[Path, Any]], tmp_path: Path) -> None:
    chance = random.Random(seed)
    name = list(KINDS)[seed % len(KINDS)]
    source, expected = original(name)
    folder = Path(shutil.copytree(source, tmp_path.resolve() / "saved"))
    purpose = chance.random() < 0.5
    if purpose:
        chance.choice([lie, lie, lie_in_tensors])(folder, chance)
    else:
        chance.choice(ACCIDENTS)(chance.choice(sorted(p for p in folder.rglob("*") if p.is_file())), chance)
    begin, refusal, found = time.process_time(), None, None
    with watching() as opened:
        try:
            found = repr(KINDS[name].answers(folder))
        except (CorruptFileError, DataError, FileNotFoundError) as error:
            refusal = str(error)
        except (ValueError, RuntimeError) as error:
            refusal = str(error)
            assert refusal.startswith(("folder must hold", "there must be a snapshot", "device must", "batches must"))
    seconds = time.process_time() - begin
    assert seconds < 1, (name, seconds, refusal)
    assert not [path for path, flags in opened if not is_inside(path, flags, folder)]
    if refusal is not None:
        assert "\n" not in refusal and "allocate memory" not in refusal, refusal
        assert len(refusal) < 1000, refusal
    elif KINDS[name].sealed and not purpose:
        assert found == expected


def rewritten(folder: Path, **changed: Any) -> Path:
    """The folder of a taught classifier, with other tensors of its learner, and right checksums."""
    make_taught(folder)
    state = load_checkpoint(folder)
    state["taught"]["learner"].update(changed)
    save_checkpoint(folder, state)
    return folder


def coded(content: Any) -> torch.Tensor:
    return torch.tensor(list(json.dumps(content).encode()), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"portions.names": coded([[0, [0]], [1, [1]], [10**12, [2]]])}, "labels must be at most 44739242 for 6 parts"),
        ({"portions.names": coded([[0, [0]], [1, [1]], [2.5, [2]]])}, "portions must have a label and batches each"),
        ({"portions.names": torch.ones(3)}, "names must be bytes, got torch.float32"),
        ({"portions.names": torch.full((10**5,), ord("["), dtype=torch.uint8)}, "maximum recursion depth"),
        ({"portions.0.counts": torch.full((2,), torch.nan)}, "0.counts must be finite"),
        ({"portions.0.parts": torch.full((6, 2), torch.inf)}, "0.parts must be finite"),
    ],
)
def test_what_a_learner_cannot_have_learned_is_refused(changed: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError, match=reason):
        PFCClassifier.from_pretrained(rewritten(tmp_path, **changed))


def test_labels_of_a_type_that_takes_all_memory_are_refused(tmp_path: Path) -> None:
    KINDS["classifier"].make(tmp_path)
    for dtype, reason in (("<U300000", "labels must have at most 67108864 bytes"), ("<U300000000", "Expected `str`")):
        labels = {"dtype": dtype, "values": ["a"] * 100}
        state = load_checkpoint(tmp_path)
        state["extra"]["classes"] = labels
        save_checkpoint(tmp_path, state)
        with pytest.raises(CorruptFileError, match=reason):
            PFCClassifier.from_pretrained(tmp_path)


@pytest.mark.parametrize("source", ["/etc/passwd", "/dev/zero", "../secret.npz", ["digits"]])
def test_examples_are_not_read_from_where_a_model_says(source: Any, tmp_path: Path) -> None:
    (tmp_path / "secret.npz").write_bytes(b"secret")
    make_model(tmp_path / "model")
    saved = load_model(tmp_path / "model")
    save_model(tmp_path / "model", saved.block, saved.ledger, {"config": {"dataset": source}})
    with watching() as opened, pytest.raises(CorruptFileError, match=r"must name one of digits, .* as its data"):
        load(tmp_path / "model")
    assert all(Path(name).parent == tmp_path / "model" for name, _ in opened if not name.endswith(".pyc"))


def test_a_ledger_that_would_take_minutes_to_draw_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path)
    saved = load_model(tmp_path)
    for id in range(3, 6):
        saved.ledger.record(id, [])
    entries = saved.ledger.state_dict()
    entries["num_columns"] = 10_000_000
    for entry in entries["batches"]:
        entry["columns"] = [[0, 10_000_000]]
    saved.ledger.load_state_dict(entries)
    save_model(tmp_path, saved.block, saved.ledger, saved.about)
    with pytest.raises(CorruptFileError, match="must have a ledger of at most 20000000 columns in all, got 60000000"):
        load(tmp_path)


@pytest.mark.parametrize("seed", range(60))
def test_what_strangers_send_is_refused_or_loads(
    seed: int, originals: Callable[[str], tuple[Path, Any]], tmp_path: Path
) -> None:
    check(seed, originals, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60, 560))
def test_what_more_strangers_send_is_refused_or_loads(
    seed: int, originals: Callable[[str], tuple[Path, Any]], tmp_path: Path
) -> None:
    check(seed, originals, tmp_path)


@pytest.mark.parametrize("name", ["00000004", "."])
def test_snapshots_behind_a_link_are_not_read(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    train(folder)
    (folder / name).resolve().rename(tmp_path / "elsewhere")
    Path(os.path.normpath(folder / name)).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptFileError, match="must be a folder, got a link"):
        rewound(folder)
