import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch

from tests.paper.made import context, numbers
from tests.paper.stopped import assert_same_bits_when_stopped
from torchpfc.audio import (
    STEMS,
    Features,
    NMFSeparator,
    Track,
    all_clips,
    feature_mse,
    find_tracks,
    hear,
    load_separator,
    separate,
    write_audio,
)
from torchpfc.audio.files import Audio, read_audio
from torchpfc.data.formats import DataError
from torchpfc.nn import FactorizedRNN, VanillaRNN
from torchpfc.paper import experiments
from torchpfc.paper.components import Optimizer
from torchpfc.paper.registry import Job, rows_of
from torchpfc.paper.results import Result
from torchpfc.paper.separation import SeparationRun, fit_nmf, run
from torchpfc.paper.separation_measures import (
    ByIdealFeatures,
    ByIdealMask,
    ByModel,
    ByNothing,
    columns_used,
    excerpt,
    listen,
    measure,
    measure_error,
)
from torchpfc.paper.separation_songs import FEATURES, SeparationConfig, load_songs
from torchpfc.paper.separation_tables import EXCERPT_RATES
from torchpfc.paper.settings import change
from torchpfc.paper.songs import generate_track, generate_tracks


@pytest.fixture(scope="module")
def found() -> dict[str, list[dict[str, float]]]:
    """What committed results say of rows, seed by seed."""
    experiment, folder = experiments()["separation"], Path(__file__).parents[2] / "docs" / "results" / "separation"
    runs: dict[str, list[dict[str, float]]] = {}
    for result in sorted((Result.load(path) for path in folder.iterdir()), key=lambda result: result.seed):
        for row, _ in rows_of(experiment, result):
            if result.metrics not in runs.setdefault(row.id, []):
                runs[row.id].append(dict(result.metrics))
    return runs


def small(**changes: Any) -> SeparationConfig:
    return change(change(SeparationConfig(), **changes).smoke(), **changes)


def run_small(folder: Path, *seeds: int, config: SeparationConfig, **options: Any) -> list[Result]:
    return list(run([Job(config, seed) for seed in seeds], context(folder, **options)))


def rows() -> dict[str, Any]:
    return {row.id: row for table in experiments()["separation"].tables for row in table.rows}


def write_songs(folder: Path, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        track = generate_track(number, seconds=2.0)
        for stem, samples in track.stems.items():
            write_audio(folder / f"song {number}" / f"{stem}.wav", Audio(samples, track.rate))


def test_defaults_are_the_published_ones() -> None:
    config = SeparationConfig()
    assert (config.num_basis, config.iterations, config.batch_size, config.samples) == (1024, 10, 100, 220_500)
    assert config.optimizer == Optimizer(lr=5e-4, weight_decay=5e-5)
    assert (config.epochs, config.validate_every) == (300.0, 250)
    assert hear(all_clips([generate_track(0, seconds=5.0)], config.samples)).mixture.shape == (1, 216, 350)
    found = rows()
    assert (found["AUD.FAC"].paper, found["AUD.VAN"].paper) == (2.497e-3, 3.657e-3)
    assert found["AUD.VAN"].config == change(config, model="vanilla", lr=1e-4, source="musdb18hq")
    assert found["AUD.FAC"].lower_is_better


def test_both_networks_are_tried_with_the_same_learning_rates() -> None:
    tried = {
        key: {row.config.optimizer.lr for id, row in rows().items() if id.startswith(f"SEPLR.{key}.")}
        for key in ("FAC", "VAN")
    }
    assert tried["FAC"] == tried["VAN"] and len(tried["FAC"]) == 5
    for key in ("FAC", "VAN"):
        chosen = rows()[f"SEP.{key}.256"].config
        assert chosen.optimizer.lr in tried[key]
        others = [row.config for id, row in rows().items() if id.startswith(f"SEPLR.{key}.")]
        assert {change(config, lr=0.1) for config in others} == {change(chosen, lr=0.1)}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"model": "lstm"}, "model must be one of factorized, vanilla, nmf, ideal-mask, ideal-features, mixture, got"),
        ({"num_basis": 0}, "num_basis must be at least 1, got 0"),
        ({"test_songs": 0}, "test_songs must be at least 1, got 0"),
        ({"clip_seconds": math.nan}, "clip_seconds must be positive and finite, got nan"),
        ({"model": "nmf", "num_basis": 1}, "num_basis must be at least 2 for nmf, got 1"),
    ],
)
def test_a_setting_out_of_range_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        change(SeparationConfig(), **setting)


