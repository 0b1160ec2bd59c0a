"""Audio files: reading them piece by piece, and writing WAV files that are either whole or not there."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor

from torchpfc.data.formats import DataError

BLOCK = 1 << 17
"""Samples that are read at once: about three seconds."""


_LARGEST_WAV = 2**32 - 2**16  # bytes; the format counts them in 32 bits


class Audio(NamedTuple):
    r"""Sound and its sample rate.

    Shape:
        - samples: $(\text{channels}, n)$, float32, between -1 and 1 where nothing is clipped
    """

    samples: Tensor
    rate: int


class AudioReader:
    """An audio file that is read piece by piece, in constant memory.

    WAV, FLAC, OGG and MP3 are read by libsndfile, which comes with the package soundfile. Where the package av is
    installed, it reads what else there is, such as M4A and MP4.

    Args:
        path: The file.
        stream: Which sound of a file that holds several, counted from 0.

    Raises:
        DataError: Where there is no such file, or no sound in it.
    """

    rate: int
    """Samples per second."""
    channels: int
    """How many signals there are."""
    length: int | None
    """Samples of each signal, as the file says, which may be off by a little; None where it does not say so."""

    def __init__(self, path: Path, stream: int = 0) -> None:
        if not path.is_file():
            raise DataError(f"{path} must be an audio file, got {'a folder' if path.is_dir() else 'nothing there'}")
        self._path = path
        self._source = (None if stream else _open_sndfile(path)) or _open_av(path, stream)
        self.rate, self.channels, self.length = self._source[:3]
        if self.length == 0:
            self.close()
            raise DataError(f"{path} must hold sound, got a file without samples")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._source.close()

    def blocks(self, size: int = BLOCK) -> Iterator[Tensor]:
        r"""All samples, in pieces of $(\text{channels}, \text{size})$ and what is left at the end.

        Args:
            size: Samples of a piece at most.

        Raises:
            DataError: At a sample that is not a finite number, or where the file is damaged.
        """
        done = 0
        for block in self._source.blocks(size):
            if not bool(block.isfinite().all()):
                first = int(block.isfinite().all(0).logical_not().nonzero()[0])
                seconds = (done + first) / self.rate
                raise DataError(f"{self._path} must have finite samples, got NaN or infinity at {seconds:.3f} seconds")
            done += block.shape[-1]
            yield block
        if not done:
            raise DataError(f"{self._path} must hold sound, got a file without samples")


def read_audio(path: Path, stream: int = 0) -> Audio:
    """Reads all of an audio file.

    Args:
        path: The file.
        stream: Which sound of a file that holds several, counted from 0.

    Raises:
        DataError: Where there is no such file, or no sound in it, or samples that are not finite.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_audio(Path(folder) / "silence.wav", Audio(torch.zeros(2, 100), 8_000))
        ...     audio = read_audio(Path(folder) / "silence.wav")
        >>> audio.samples.shape, audio.rate
        (torch.Size([2, 100]), 8000)
    """
    with AudioReader(path, stream) as reader:
        return Audio(torch.cat(list(reader.blocks()), dim=-1), reader.rate)


class AudioWriter:
    """A WAV file of 32-bit floating-point samples, so that nothing is clipped. It gets its name when it is complete.

    Args:
        path: The file; its folder is made if need be.
        rate: Samples per second.
        channels: How many signals there are.
        length: Samples of each signal, where they are known. What is too large for WAV is written as RF64, which has
            the same name and is read by most programs.
    """

    def __init__(self, path: Path, rate: int, channels: int, length: int | None = None) -> None:
        import soundfile

        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._unfinished = path, path.with_name(f".{path.name}.{os.getpid()}")
        kind = "RF64" if 4 * channels * (length or 0) > _LARGEST_WAV else "WAV"
        with _as_os_error(path):
            self._file = soundfile.SoundFile(
                self._unfinished, "w", samplerate=rate, channels=channels, format=kind, subtype="FLOAT"
            )

    def write(self, samples: Tensor) -> None:
        r"""Appends samples, $(\text{channels}, n)$."""
        with _as_os_error(self._path):
            self._file.write(samples.T.contiguous().numpy())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if kind is None:
            os.replace(self._unfinished, self._path)
        else:
            self._unfinished.unlink(missing_ok=True)


def write_audio(path: Path, audio: Audio) -> None:
    """Writes a WAV file of 32-bit floating-point samples.

    Args:
        path: The file; its folder is made if need be.
        audio: What to write.
    """
    with AudioWriter(path, audio.rate, len(audio.samples)) as writer:
        writer.write(audio.samples)


def encode_mp3(audio: Audio) -> bytes:
    """The bytes of an MP3 file, which every browser plays.

    Args:
        audio: What to encode. Samples beyond -1 and 1 are brought down with all others: MP3 has no room for them.
    """
    import soundfile

    loudest = max(float(audio.samples.abs().max()), 1.0)
    buffer = io.BytesIO()
    soundfile.write(buffer, (audio.samples / loudest).T.contiguous().numpy(), audio.rate, format="MP3")
    return buffer.getvalue()


@contextmanager
def _as_os_error(path: Path) -> Iterator[None]:
    """A full disk is not an error of the library that meets it."""
    import soundfile

    try:
        yield
    except soundfile.LibsndfileError as error:
        raise OSError(f"{path} could not be written ({error})") from None


class _Source(NamedTuple):
    """A sound that a library has opened."""

    rate: int
    channels: int
    length: int | None
    blocks: Callable[[int], Iterator[Tensor]]
    close: Callable[[], None]


def _open_sndfile(path: Path) -> _Source | None:
    """What libsndfile reads; None where the file is of a kind that it does not know."""
    import soundfile

    try:
        file = soundfile.SoundFile(path)
    except soundfile.LibsndfileError:
        return None

    def blocks(size: int) -> Iterator[Tensor]:
        try:
            for block in file.blocks(blocksize=size, dtype="float32", always_2d=True):
                yield torch.from_numpy(block).T.contiguous()
        except soundfile.LibsndfileError as error:
            raise DataError(f"{path} must be an audio file that can be read to its end ({error})") from None

    return _Source(int(file.samplerate), int(file.channels), int(file.frames), blocks, file.close)


def _open_av(path: Path, stream: int) -> _Source:
    """What FFmpeg's libraries read, which come with the package av."""
    try:
        import av
    except ModuleNotFoundError:
        kinds = "WAV, FLAC, OGG or MP3; for others install the package av"
        raise DataError(f"{path} must be an audio file: {kinds}") from None
    try:
        container = av.open(str(path))
    except (av.error.FFmpegError, ValueError) as error:
        raise DataError(f"{path} must be an audio file ({error})") from None
    sounds = container.streams.audio
    if stream >= len(sounds):
        container.close()
        raise DataError(f"{path} must hold at least {stream + 1} sounds, got {len(sounds)}")
    sound = sounds[stream]
    rate, duration, unit = int(sound.rate), sound.duration, sound.time_base
    length = None if duration is None or unit is None else round(float(duration * unit) * rate)

    def blocks(size: int) -> Iterator[Tensor]:
        pieces = av.AudioResampler(format="fltp", frame_size=size)
        try:
            for frame in chain(container.decode(sound), [None]):  # None: what is left
                for piece in pieces.resample(frame):
                    yield torch.from_numpy(piece.to_ndarray())
        except (av.error.FFmpegError, ValueError) as error:  # ValueError: it goes on at another rate
            raise DataError(f"{path} must be an audio file that can be read to its end ({error})") from None

    return _Source(rate, int(sound.channels), length, blocks, container.close)
