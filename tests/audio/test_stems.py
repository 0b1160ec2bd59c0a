import subprocess
from importlib.metadata import files
from pathlib import Path

import av
import pytest
import torch
from torch import Tensor

from torchpfc.audio import (
    STEMS,
    Audio,
    ClipSampler,
    Track,
    all_clips,
    find_musdb,
    find_tracks,
    load_track,
    load_tracks,
    read_audio,
    unpack_stems,
    write_audio,
)
from torchpfc.data import DataError
from torchpfc.data.songs import excerpt_checksums
from torchpfc.paper.songs import generate_track, generate_tracks


def write_song(folder: Path, count: int = 400, channels: int = 2, rate: int = 44_100, stems: tuple[str, ...] = STEMS):
    for number, stem in enumerate(stems):
        samples = torch.full((channels, count), (number + 1) / 16)
        write_audio(folder / f"{stem}.wav", Audio(samples, rate))
    return folder


def write_stem_file(path: Path, sounds: list[Tensor], rate: int = 44_100) -> Path:
    """A file as MUSDB18 has them: the mixture first, then each stem."""
    with av.open(str(path), "w", format="mp4") as container:
        layout = "mono" if len(sounds[0]) == 1 else "stereo"
        streams = [container.add_stream("aac", rate=rate, layout=layout) for _ in sounds]
        for stream, samples in zip(streams, sounds, strict=True):
            frame = av.AudioFrame.from_ndarray(samples.numpy(), format="fltp", layout=layout)
            frame.sample_rate = rate
            for packet in [*stream.encode(frame), *stream.encode(None)]:
                container.mux(packet)
    return path


def tone(hertz: float, channels: int = 2, count: int = 8_000, rate: int = 44_100) -> Tensor:
    wave = 0.2 * torch.sin(2 * torch.pi * hertz * torch.arange(count) / rate)
    return wave.expand(channels, -1).contiguous()


def real_stem_file() -> Path:
    """The song of MUSDB18 that the package stempeg carries."""
    found = next(file for file in files("stempeg") if file.name.endswith("Falcon 69.stem.mp4"))
    return Path(found.locate())


def test_a_folder_of_wav_files_is_a_song(tmp_path: Path) -> None:
    track = load_track(write_song(tmp_path / "song"))
    assert track.name == "song" and track.rate == 44_100 and track.vocals.shape == (2, 400)
    assert torch.equal(track.vocals, torch.full((2, 400), 4 / 16))
    assert torch.equal(track.accompaniment, torch.full((2, 400), 6 / 16))
    assert torch.equal(track.mixture, torch.full((2, 400), 10 / 16))
    assert track.mono().vocals.shape == (1, 400)


def test_stems_that_differ_are_made_alike(tmp_path: Path) -> None:
    song = write_song(tmp_path / "song")
    write_audio(song / "bass.wav", Audio(torch.full((1, 100), 0.5), 22_050))
    track = load_track(song)
    assert track.stems["bass"].shape == (2, 400) and not track.stems["bass"][:, 200:].any()
    torch.testing.assert_close(track.stems["bass"][0, 80:120], torch.full((40,), 0.5), atol=0.05, rtol=0)
    write_audio(song / "drums.wav", Audio(torch.zeros(3, 100), 44_100))
    with pytest.raises(DataError, match="song must have stems of 3 channels or 1, got 2 in other"):
        load_track(song)


def test_songs_at_another_rate_are_converted(tmp_path: Path) -> None:
    (track,) = load_tracks([write_song(tmp_path / "song", count=800, rate=22_050)])
    assert track.rate == 44_100 and track.vocals.shape == (1, 1600)
    (stereo,) = load_tracks([tmp_path / "song"], rate=22_050, mono=False)
    assert stereo.rate == 22_050 and stereo.vocals.shape == (2, 800)
    (same,) = load_tracks([tmp_path / "song"], min_samples=1600)
    assert torch.equal(same.vocals, track.vocals)
    with pytest.raises(DataError, match=r"song must be as long as a clip, 0\.10 seconds, got 0\.04; move it away or"):
        load_tracks([tmp_path / "song"], min_samples=4410)


def test_the_layout_of_musdb(tmp_path: Path) -> None:
    for name in ("train/B", "train/A", "train/ANiMAL - Rockshow", "test/C"):
        write_song(tmp_path / name, count=10)
    (tmp_path / "train" / ".hidden").mkdir()
    (tmp_path / "train" / "empty").mkdir()
    found = find_musdb(tmp_path)
    assert [path.name for path in found.train] == ["A", "B"]
    assert [path.name for path in found.valid] == ["ANiMAL - Rockshow"]
    assert [path.name for path in found.test] == ["C"]