@pytest.mark.parametrize("model", ["factorized", "vanilla"])
def test_seeds_learn_at_once_as_they_would_alone(model: str, tmp_path: Path) -> None:
    config = small(model=model, epochs=3.0)
    both = run_small(tmp_path / "both", 0, 1, config=config, test=False)
    (alone,) = run_small(tmp_path / "alone", 1, config=config, test=False)
    assert both[1].metrics["valid_mse"] == pytest.approx(alone.metrics["valid_mse"], rel=1e-9)
    assert both[0].metrics["valid_mse"] != pytest.approx(alone.metrics["valid_mse"], rel=1e-3)
    assert both[1].curves["valid_mse"] == pytest.approx(alone.curves["valid_mse"], rel=1e-9)
    assert "test_mse" not in alone.metrics


def test_a_first_step_is_the_plain_loop(tmp_path: Path) -> None:
    config = small(epochs=0.1)
    job = Job(config, 0)
    trained = SeparationRun("separation", [job], context(tmp_path))
    network = trained.build().unstack()[0]
    batch = next(iter(trained.source()))
    assert batch.x.shape == (1, 2, 22, 350) and bool((batch.x >= 0).all())
    loss = torch.nn.functional.mse_loss(network(batch.x[0])[0], batch.target[0])
    stats = next(trained.learner.rounds(trained.source(), trained.members, 0, 1))
    assert stats.steps == 1 and stats.loss[0].item() == pytest.approx(loss.item(), rel=1e-9)


def test_a_network_learns_to_keep_vocals_and_is_measured_as_a_whole(tmp_path: Path) -> None:
    config = small(model="vanilla", num_basis=32, epochs=40.0, lr=2e-3, validate_every=10)
    (result,) = run_small(tmp_path, 0, config=config, models=tmp_path / "models")
    curve = result.curves["valid_mse"]
    assert len(curve) == 16 and curve[-1] < 0.5 * curve[0]
    assert result.metrics["valid_mse"] == min(curve)
    assert result.metrics["best_step"] == 10.0 * (1 + curve.index(min(curve)))
    assert 0 < result.metrics["test_mse"] < 0.05 and math.isfinite(result.metrics["vocals_sdr"])
    assert result.metrics["superposition_median"] > 0 and math.isfinite(result.metrics["valid_sdr"])
    assert set(result.images) == {"spectrograms"} and set(result.sounds) == {"estimate"}
    saved = load_separator(tmp_path / "models" / "separation-vanilla-32-0")
    assert saved.about["lr"] == 2e-3
    assert measure_error(ByModel(saved.model.double()), load_songs(config).test(), config.samples) == pytest.approx(
        result.metrics["test_mse"]
    )


def test_a_stopped_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    config = small(epochs=4.0, validate_every=2)
    assert_same_bits_when_stopped(
        SeparationRun, 2, lambda folder: run_small(folder, 0, 1, config=config, test=False), tmp_path
    )


def test_a_network_that_could_not_be_scored_is_scored_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, place = small(model="vanilla"), "torchpfc.paper"

    def missing(*_: object) -> None:
        raise ModuleNotFoundError("bss_eval needs the package museval", name="museval")

    with monkeypatch.context() as patch, pytest.raises(ModuleNotFoundError, match="museval"):
        patch.setattr(f"{place}.separation_measures.bss_eval", missing)
        run_small(tmp_path / "stopped", 0, config=config)
    monkeypatch.setattr(f"{place}.learners.fit", missing)  # nothing is trained again
    (later,) = run_small(tmp_path / "stopped", 0, config=config)
    monkeypatch.undo()
    (whole,) = run_small(tmp_path / "whole", 0, config=config)
    assert numbers(later) == numbers(whole) and math.isfinite(later.metrics["vocals_sdr"])


def test_floor_and_ceiling() -> None:
    songs = load_songs(small(test_songs=2, song_seconds=6.0))
    methods = ByNothing(), ByIdealMask(), ByIdealFeatures()
    floor, ceiling, heard = (measure(method, songs, FEATURES.rate) for method in methods)
    assert floor["vocals_sdr"] <= 0 and ceiling["vocals_sdr"] >= 8
    assert floor["vocals_plain_sdr"] <= 0 and ceiling["vocals_plain_sdr"] >= 8
    assert floor["test_mse"] > 2 * max(ceiling["test_mse"], heard["test_mse"]) > 0
    assert "superposition_median" not in floor


