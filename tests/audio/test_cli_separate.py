from pathlib import Path

import pytest
import torch

from tests.audio.models import small_model
from torchpfc.audio import Audio, read_audio, save_separator, write_audio
from torchpfc.cli import main
from torchpfc.paper.songs import generate_track


@pytest.fixture
def song(tmp_path: Path) -> Path:
    save_separator(tmp_path / "model", small_model("factorized"))
    write_audio(tmp_path / "song.wav", Audio(generate_track(0, seconds=1.5).mixture, 44_100))
    return tmp_path


def test_a_song_becomes_two_files(song: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = song / "out"
    assert main(["separate", str(song / "song.wav"), "--model", str(song / "model"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out / 'vocals.wav'}\nwrote {out / 'accompaniment.wav'}\n"
    vocals, accompaniment = (read_audio(out / name).samples for name in ("vocals.wav", "accompaniment.wav"))
    torch.testing.assert_close(vocals + accompaniment, read_audio(song / "song.wav").samples, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "model", "out", "device", "message"),
    [
        ("none.wav", "model", "out", "cpu", "none.wav must be an audio file, got nothing there"),
        ("model", "model", "out", "cpu", "model must be an audio file, got a folder"),
        ("model/state.json", "model", "out", "cpu", "state.json must be an audio file"),
        ("song.wav", "none", "out", "cpu", "none must be a folder with a separation model, got no such folder"),
        ("song.wav", "model", "song.wav", "cpu", "--out must be a folder, got the file"),
        ("song.wav", "model", "out", "abacus", "--device must be cpu or cuda, got 'abacus'"),
    ],
)
def test_what_cannot_be_separated_is_one_line(
    song: Path, name: str, model: str, out: str, device: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--model", str(song / model), "--out", str(song / out), "--device", device]
    assert main(["separate", str(song / name), *where]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("torchpfc separate: ") and error.count("\n") == 1
    assert not (song / "out").exists()
