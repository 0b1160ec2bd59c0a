import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tests.audio.models import Everything, small_model
from tests.audio.test_stems import real_stem_file
from torchpfc import FactorizedRNN, VanillaRNN
from torchpfc.audio import (
    Audio,
    AudioWriter,
    Features,
    Separated,
    Separator,
    bss_eval,
    load_separator,
    load_track,
    read_audio,
    save_separator,
    sdr,
    separate,
    separate_by_oracle,
    separate_file,
    soft_mask,
    write_audio,
)
from torchpfc.checkpoint import CorruptFileError
from torchpfc.data import DataError
from torchpfc.paper.songs import generate_track

KINDS = ("factorized", "vanilla", "nmf")


def mixture(count: int, channels: int = 1, seed: int = 0) -> torch.Tensor:
    return 0.3 * torch.randn(channels, count, generator=torch.Generator().manual_seed(seed)).clamp(-3, 3)


# Masks


def test_the_mask_of_vocals_and_rest() -> None:
    features = Features(bins=3, exponent=1.0, loudest=1.0)
    estimate, whole = torch.tensor([0.2, 0.8, 5.0]), torch.ones(3)
    torch.testing.assert_close(soft_mask(estimate, whole, features), torch.tensor([0.2, 0.8, 1.0]))
    squared = torch.tensor([0.04 / 0.68, 0.64 / 0.68, 1.0])
    torch.testing.assert_close(soft_mask(estimate, whole, features, power=2.0), squared)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_mask_of_both_is_the_share_of_the_vocals(power: float) -> None:
    features = Features(bins=4)
    v, a = torch.tensor([3.0, 1.0, 0.0, 0.0]), torch.tensor([1.0, 0.0, 2.0, 0.0])
    both = torch.cat([features.compress(v), features.compress(a)])
    share = v**power / (v**power + a**power)
    torch.testing.assert_close(soft_mask(both, torch.ones(4), features, power=power), share.nan_to_num(0.0))
    louder = soft_mask(1.7 * both, torch.ones(4), features, power=power)  # what both have too much of leaves no trace
    torch.testing.assert_close(louder, share.nan_to_num(0.0))
    negative = soft_mask(-both, torch.ones(4), features, power=power)
    assert torch.equal(negative, torch.zeros(4))


def test_an_estimate_is_of_vocals_or_of_vocals_and_rest() -> None:
    with pytest.raises(ValueError, match="estimate must have 4 features or 8, got 6"):
        soft_mask(torch.rand(3, 6), torch.rand(3, 4), Features(bins=4))


@pytest.mark.parametrize("power", [0.0, -1.0, float("nan"), float("inf")])
def test_the_power_of_a_mask_is_a_positive_number(power: float, tmp_path: Path) -> None:
    for attempt in (
        lambda: Separator(small_model("vanilla"), power=power),
        lambda: save_separator(tmp_path, small_model("vanilla"), power=power),
    ):
        with pytest.raises(ValueError, match="power must be positive and finite, got"):
            attempt()
    assert not any(tmp_path.iterdir())


def test_the_oracle_separates_what_does_not_overlap() -> None:
    t = torch.arange(44_100) / 44_100
    low, high = (torch.sin(2 * torch.pi * f * t).unsqueeze(0) for f in (300.0, 2_000.0))
    found = separate_by_oracle(low + high, low)
    assert sdr(low, found.vocals) > 25 and sdr(high, found.accompaniment) > 25


# Streams


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [44_100, 16_000])
def test_in_pieces_equals_whole_to_the_last_bit(kind: str, rate: int) -> None:
    model, x = small_model(kind), mixture(60_000, channels=2)
    whole = Separator(model, rate=rate, channels=2, block_frames=8)
    wanted = [torch.cat(part, dim=-1) for part in zip(whole.push(x), whole.finish(), strict=True)]
    pieces = Separator(model, rate=rate, channels=2, block_frames=8)
    sizes = [1, 5_000, 0, 20_000, 17, 34_982]
    got = [pieces.push(piece) for piece in x.split(sizes, dim=-1)] + [pieces.finish()]
    for k in range(2):
        assert torch.equal(torch.cat([part[k] for part in got], dim=-1), wanted[k])
    assert 0 < wanted[0].abs().max() < 2 and wanted[0].shape == x.shape


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_the_blocks_does_not_matter(kind: str) -> None:
    model, x = small_model(kind), mixture(40_000)
    results = []
    for block_frames in (3, 1000):
        separator = Separator(model, block_frames=block_frames)
        results.append(torch.cat([separator.push(x).vocals, separator.finish().vocals], dim=-1))
    torch.testing.assert_close(*results, atol=1e-5, rtol=0)