def test_errors_are_those_of_features_and_each_song_is_analysed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    songs = generate_tracks("test", 2, 2.0)
    model = VanillaRNN(350, 4, 350, generator=torch.Generator().manual_seed(0))
    heard = [hear(all_clips([song], 22_050)) for song in songs]
    with torch.no_grad():
        answers = [model(clips.mixture)[0] for clips in heard]
    analyze, calls = Features.analyze, []
    monkeypatch.setattr(Features, "analyze", lambda self, x: calls.append(x) or analyze(self, x))
    for method, found in ((ByModel(model), answers), (ByNothing(), [clips.mixture for clips in heard])):
        errors = [feature_mse(y, clips.vocals) for y, clips in zip(found, heard, strict=True)]
        assert measure_error(method, songs, 22_050) == (4 * errors[0] + 4 * errors[1]) / 8  # four clips each
    measure_error(ByIdealMask(), songs, 22_050)
    assert len(calls) == 3 * 2 * 2  # three methods, two songs, the mixture and the vocals


def test_nmf_is_between_floor_and_ceiling(tmp_path: Path) -> None:
    config = small(model="nmf", num_basis=32, train_songs=3, song_seconds=4.0)
    found = {model: run_small(tmp_path, 0, config=change(config, model=model))[0] for model in ("mixture", "nmf")}
    nmf, floor = found["nmf"], found["mixture"]
    assert nmf.metrics["test_mse"] < floor.metrics["test_mse"] and nmf.metrics["valid_mse"] < floor.metrics["valid_mse"]
    assert set(nmf.images) == {"spectrograms", "columns"} and set(floor.sounds) == {"mixture", "vocals"}
    (other,) = run_small(tmp_path, 1, config=config, test=False)
    assert other.metrics["valid_mse"] != nmf.metrics["valid_mse"] and not other.images


def test_what_is_shown_is_where_the_vocals_are_loudest() -> None:
    stems = {name: torch.zeros(1, 12 * 44_100) for name in STEMS}
    stems["vocals"][:, 6 * 44_100 : 11 * 44_100] = 0.5
    shown = excerpt(Track("sung late", stems, 44_100))
    assert shown.vocals.shape == (1, 5 * 44_100) and bool((shown.vocals == 0.5).all())
    assert len(excerpt(generate_track(0, seconds=2.0))) == 2 * 44_100


def test_columns_that_were_used_most_come_from_low_to_high() -> None:
    track = excerpt(generate_track(3, seconds=6.0))
    assert len(track) == 5 * track.rate
    model = fit_nmf(small(num_basis=80, train_songs=2), load_songs(small()), 0)
    columns = columns_used(model, track)
    assert columns is not None and columns.shape == (2, 350, 32)
    pitch = (columns[0] * torch.arange(350).unsqueeze(1)).sum(0) / columns[0].sum(0)
    assert bool((pitch.diff() >= 0).all())
    of_vocals = columns[1].any(0)
    assert 0 < of_vocals.sum() < 32 and torch.equal(columns[1][:, of_vocals], columns[0][:, of_vocals])

    silent = NMFSeparator(torch.eye(350)[:, :40] + 0.0, 20)
    used = columns_used(silent, track)
    assert used is not None and used.shape == (2, 350, 32)
    rnn = FactorizedRNN(350, 5, 350, nonnegative=False, generator=torch.Generator().manual_seed(0))
    heard = columns_used(rnn, track)
    assert heard is not None and heard.shape == (2, 350, 5)
    assert {tuple(column.tolist()) for column in heard[0].T} == {
        tuple(column.tolist()) for column in rnn.block.weight_x[5:].T
    }
    assert columns_used(VanillaRNN(350, 4, 350), track) is None


def test_what_was_found_can_be_listened_to(tmp_path: Path) -> None:
    import base64

    track = excerpt(generate_track(0, seconds=2.0))
    model = VanillaRNN(350, 4, 350, generator=torch.Generator().manual_seed(0))
    (sound,) = listen(ByModel(model), track).values()
    (tmp_path / "a.mp3").write_bytes(base64.b64decode(sound))
    heard = read_audio(tmp_path / "a.mp3")
    true = separate(track.mixture, model).vocals
    assert heard.rate == 44_100
    # An encoder adds silence in front: find it, then compare.
    both = [torch.fft.rfft(s[0], 2**18) for s in (heard.samples, true)]
    shift = int(torch.fft.irfft(both[0] * both[1].conj()).argmax())
    aligned = heard.samples[0].roll(-shift)[: true.shape[-1]]
    assert torch.nn.functional.cosine_similarity(aligned, true[0], dim=0) > 0.95


