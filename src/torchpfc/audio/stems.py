"""Songs as stems: folders of WAV files, MUSDB18 and MUSDB18-HQ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torchpfc.audio.files import Audio, read_audio, write_audio
from torchpfc.audio.resampling import resample
from torchpfc.data.formats import DataError
from torchpfc.data.songs import EXCERPTS, STEM_FILE, check_excerpts

STEMS = ("drums", "bass", "other", "vocals")
"""The stems of a song, in the order in which stem files have them after the mixture."""

VALIDATION_TRACKS = frozenset(
    {
        "ANiMAL - Rockshow",
        "Actions - One Minute Smile",
        "Alexander Ross - Goodbye Bolero",
        "Clara Berry And Wooldog - Waltz For My Victims",
        "Fergessen - Nos Palpitants",
        "James May - On The Line",
        "Johnny Lokke - Promises & Lies",
        "Leaf - Summerghost",
        "Meaxic - Take A Step",
        "Patrick Talbot - A Reason To Leave",
        "Skelpolu - Human Mistakes",
        "Traffic Experiment - Sirens",
        "Triviul - Angelsaint",
        "Young Griffo - Pennies",
    }
)
"""The tracks of MUSDB18's training set that are by convention for validation."""


@dataclass(frozen=True, eq=False)
class Track:
    r"""A song in parts that add up to it.

    Args:
        name: What it is called.
        stems: Drums, bass, other and vocals.
        rate: Samples per second.

    Shape:
        - each stem: $(\text{channels}, n)$

    Example:
        >>> track = Track("song", {name: torch.ones(2, 5) for name in STEMS}, 44_100)
        >>> track.mixture[0, 0], track.accompaniment[0, 0], track.seconds
        (tensor(4.), tensor(3.), 0.00011337868480725624)
    """

    name: str
    stems: Mapping[str, Tensor]
    rate: int

    def __post_init__(self) -> None:
        """Checks that no stem is missing and that all have one shape."""
        missing = [stem for stem in STEMS if stem not in self.stems]
        if missing:
            raise ValueError(f"stems must have {', '.join(STEMS)}, got none called {', '.join(missing)}")
        shapes = {tuple(stem.shape) for stem in self.stems.values()}
        if len(shapes) > 1 or len(next(iter(shapes))) != 2:
            raise ValueError(f"stems must have one shape (channels, n), got {sorted(shapes)}")

    def __len__(self) -> int:
        return self.stems["vocals"].shape[-1]

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self) / self.rate

    @property
    def vocals(self) -> Tensor:
        """The sung part."""
        return self.stems["vocals"]

    @property
    def accompaniment(self) -> Tensor:
        """Everything else."""
        return self.stems["drums"] + self.stems["bass"] + self.stems["other"]

    @property
    def mixture(self) -> Tensor:
        """All stems together."""
        return self.accompaniment + self.vocals

    def mono(self) -> Track:
        """The same with one channel, the mean of all."""
        return Track(self.name, {name: stem.mean(0, keepdim=True) for name, stem in self.stems.items()}, self.rate)

    def at_rate(self, rate: int) -> Track:
        """The same at another sample rate."""
        return Track(self.name, {name: resample(stem, self.rate, rate) for name, stem in self.stems.items()}, rate)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Track:
        """The same on a device, or as numbers of another type: half precision needs half the memory."""
        stems = {name: stem.to(device=device, dtype=dtype) for name, stem in self.stems.items()}
        return Track(self.name, stems, self.rate)


def load_track(path: Path) -> Track:
    """Loads one song: a folder with `drums`, `bass`, `other` and `vocals` as WAV files, or a `.stem.mp4` file.

    Its mixture is the sum of these. The one that a stem file has beside them may differ, since each sound in it is
    compressed by itself; `read_audio` reads it.

    Stems of a folder may differ in length, rate and channels. They are made like the longest, the fastest and the one
    with the most channels: zeros at the end, another rate, the same signal in each channel.

    Args:
        path: The folder or the file.

    Raises:
        DataError: Where a stem is missing or is not audio.
    """
    if path.is_dir():
        files = {stem: path / f"{stem}.wav" for stem in STEMS}
        missing = [file.name for file in files.values() if not file.is_file()]
        if missing:
            raise DataError(f"{path} must have {', '.join(f'{s}.wav' for s in STEMS)}, got no {', '.join(missing)}")
        return _align(path.name, {stem: read_audio(file) for stem, file in files.items()})
    if not path.name.endswith(STEM_FILE):
        raise DataError(f"{path} must be a folder of stems or a file that ends in {STEM_FILE}")
    # The first sound of the file is the mixture.
    stems = {stem: read_audio(path, stream) for stream, stem in enumerate(STEMS, start=1)}
    return _align(path.name.removesuffix(STEM_FILE), stems)