def test_the_state_goes_on_from_block_to_block() -> None:
    """A model that hears each block as the first one gives something else."""
    model, x = small_model("vanilla"), mixture(40_000)
    forgetful = Separator(model, block_frames=3)
    step = forgetful._separate

    def forget(spectrum: torch.Tensor) -> torch.Tensor:
        forgetful._state = None
        return step(spectrum)

    forgetful._separate = forget  # type: ignore[method-assign]
    got = torch.cat([forgetful.push(x).vocals, forgetful.finish().vocals], dim=-1)
    assert (got - separate(x, model).vocals).abs().max() > 1e-4


@pytest.mark.parametrize("rate", [8_000, 11_025, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_any_rate_and_any_number_of_channels(rate: int, channels: int) -> None:
    x = mixture(rate // 4, channels)
    vocals, accompaniment = separate(x, small_model("nmf"), rate=rate)
    assert vocals.shape == accompaniment.shape == x.shape and vocals.isfinite().all()
    torch.testing.assert_close(vocals + accompaniment, x, atol=1e-6, rtol=0)


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_nothing_is_shifted(rate: int) -> None:
    t = torch.arange(rate) / rate
    x = (torch.sin(2 * torch.pi * 440 * t) * torch.sin(torch.pi * t)).unsqueeze(0)
    assert sdr(x, separate(x, Everything(), rate=rate).vocals) > 55


@pytest.mark.parametrize("kind", KINDS)
def test_silence_stays_silent(kind: str) -> None:
    found = separate(torch.zeros(2, 10_000), small_model(kind))
    assert not found.vocals.any() and not found.accompaniment.any()


@pytest.mark.parametrize("kind", KINDS)
def test_clipped_sound_is_separated(kind: str) -> None:
    x = (8 * mixture(20_000)).clamp(-1, 1)
    vocals, accompaniment = separate(x, small_model(kind))
    assert vocals.isfinite().all() and vocals.abs().max() < 3
    torch.testing.assert_close(vocals + accompaniment, x, atol=1e-6, rtol=0)


def test_bad_mixtures() -> None:
    model = small_model("nmf")
    with pytest.raises(ValueError, match=r"mixture must have shape \(channels, n\) and samples, got \(1, 0\)"):
        separate(torch.zeros(1, 0), model)
    with pytest.raises(ValueError, match="mixture must have finite samples, got NaN or infinity"):
        separate(torch.full((1, 10), torch.nan), model)
    separator = Separator(model, channels=2)
    with pytest.raises(ValueError, match=r"mixture must have shape \(2, n\), got \(1, 5\)"):
        separator.push(torch.zeros(1, 5))
    with pytest.raises(TypeError, match=r"mixture must have a floating-point dtype .*, got torch\.int16"):
        separator.push(torch.zeros(2, 5, dtype=torch.int16))
    separator.finish()
    with pytest.raises(RuntimeError, match="push must be called before finish"):
        separator.push(torch.zeros(2, 5))
    with pytest.raises(RuntimeError, match="finish must be called once"):
        separator.finish()
    with pytest.raises(ValueError, match="channels must be at least 1, got 0"):
        Separator(model, channels=0)


# Files


def test_a_file_is_separated_as_its_samples_are(tmp_path: Path) -> None:
    x, model, told = mixture(200_000, channels=2), small_model("nmf"), []
    write_audio(tmp_path / "song.wav", Audio(x, 48_000))
    paths = separate_file(tmp_path / "song.wav", tmp_path / "deep" / "out", model, tell=told.append)
    assert [path.name for path in paths] == ["vocals.wav", "accompaniment.wav"] and told[-1] == 1.0
    wanted = separate(x, model, rate=48_000)
    for path, samples in zip(paths, wanted, strict=True):
        audio = read_audio(path)
        assert audio.rate == 48_000 and torch.equal(audio.samples, samples)
    assert sorted(path.name for path in (tmp_path / "deep" / "out").iterdir()) == ["accompaniment.wav", "vocals.wav"]


def test_nothing_is_written_when_a_sample_is_no_number(tmp_path: Path) -> None:
    x = mixture(200_000)
    x[0, 150_000] = torch.nan
    write_audio(tmp_path / "song.wav", Audio(x, 44_100))
    with pytest.raises(DataError, match=r"song\.wav must have finite samples, got NaN or infinity at 3\.401 seconds"):
        separate_file(tmp_path / "song.wav", tmp_path / "out", small_model("nmf"))
    assert not list((tmp_path / "out").iterdir())


def test_a_song_is_not_overwritten(tmp_path: Path) -> None:
    write_audio(tmp_path / "vocals.wav", Audio(mixture(100), 44_100))
    with pytest.raises(DataError, match=r"vocals\.wav must not be overwritten by its own parts"):
        separate_file(tmp_path / "vocals.wav", tmp_path, small_model("nmf"))


def test_files_that_are_no_sound(tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("These are words.\n" * 100)
    (tmp_path / "empty.wav").write_bytes(b"")
    write_audio(tmp_path / "short.wav", Audio(torch.zeros(1, 0), 44_100))
    for name, message in (
        ("text.wav", r"text\.wav must be an audio file"),
        ("empty.wav", r"empty\.wav must be an audio file"),
        ("short.wav", r"short\.wav must hold sound, got a file without samples"),
        ("nothing.wav", r"nothing\.wav must be an audio file, got nothing there"),
        (".", "must be an audio file, got a folder"),
    ):
        with pytest.raises(DataError, match=message):
            read_audio(tmp_path / name)


def test_a_real_song_is_separated_and_scored(tmp_path: Path) -> None:
    """The song of MUSDB18 that stempeg carries, from the stem file to museval's numbers."""
    track = load_track(real_stem_file())
    write_audio(tmp_path / "song.wav", Audio(track.mixture, track.rate))
    paths = separate_file(tmp_path / "song.wav", tmp_path, small_model("factorized"))
    found = Separated(*(read_audio(path).samples.mean(0, keepdim=True) for path in paths))
    track = track.mono()  # four times as fast to score
    truth = Separated(track.vocals, track.accompaniment)
    best = separate_by_oracle(track.mixture, track.vocals)
    floor = Separated(track.mixture, track.mixture)
    ours, ceiling, ground = (bss_eval(truth, parts, track.rate) for parts in (found, best, floor))
    assert all(torch.tensor(scores).isfinite().all() for scores in (ours, ceiling, ground))
    assert ceiling.vocals.sdr > ground.vocals.sdr + 3 and ceiling.vocals.sdr > ours.vocals.sdr
    with pytest.raises(DataError, match="must hold at least 6 sounds, got 5"):
        read_audio(real_stem_file(), stream=5)


def test_the_mixture_of_a_stem_file_is_separated(tmp_path: Path) -> None:
    told: list[float] = []
    paths = separate_file(real_stem_file(), tmp_path, small_model("nmf"), tell=told.append)
    song = read_audio(real_stem_file())
    parts = [read_audio(path) for path in paths]
    assert song.samples.shape == parts[0].samples.shape and {part.rate for part in parts} == {song.rate}
    torch.testing.assert_close(parts[0].samples + parts[1].samples, song.samples, atol=1e-6, rtol=0)
    assert told == sorted(told) and told[-1] == pytest.approx(1.0, abs=0.01)


def test_other_formats_ask_for_the_package_that_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(DataError, match="must be an audio file: WAV, FLAC, OGG or MP3; for others install"):
        read_audio(real_stem_file())


def test_a_file_that_breaks_off(tmp_path: Path) -> None:
    import soundfile

    soundfile.write(tmp_path / "song.flac", mixture(100_000)[0].numpy(), 44_100)
    content = (tmp_path / "song.flac").read_bytes()
    (tmp_path / "song.flac").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"song\.flac must be an audio file that can be read to its end"):
        separate_file(tmp_path / "song.flac", tmp_path / "out", small_model("nmf"))
    assert not list((tmp_path / "out").iterdir())


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OSError, match="out"):
        write_audio(tmp_path / "out" / "song.wav", Audio(torch.zeros(1, 5), 44_100))
    with pytest.raises(OSError, match=r"song\.wav could not be written"):
        write_audio(tmp_path / "song.wav", Audio(torch.zeros(2000, 5), 44_100))  # channels
    assert not (tmp_path / "song.wav").exists()


def test_what_is_too_large_for_wav_is_rf64(tmp_path: Path) -> None:
    for name, length, kind in (("short", 100, b"RIFF"), ("long", 2**31, b"RF64")):
        with AudioWriter(tmp_path / name, 44_100, 2, length) as writer:
            writer.write(torch.zeros(2, 100))
        assert (tmp_path / name).read_bytes()[:4] == kind and read_audio(tmp_path / name).samples.shape == (2, 100)


# Models


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_separates_as_before(kind: str, tmp_path: Path) -> None:
    model, x = small_model(kind), generate_track(0, seconds=1.0).mixture
    wanted = separate(x, model)
    save_separator(tmp_path, model, about={"seed": 3})
    saved = load_separator(tmp_path)
    assert saved.features == Features() and saved.about == {"seed": 3} and type(saved.model) is type(model)
    assert torch.equal(separate(x, saved.model, saved.features).vocals, wanted.vocals)


@pytest.mark.parametrize("kind", ["factorized", "vanilla"])
def test_a_network_that_answers_with_both_comes_back_with_its_mask(kind: str, tmp_path: Path) -> None:
    network = {"factorized": FactorizedRNN, "vanilla": VanillaRNN}[kind]
    model, x = network(350, 5, 700, generator=torch.Generator().manual_seed(0)), mixture(20_000)
    save_separator(tmp_path, model, power=1.5)
    saved = load_separator(tmp_path)
    assert saved.power == 1.5
    found = separate(x, saved.model, saved.features, power=saved.power)
    assert torch.equal(found.vocals, separate(x, model, power=1.5).vocals)
    assert found.vocals.abs().max() > 0 and not torch.equal(found.vocals, separate(x, model).vocals)


def test_a_network_with_another_solver_comes_back(tmp_path: Path) -> None:
    from torchpfc import ADMM, Implicit

    model = FactorizedRNN(350, 5, 350, solver=ADMM(penalty=0.5), adjoint=Implicit(damping=0.1), bptt=False)
    save_separator(tmp_path, model)
    found = load_separator(tmp_path).model
    assert isinstance(found, FactorizedRNN) and not found.bptt
    assert (found.block.solver, found.block.adjoint) == (model.block.solver, model.block.adjoint)


def test_a_network_that_version_0_1_0_saved(tmp_path: Path) -> None:
    """It kept three settings, and those of FISTA without a name."""
    from torchpfc import FISTA
    from torchpfc.checkpoint import save_checkpoint

    model = FactorizedRNN(350, 5, 350, nonnegative=False, solver=FISTA(max_iter=3))
    options = {"nonnegative": False, "bptt": True, "solver": asdict(model.block.solver)}
    state = {"kind": "factorized", "options": options, "features": asdict(Features()), "about": {}}
    save_checkpoint(tmp_path, {**state, "weights": dict(model.state_dict())})
    found = load_separator(tmp_path).model
    x = torch.rand(1, 4, 350)
    assert torch.equal(found(x)[0], model.eval()(x)[0])


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError, match="must be a folder with a separation model, got no such folder"):
        load_separator(tmp_path / "nowhere")
    with pytest.raises(CorruptFileError, match=r"got no state\.json in it"):
        load_separator(tmp_path)
    with pytest.raises(TypeError, match="model must be a FactorizedRNN, VanillaRNN or NMFSeparator, got Everything"):
        save_separator(tmp_path, Everything())
    with pytest.raises(ValueError, match="model must map 350 features to as many, or to twice as many, got 350 and 20"):
        save_separator(tmp_path, VanillaRNN(350, 5, 20))
    from torchpfc.checkpoint import save_checkpoint

    for state in ({"weights": {}}, {"kind": "tape", "options": {}, "weights": {}, "features": {}, "about": {}}):
        save_checkpoint(tmp_path, state)
        with pytest.raises(CorruptFileError, match="must hold a model that save_separator saved"):
            load_separator(tmp_path)


def test_a_model_with_weights_that_are_no_numbers(tmp_path: Path) -> None:
    model = small_model("vanilla")
    with torch.no_grad():
        model.output.bias[3] = torch.nan
    save_separator(tmp_path, model)
    with pytest.raises(CorruptFileError, match="a weight is not a finite number"):
        load_separator(tmp_path)
