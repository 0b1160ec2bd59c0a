from functools import partial
from pathlib import Path

import pytest
import torch

from tests.audio.test_stems import tone, write_song, write_stem_file
from torchpfc.audio import (
    STEMS,
    Audio,
    SeparationErrors,
    Track,
    all_clips,
    find_training_songs,
    hear_both,
    load_separator,
    load_tracks,
    train_separator,
    training,
    write_audio,
)
from torchpfc.cli import main
from torchpfc.data import DataError
from torchpfc.paper.songs import generate_track

SMALL = {"num_basis": 6, "batch_size": 2, "clip_seconds": 0.5, "progress": False}


@pytest.fixture
def songs(tmp_path: Path) -> Path:
    for number in range(2):
        track = generate_track(number, seconds=1.5)
        for stem, samples in track.stems.items():
            write_audio(tmp_path / "songs" / f"song {number}" / f"{stem}.wav", Audio(samples, track.rate))
    return tmp_path / "songs"


# Which songs


@pytest.mark.parametrize(
    ("names", "train", "valid"),
    [
        ("AB", "A", "B"),
        ("ABCDEFGHIJKLMN", "ABCDEFHIJKLM", "GN"),
        (["ANiMAL - Rockshow", "B", "C"], "BC", ["ANiMAL - Rockshow"]),
        (["ANiMAL - Rockshow", "Young Griffo - Pennies"], ["ANiMAL - Rockshow"], ["Young Griffo - Pennies"]),
        (["train/A", "train/B", "train/C", "test/D"], "AB", "C"),
        (["train/A", "valid/B", "test/D", "E"], "A", "B"),
    ],
    ids=["two", "every seventh", "usual", "only usual", "train", "valid"],
)
def test_some_songs_are_held_out(names: list[str], train: list[str], valid: list[str], tmp_path: Path) -> None:
    for name in names:
        write_song(tmp_path / name, count=5)
    found = find_training_songs(tmp_path)
    assert [path.name for path in found.train] == list(train) and [path.name for path in found.valid] == list(valid)


def test_one_song_is_not_enough(tmp_path: Path) -> None:
    write_song(tmp_path / "alone", count=5)
    with pytest.raises(DataError, match="must have at least two songs, one of them for validation, got alone alone"):
        find_training_songs(tmp_path)
    (tmp_path / "musdb18-7s").mkdir()
    with pytest.raises(DataError, match=r"must have the 144 excerpts of MUSDB18, got no test/.* and 143 others; run"):
        find_training_songs(tmp_path / "musdb18-7s")


# What is learned


def test_a_model_is_made_from_songs(songs: Path, tmp_path: Path) -> None:
    untrained, made = (
        train_separator(songs, tmp_path / str(steps), lr=lr, steps=steps, **SMALL)
        for steps, lr in ((1, 1e-9), (25, 3e-3))
    )
    assert made.folder == tmp_path / "25" and made.steps == 25 and made.valid_loss < 0.5 * untrained.valid_loss
    saved = load_separator(made.folder)
    assert saved.about == {"valid_loss": made.valid_loss, "steps": 25, "seed": 0}
    (valid,) = load_tracks([songs / "song 1"])
    x, target = hear_both(all_clips([valid.to(dtype=torch.float16)], 22_050))
    loss = SeparationErrors(saved.features, mask_weight=4.0)(saved.model, x, target).loss
    assert saved.power == 1.0 and loss.item() == pytest.approx(made.valid_loss, rel=1e-4)


