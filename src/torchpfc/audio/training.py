"""A separation model from a folder of songs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchpfc.audio.clips import Clips, ClipSampler, all_clips, hear_both
from torchpfc.audio.features import Features
from torchpfc.audio.losses import SeparationErrors
from torchpfc.audio.models import save_separator
from torchpfc.audio.stems import Track, find_training_songs, load_tracks
from torchpfc.checkpoint import STATE_FILE, check_writable
from torchpfc.data.formats import DataError
from torchpfc.nn.recurrent.rnn import FactorizedRNN
from torchpfc.optim.rmsprop import RMSprop
from torchpfc.progress import Progress, Ticking
from torchpfc.solvers.checks import check_at_least_one
from torchpfc.training import Batch, EarlyStopping, fit, random_stream

FEATURES = Features()

MASK_WEIGHT = 4.0
"""What errors of the masked mixture count, chosen on validation songs of the excerpts of MUSDB18."""

ROUND_STEPS = 50
"""Steps from one validation to the next."""

PATIENCE = 8
"""How many validations may pass without a lower error."""

VALIDATION_CLIPS = 256
"""How many clips of validation songs are heard at most, evenly spread."""

WEIGHT_DECAY = 5e-5


class TrainedSeparator(NamedTuple):
    """What came of a training."""

    folder: Path
    """Where the model is, for `load_separator`."""
    valid_loss: float
    """What `SeparationErrors` finds for it on validation songs."""
    steps: int
    """After how many steps it was at its best."""


def train_separator(
    songs: Path,
    out: Path,
    *,
    num_basis: int = 256,
    steps: int = 2000,
    lr: float = 1e-3,
    batch_size: int = 20,
    clip_seconds: float = 2.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: bool | None = None,
) -> TrainedSeparator:
    """Trains a `FactorizedRNN` to hear the vocals in songs, and keeps it as it is when its validation error is lowest.

    It answers with features of the vocals and of the rest, whose ratio makes the mask, and `SeparationErrors` of both
    the answers and the mask is what it learns from. Clips have their stems from different songs, as `ClipSampler` draws
    them. It is saved whenever it has become better, so a training that is interrupted leaves the best model so far. All
    songs are kept in memory, which takes 85 MB for four minutes.

    Args:
        songs: A folder of songs, of which `find_training_songs` holds some out for validation.
        out: The folder for the model, new or empty.
        num_basis: Number of parts.
        steps: Of the optimizer, at most: training stops when the validation error no longer falls.
        lr: Learning rate.
        batch_size: Clips in a step.
        clip_seconds: Length of a clip; no song may be shorter.
        seed: Decides the first weights and the clips.
        device: Where to train.
        progress: Whether to show a progress bar, where rich is installed. None shows one on a terminal after 2 seconds,
            and elsewhere prints a line now and then.

    Raises:
        DataError: Where a song is missing, not complete, damaged or shorter than a clip, or the folder for the model
            is not empty.
    """
    check_at_least_one(num_basis=num_basis, steps=steps, batch_size=batch_size)
    samples = round(clip_seconds * FEATURES.rate)
    if samples < FEATURES.window:
        raise ValueError(f"clip_seconds must be at least {FEATURES.window / FEATURES.rate:.3f}, got {clip_seconds}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} must be a new or an empty folder, got neither; delete it or name another")
    files = find_training_songs(songs)
    tracks = _read([*files.train, *files.valid], samples, progress)
    out.mkdir(parents=True, exist_ok=True)
    check_writable(out / STATE_FILE)  # before the training, whose end would be a bad time to find that one cannot
    train, valid = tracks[: len(files.train)], tracks[len(files.train) :]
    batches = _FreshClips(ClipSampler(train, samples), batch_size, min(steps, ROUND_STEPS), seed, device)
    heard = Clips(*(part.to(device) for part in hear_both(_spread(valid, samples))))
    sizes = FEATURES.bins, num_basis, 2 * FEATURES.bins
    model = FactorizedRNN(*sizes, nonnegative=False, generator=random_stream(seed, "weights")).to(device)
    errors = SeparationErrors(FEATURES, MASK_WEIGHT)
    optimizer = RMSprop(model.parameters(), lr, weight_decay=WEIGHT_DECAY)
    rounds = max(1, round(steps / len(batches)))
    stopping, best = EarlyStopping(PATIENCE, watch_accuracy=False), None
    with Progress(rounds, "Training", show=progress, lines=progress is None) as bar:
        for stats in fit(model, optimizer, Ticking(batches, bar.at), errors, epochs=rounds):
            loss = _validate(model, errors, heard, batch_size)
            if stopping.update(loss, -loss):
                best = TrainedSeparator(out, float(loss), (stats.epoch + 1) * len(batches))
                about = {"valid_loss": best.valid_loss, "steps": best.steps, "seed": seed}
                save_separator(out, model, FEATURES, about)
            if stopping.stopped:
                break
            bar.at(stats.epoch + 1, f"Training, validation error {loss:.5f}")
    if best is None:
        out.rmdir()  # nothing came of it
        raise ValueError(f"lr must be small enough for errors to stay finite, got {lr}")
    return best


class _FreshClips:
    """Clips to learn from, others in each epoch, which depend on the seed and the epoch alone."""

    def __init__(
        self, sampler: ClipSampler, batch_size: int, count: int, seed: int, device: torch.device | str
    ) -> None:
        self._sampler, self._batch_size, self._count, self._seed = sampler, batch_size, count, seed
        self._device, self._epoch = device, 0

    def __len__(self) -> int:
        return self._count

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        for k in range(self._count):
            clips = self._sampler.draw(self._batch_size, random_stream(self._seed, "clips", self._epoch, k))
            yield Batch(*(part.to(self._device) for part in hear_both(clips)))


def _read(paths: Sequence[Path], samples: int, progress: bool | None) -> list[Track]:
    """Songs in half precision, whose noise is 66 dB below the signal."""
    tracks: list[Track] = []
    with Progress(len(paths), "Reading songs", show=progress, lines=progress is None) as bar:
        for path in paths:
            (track,) = load_tracks([path], rate=FEATURES.rate, min_samples=samples)
            tracks.append(track.to(dtype=torch.float16))
            bar.at(len(tracks))
    return tracks


def _spread(tracks: Sequence[Track], samples: int) -> Clips:
    """Clips from all over some songs, no more than are needed."""
    clips = all_clips(tracks, samples)
    count = len(clips.vocals)
    chosen = torch.linspace(0, count - 1, min(count, VALIDATION_CLIPS)).round().long()
    return Clips(*(part[chosen] for part in clips))


@torch.no_grad()
def _validate(model: nn.Module, errors: SeparationErrors, clips: Clips, batch_size: int) -> Tensor:
    model.eval()
    parts = zip(*(torch.split(part, batch_size) for part in clips), strict=True)
    total = sum(errors(model, x, target).loss * len(x) for x, target in parts)
    return torch.as_tensor(total / len(clips.mixture)).cpu()