def test_excerpts_of_which_some_are_missing_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "musdb18-7s"
    for path in excerpt_checksums():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    assert [len(part) for part in find_musdb(root)] == [80, 14, 50]
    song = root / "train" / "Young Griffo - Pennies.stem.mp4"
    song.unlink()
    missing = r"musdb18-7s must have the 144 excerpts of MUSDB18, got no train/Young Griffo - Pennies\.stem\.mp4"
    with pytest.raises(DataError, match=rf"{missing}; run `torchpfc data get musdb18-7s --data-dir {tmp_path}`$"):
        find_musdb(root)
    write_song(song.with_name("Young Griffo - Pennies"), count=5)  # unpacked
    assert [len(part) for part in find_musdb(root)] == [80, 14, 50]
    for file in (root / "test").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"got no test/AM Contra - Heart Peripheral\.stem\.mp4 and 49 others; run"):
        find_musdb(root)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere must be a folder of songs, got no such folder"):
        find_tracks(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"must hold songs as TRACK/\{drums,bass,other,vocals\}\.wav or .*, got none"):
        find_tracks(tmp_path)
    song = write_song(tmp_path / "song", stems=("drums", "bass", "vocals"))
    with pytest.raises(DataError, match=r"song must have all stems, got no other\.wav"):
        find_tracks(tmp_path)
    with pytest.raises(DataError, match=r"song must have .*, got no other\.wav"):
        load_track(song)
    with pytest.raises(DataError, match=r"must be a folder of stems or a file that ends in \.stem\.mp4"):
        load_track(song / "drums.wav")
    (tmp_path / "fake.stem.mp4").write_text("not a song")
    with pytest.raises(DataError, match=r"fake\.stem\.mp4 must be an audio file"):
        load_track(tmp_path / "fake.stem.mp4")


def test_a_real_song_of_musdb18_is_read(tmp_path: Path) -> None:
    track = load_track(real_stem_file())
    assert track.name == "The Easton Ellises - Falcon 69" and track.rate == 44_100
    assert track.vocals.shape[0] == 2 and track.seconds > 2
    for stem in STEMS:
        assert 0 < track.stems[stem].abs().max() < 1.5, stem
    folder = unpack_stems(real_stem_file(), tmp_path)
    again = load_track(folder)
    assert folder.name == track.name and torch.equal(again.mixture, track.mixture)


def test_a_real_song_is_read_as_ffmpeg_reads_it() -> None:
    ffmpeg = pytest.importorskip(
        "imageio_ffmpeg", reason="the program that it brings is not installed"
    ).get_ffmpeg_exe()
    track = load_track(real_stem_file())
    for number, sound in enumerate((read_audio(real_stem_file()).samples, *(track.stems[stem] for stem in STEMS))):
        command = [ffmpeg, "-v", "error", "-i", real_stem_file(), "-map", f"0:a:{number}", "-f", "f32le", "-"]
        decoded = subprocess.run(command, capture_output=True, check=True).stdout
        samples = torch.frombuffer(bytearray(decoded), dtype=torch.float32).reshape(-1, 2).T
        torch.testing.assert_close(sound, samples, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("channels", "rate"), [(1, 44_100), (2, 44_100), (2, 22_050)])
def test_stem_files_of_any_kind_are_read(channels: int, rate: int, tmp_path: Path) -> None:
    pitches = dict(zip(STEMS, (441.0, 882.0, 1764.0), strict=False))  # the vocals are silent
    sounds = [tone(pitches.get(stem, 0.0), channels, rate=rate) for stem in STEMS]
    (track,) = load_tracks([write_stem_file(tmp_path / "song.stem.mp4", [sum(sounds), *sounds], rate)], mono=False)
    assert track.name == "song" and track.rate == 44_100 and track.vocals.shape[0] == channels
    assert not track.vocals.any()
    for stem, hertz in pitches.items():
        loudest = torch.fft.rfft(track.stems[stem][0, :8_000]).abs().argmax()
        assert float(loudest) * 44_100 / 8_000 == pytest.approx(hertz, abs=6), stem


def test_a_stem_file_without_all_stems_is_named(tmp_path: Path) -> None:
    path = write_stem_file(tmp_path / "song.stem.mp4", [tone(440)] * 4)
    with pytest.raises(DataError, match=r"song\.stem\.mp4 must hold at least 5 sounds, got 4"):
        load_track(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match=r"song\.stem\.mp4 must be an audio file"):
        load_track(path)