def test_the_best_model_is_kept_and_training_stops(
    songs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [3.0, 1.0, 2.0, 2.0, 0.0, 3.0, 1.0]
    monkeypatch.setattr(training, "ROUND_STEPS", 1)
    monkeypatch.setattr(training, "PATIENCE", 2)
    monkeypatch.setattr(training, "_validate", lambda *_: torch.tensor(errors.pop(0)))
    made = train_separator(songs, tmp_path / "model", steps=100, **SMALL)
    assert (made.valid_loss, made.steps) == (1.0, 2) and errors.pop(0) == 0.0
    two = train_separator(songs, tmp_path / "two", steps=2, **SMALL)
    kept, same = (load_separator(model.folder).model.state_dict() for model in (made, two))
    assert all(torch.equal(kept[name], same[name]) for name in kept)


def test_a_folder_that_cannot_be_made_is_found_out_before_the_training(
    songs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "fit", lambda *_, **__: pytest.fail("it must not train"))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotADirectoryError):
        train_separator(songs, tmp_path / "file" / "model", steps=2, **SMALL)


def test_the_seed_decides(songs: Path, tmp_path: Path) -> None:
    one, same, other = (
        train_separator(songs, tmp_path / str(k), steps=2, seed=seed, **SMALL).valid_loss
        for k, seed in enumerate((0, 0, 1))
    )
    assert one == same != other


def test_no_more_clips_are_heard_for_validation_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "VALIDATION_CLIPS", 3)
    song = Track("song", {stem: torch.arange(9.0).unsqueeze(0) for stem in STEMS}, 44_100)
    assert training._spread([song], 1).vocals[:, 0].tolist() == [0.0, 4.0, 8.0]


def test_songs_of_any_kind_are_learned_from(songs: Path, tmp_path: Path) -> None:
    """Another rate, one channel and silent vocals; a stem file beside folders."""
    write_song(songs / "silent", count=20_000, channels=1, rate=22_050)
    write_audio(songs / "silent" / "vocals.wav", Audio(torch.zeros(2, 20_000), 22_050))
    write_stem_file(songs / "file.stem.mp4", [tone(440, count=30_000)] * 5, rate=48_000)
    assert 0 < train_separator(songs, tmp_path / "model", steps=2, **SMALL).valid_loss < 1


# What cannot be


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"clip_seconds": 1.6},
            r"songs/song 0 must be as long as a clip, 1\.60 seconds, got 1\.50; move it",
        ),
        ({"clip_seconds": 0.01}, r"clip_seconds must be at least 0\.046, got 0\.01"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"lr": 1e30, "steps": 3}, r"lr must be small enough for errors to stay finite, got 1e\+30"),
    ],
)
def test_bad_settings(settings: dict[str, float], message: str, songs: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train_separator(songs, tmp_path / "model", **(SMALL | settings))
    assert not (tmp_path / "model").exists()


# The command


def test_a_command_makes_a_model(
    songs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = partial(train_separator, steps=1, **SMALL)
    monkeypatch.setattr("torchpfc.audio.train_separator", small)
    model = tmp_path / "model"
    assert main(["separate", "--train", str(songs), "--model", str(model), "--seed", "3"]) == 0
    about = load_separator(model).about
    assert about["seed"] == 3
    assert capsys.readouterr().out == (
        f"wrote {model}: error on validation songs {about['valid_loss']:.5f} after 1 steps, the lowest\n"
        f"next: torchpfc separate song.wav --model {model} --out parts\n"
    )
    assert main(["separate", "--train", str(songs), "--model", str(model)]) == 2
    written = capsys.readouterr().err
    assert f"{model} must be a new or an empty folder, got neither; delete" in written and written.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["song.wav"], "SONG and --out must be given, or --train to make a model"),
        (["--out", "parts"], "SONG and --out must be given, or --train to make a model"),
        (["song.wav", "--out", "parts", "--seed", "1"], "--seed must come with --train"),
        (["song.wav", "--train", "songs"], "SONG and --out must be left out with --train"),
        (["--train", "nowhere"], "nowhere must be a folder of songs, got no such folder"),
    ],
)
def test_a_wrong_command_is_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["separate", "--model", "model", *options]) == 2
    written = capsys.readouterr().err
    assert written.startswith("torchpfc separate: ") and message in written and written.count("\n") == 1