def find_tracks(folder: Path) -> list[Path]:
    """The songs in a folder, sorted by name: folders of stems, and `.stem.mp4` files.

    Args:
        folder: Where to look.

    Raises:
        DataError: Where the folder does not exist, has no song, or has one whose stems are not complete.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} must be a folder of songs, got no such folder")
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    wavs = {path: {file.stem for file in path.glob("*.wav")} & {*STEMS} for path in inside if path.is_dir()}
    for path, found in wavs.items():
        if 0 < len(found) < len(STEMS):
            missing = ", ".join(f"{stem}.wav" for stem in STEMS if stem not in found)
            raise DataError(f"{path} must have all stems, got no {missing}; add them or move the folder away")
    songs = [path for path in inside if wavs.get(path) or (path.is_file() and path.name.endswith(STEM_FILE))]
    if not songs:
        layout = f"TRACK/{{{','.join(STEMS)}}}.wav or TRACK{STEM_FILE}"
        raise DataError(f"{folder} must hold songs as {layout}, got none")
    return songs


def load_tracks(paths: Iterable[Path], *, rate: int = 44_100, mono: bool = True, min_samples: int = 1) -> list[Track]:
    """Loads songs into memory, all at one rate.

    Args:
        paths: As `find_tracks` lists them.
        rate: Samples per second.
        mono: Whether to take the mean of the channels, as the paper does.
        min_samples: How many samples, at that rate, each must have: those of a clip.

    Raises:
        DataError: Where a song is damaged, not complete or too short.
    """
    tracks = []
    for path in paths:
        track = load_track(path)
        track = (track.mono() if mono else track).at_rate(rate)
        if len(track) < min_samples:
            wanted = f"as long as a clip, {min_samples / rate:.2f} seconds"
            raise DataError(f"{path} must be {wanted}, got {track.seconds:.2f}; move it away or take shorter clips")
        tracks.append(track)
    return tracks


class MusdbFiles(NamedTuple):
    """The songs of MUSDB18 or MUSDB18-HQ: 86, 14 and 50 where all are there."""

    train: list[Path]
    valid: list[Path]
    test: list[Path]


def find_musdb(root: Path) -> MusdbFiles:
    """The songs of a copy of MUSDB18 or MUSDB18-HQ, with the usual validation tracks taken out of the training set.

    Args:
        root: The folder that has `train` and `test` in it. One that is called `musdb18-7s` must have all excerpts.

    Raises:
        DataError: Where one of these is missing or empty.
    """
    _check_complete(root)
    train, test = find_tracks(root / "train"), find_tracks(root / "test")
    valid = _for_validation(train)
    return MusdbFiles([path for path in train if path not in valid], valid, test)


class TrainingFiles(NamedTuple):
    """Songs to learn from, and songs to choose the best model with."""

    train: list[Path]
    valid: list[Path]


def find_training_songs(folder: Path) -> TrainingFiles:
    """The songs of any folder that a model may learn from, some of them held out for validation.

    Of a folder that has `train` in it, as MUSDB18 does, these are the songs in there. What is in `valid` is held out,
    or else the usual validation tracks of MUSDB18, or where none of them is there every seventh song.

    Args:
        folder: Where to look. One that is called `musdb18-7s` must have all excerpts.

    Raises:
        DataError: As `find_tracks` does, and where there are fewer than two songs.
    """
    _check_complete(folder)
    nested = (folder / "train").is_dir()
    songs = find_tracks(folder / "train" if nested else folder)
    if nested and (folder / "valid").is_dir():
        return TrainingFiles(songs, find_tracks(folder / "valid"))
    if len(songs) < 2:
        raise DataError(f"{folder} must have at least two songs, one of them for validation, got {songs[0].name} alone")
    valid = _for_validation(songs)
    if len(valid) in (0, len(songs)):
        valid = songs[6::7] or songs[-1:]
    return TrainingFiles([path for path in songs if path not in valid], valid)


def _check_complete(folder: Path) -> None:
    if folder.name == EXCERPTS and folder.is_dir():
        check_excerpts(folder)


def _for_validation(songs: Iterable[Path]) -> list[Path]:
    return [path for path in songs if path.name.removesuffix(STEM_FILE) in VALIDATION_TRACKS]


def unpack_stems(path: Path, folder: Path) -> Path:
    """Writes a `.stem.mp4` file as a folder of WAV files, which are read much faster.

    Args:
        path: The file.
        folder: Where the folder, which is called like the song, goes.
    """
    track = load_track(path)
    for stem, samples in track.stems.items():
        write_audio(folder / track.name / f"{stem}.wav", Audio(samples, track.rate))
    return folder / track.name


def _align(name: str, stems: Mapping[str, Audio]) -> Track:
    rate, channels = max(a.rate for a in stems.values()), max(len(a.samples) for a in stems.values())
    samples: dict[str, Tensor] = {}
    for stem, audio in stems.items():
        if len(audio.samples) not in (1, channels):
            raise DataError(f"{name} must have stems of {channels} channels or 1, got {len(audio.samples)} in {stem}")
        samples[stem] = resample(audio.samples, audio.rate, rate).expand(channels, -1)
    length = max(stem.shape[-1] for stem in samples.values())
    pad = torch.nn.functional.pad
    return Track(name, {stem: pad(signal, (0, length - signal.shape[-1])) for stem, signal in samples.items()}, rate)