def test_stems_must_fit_together() -> None:
    stems = {stem: torch.zeros(1, 5) for stem in STEMS}
    with pytest.raises(ValueError, match="stems must have drums, bass, other, vocals, got none called bass"):
        Track("song", {stem: stems[stem] for stem in STEMS if stem != "bass"}, 44_100)
    with pytest.raises(ValueError, match=r"stems must have one shape \(channels, n\), got \[\(1, 4\), \(1, 5\)\]"):
        Track("song", stems | {"bass": torch.zeros(1, 4)}, 44_100)
    half = Track("song", stems, 44_100).to(dtype=torch.float16)
    assert half.mixture.dtype == torch.float16


# Clips


def numbered(count: int, name: str = "song") -> Track:
    """A song whose samples tell the stem and the place."""
    base = torch.arange(count, dtype=torch.float32).unsqueeze(0)
    return Track(name, {stem: base * 10.0**-k for k, stem in enumerate(STEMS)}, 44_100)


def test_aligned_clips_come_from_one_place() -> None:
    clips = ClipSampler([numbered(50)], samples=7, gains=None, aligned=True).draw(20, torch.Generator().manual_seed(0))
    torch.testing.assert_close(clips.mixture, clips.vocals * 1111)
    starts = (clips.vocals[:, 0] * 1000).round()
    assert len(starts.unique()) > 10 and starts.max() <= 43
    torch.testing.assert_close(clips.vocals[:, 3] - clips.vocals[:, 0], torch.full((20,), 3e-3))


def test_stems_of_other_clips_come_from_places_of_their_own() -> None:
    clips = ClipSampler([numbered(1000)], samples=5, gains=None).draw(20, torch.Generator().manual_seed(0))
    assert ((clips.mixture - clips.vocals * 1111).abs().amax(-1) > 1).sum() > 15


def test_each_clip_has_gains_of_its_own_unless_the_batch_shares_them() -> None:
    song = Track("song", {stem: torch.ones(1, 100) for stem in STEMS}, 44_100)
    own = ClipSampler([song], samples=5).draw(200, torch.Generator().manual_seed(0)).vocals[:, 0]
    assert 0.5 <= own.min() < 0.6 and 1.9 < own.max() <= 2.0
    shared = ClipSampler([song], samples=5, gain_per_batch=True).draw(9, torch.Generator().manual_seed(0))
    assert len(shared.vocals.unique()) == 1 and len(shared.mixture.unique()) == 1
    assert not torch.equal(shared.mixture, 4 * shared.vocals)


def test_the_same_generator_draws_the_same_clips() -> None:
    sampler = ClipSampler(generate_tracks("train", 2, seconds=1.0), samples=1000)
    one, same, other = (sampler.draw(3, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(one.mixture, same.mixture) and not torch.equal(one.mixture, other.mixture)


def test_long_songs_are_drawn_more_often() -> None:
    sampler = ClipSampler([numbered(14), numbered(95)], samples=5, gains=None, aligned=True)
    places = sampler._places(2000, torch.Generator().manual_seed(0))
    assert sum(song == 1 for song, _ in places) == pytest.approx(2000 * 91 / 101, rel=0.05)
    assert {at for song, at in places if song == 0} == set(range(10))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tracks": []}, "tracks must have at least one song, got none"),
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"samples": 51}, "tracks must have at least 51 samples, got 50 in song; take shorter clips"),
        ({"gains": (2.0, 0.5)}, r"gains must be a range of factors, got \(2\.0, 0\.5\)"),
        ({"tracks": [Track("two", {s: torch.zeros(2, 50) for s in STEMS}, 44_100)]}, "one channel, got 2 in two"),
        ({"tracks": [numbered(50), Track("b", numbered(50).stems, 8_000)]}, r"one rate, got \[8000, 44100\]"),
    ],
)
def test_bad_settings_of_clips(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClipSampler(**({"tracks": [numbered(50)], "samples": 5} | settings))


def test_a_song_is_cut_into_clips() -> None:
    clips = all_clips([numbered(14), numbered(50)], samples=7)
    assert clips.vocals.shape == (2 + 7, 7) and clips.vocals[2:, 0].tolist() == clips.vocals[2:, 0].sort()[0].tolist()
    torch.testing.assert_close(clips.mixture, clips.vocals * 1111)
    with pytest.raises(ValueError, match="tracks must have at least 15 samples, got 14 in song; take shorter clips"):
        all_clips([numbered(50), numbered(14)], samples=15)


def test_no_clips() -> None:
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        ClipSampler([numbered(50)], samples=5).draw(0, torch.Generator())


def test_made_up_songs_are_still_found_here() -> None:
    import torchpfc.audio

    assert torchpfc.audio.generate_track is generate_track
    with pytest.raises(AttributeError, match="no attribute 'generate_opera'"):
        _ = torchpfc.audio.generate_opera
