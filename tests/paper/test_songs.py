import pytest
import torch

from torchpfc.audio import STEMS, Features, NMFSeparator, sdr, separate, separate_by_oracle
from torchpfc.audio.separation import Separated
from torchpfc.paper.songs import fingerprint, generate_track, generate_tracks

FROZEN = "d44c4e3db0e3ef895eb5066e951e7f392207897341d313a12ef2a582408fb1b8"


def test_the_generator_is_frozen() -> None:
    """A change here would change every result that was ever got with generated songs: never do it, add another."""
    assert fingerprint(generate_tracks("train", 2, seconds=4.0)) == FROZEN


def test_a_song_depends_on_its_seed_alone() -> None:
    one, same, other = (generate_track(seed, seconds=3.0) for seed in (1, 1, 2))
    for stem in STEMS:
        assert torch.equal(one.stems[stem], same.stems[stem])
        assert not torch.equal(one.stems[stem], other.stems[stem])


def test_splits_and_seeds_have_songs_of_their_own() -> None:
    songs = [
        *(generate_tracks(split, 2, seconds=1.0)[1] for split in ("train", "valid", "test")),
        generate_tracks("train", 2, seconds=1.0, seed=1)[1],
    ]
    assert len({fingerprint([song]) for song in songs}) == 4
    with pytest.raises(ValueError, match="split must be one of train, valid, test, got 'exam'"):
        generate_tracks("exam", 1)
    with pytest.raises(ValueError, match=r"seconds must be at least 0\.1, got 0"):
        generate_track(0, seconds=0)


def test_samples_are_those_of_a_cd() -> None:
    track = generate_track(3, seconds=3.0)
    assert track.rate == 44_100 and len(track) == 3 * 44_100
    assert track.mixture.abs().max() <= 0.9 + 1e-3
    for stem in track.stems.values():
        assert stem.dtype == torch.float32 and torch.equal(stem * 2**15, (stem * 2**15).round())


def test_songs_are_hard_but_not_impossible() -> None:
    """The mixture is no answer, the best mask is a good one, and plain NMF stays well below it."""
    features = Features()
    train, test = generate_tracks("train", 3, seconds=8.0), generate_tracks("test", 3, seconds=8.0)

    def hear(signals: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([features.of(features.analyze(signal[0])) for signal in signals])

    model = NMFSeparator.fit(
        hear([track.vocals for track in train]),
        hear([track.accompaniment for track in train]),
        (32, 32),
        max_iter=40,
        generator=torch.Generator().manual_seed(0),
    )
    scores = {"mixture": [], "oracle": [], "nmf": []}
    for track in test:
        parts = {
            "mixture": Separated(track.mixture, track.mixture),
            "oracle": separate_by_oracle(track.mixture, track.vocals),
            "nmf": separate(track.mixture, model),
        }
        for name, found in parts.items():
            scores[name].append(sdr(track.vocals, found.vocals))
    means = {name: sum(values) / len(values) for name, values in scores.items()}
    assert max(scores["mixture"]) <= 0 and min(scores["oracle"]) >= 8
    assert means["nmf"] <= means["oracle"] - 2 and means["nmf"] > means["mixture"]