def test_songs_of_a_folder(tmp_path: Path) -> None:
    for part, first in (("train", 0), ("valid", 2), ("test", 3)):
        write_songs(tmp_path / "mine" / part, 2 if part == "train" else 1, first)
    for stem in STEMS:  # a song without vocals, which has no ratio
        silent = torch.zeros(1, 88_200) if stem == "vocals" else generate_track(4, seconds=2.0).stems[stem]
        write_audio(tmp_path / "mine" / "test" / "song 4" / f"{stem}.wav", Audio(silent, 44_100))
    config = small(model="vanilla", source="mine")
    songs = load_songs(config, tmp_path)
    assert [len(songs.train), len(songs.valid), len(list(songs.test()))] == [2, 1, 2]
    assert songs.train[0].vocals.dtype == torch.float16 and next(songs.test()).vocals.dtype == torch.float32
    (result,) = run_small(tmp_path / "results", 0, config=config, data_dir=tmp_path)
    assert result.data == {"mine": songs.fingerprint}
    assert all(math.isfinite(result.metrics[name]) for name in ("test_mse", "vocals_sdr", "vocals_plain_sdr"))
    assert len(find_tracks(tmp_path / "mine" / "valid")) == 1


def test_songs_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mine must be in a data folder, got nothing at .*mine; put train and test"):
        load_songs(small(source="mine"), tmp_path)
    with pytest.raises(DataError, match=r"got nothing at .*; run `torchpfc data get musdb18-7s --data-dir "):
        load_songs(small(source="musdb18-7s"), tmp_path)
    for part in ("train", "test"):
        write_songs(tmp_path / "mine" / part, 1)
    with pytest.raises(DataError, match="mine must have songs in valid, got no such folder"):
        load_songs(small(source="mine"), tmp_path)
    write_songs(tmp_path / "mine" / "valid", 1)
    with pytest.raises(DataError, match=r"mine/train/song 0 must be as long as a clip, 3\.00 seconds, got 2\.00;"):
        load_songs(small(source="mine", clip_seconds=3.0), tmp_path)


def test_trying_it_out_makes_songs_up_whatever_was_asked_for() -> None:
    assert rows()["AUD.FAC"].config.smoke().source == "generated"


# What the notes say


def test_what_is_said_of_the_excerpts_is_what_was_found(found: dict[str, list[dict[str, float]]]) -> None:
    def values(row: str, metric: str) -> list[float]:
        assert len(found[f"AUD7.{row}"]) == 3
        return [metrics[metric] for metrics in found[f"AUD7.{row}"]]

    for metric in ("test_mse", "superposition_median"):
        assert max(values("FAC.256", metric)) < min(values("VAN.256", metric))
    ratio = fmean(values("FAC.256", "test_mse")) / fmean(values("VAN.256", "test_mse"))
    assert 0.683 < ratio < 1
    for part in ("vocals", "accompaniment"):
        nmf, recipe, plain = (values(row, f"{part}_sdr") for row in ("NMF", "RATIO.FAC.256", "FAC.256"))
        assert max(plain) < min(nmf) and all(a > b for a, b in zip(recipe, nmf, strict=True))
        assert 1.5 < fmean(recipe) - fmean(plain) < 2.5
    assert max(values("VAN.256", "vocals_sdr")) < min(values("NMF", "vocals_sdr"))
    errors = [fmean(values(row, "test_mse")) for row in ("FAC.256", "RATIO.FAC.256")]
    assert errors[1] == pytest.approx(errors[0], rel=0.03)


def test_the_recipe_is_the_best_on_validation_songs(found: dict[str, list[dict[str, float]]]) -> None:
    assert all(len(found[f"AUD7R.{row}"]) == 3 for row in ("PLAIN", "MASK", "BOTH", "RATIO"))
    mean = {id[6:]: fmean(run["valid_sdr"] for run in runs) for id, runs in found.items() if id.startswith("AUD7R.")}
    assert max(mean, key=mean.__getitem__) == "RATIO" and len(mean) == 6
    assert mean["BOTH"] - mean["PLAIN"] > 2 and abs(mean["MASK"] - mean["PLAIN"]) < 0.1
    for row in ("BOTH", "RATIO"):
        assert -0.3 < mean[f"{row}.POWER"] - mean[row] < 0
    deviation = stdev(run["valid_sdr"] for run in found["AUD7R.BOTH"])
    assert 0 < mean["RATIO"] - mean["BOTH"] < deviation


@pytest.mark.parametrize("network", ["FAC", "VAN"])
def test_the_rates_of_the_excerpts_err_least_on_validation_songs(
    network: str, found: dict[str, list[dict[str, float]]]
) -> None:
    first = {id: runs[0]["valid_mse"] for id, runs in found.items() if id.startswith(f"AUD7LR.{network}.")}
    assert len(first) == 5
    assert min(first, key=first.__getitem__) == f"AUD7LR.{network}.{EXCERPT_RATES[network]:g}"
