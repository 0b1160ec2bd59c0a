"""Audio source separation: vocals out of a mixture, from a folder of stems to a WAV file."""

from importlib import import_module
from typing import Any

from torchpfc.audio.clips import Clips, ClipSampler, all_clips, hear, hear_both
from torchpfc.audio.features import Features, StreamingAnalysis, StreamingSynthesis
from torchpfc.audio.files import Audio, AudioReader, AudioWriter, read_audio, write_audio
from torchpfc.audio.losses import SeparationErrors
from torchpfc.audio.masks import apply_mask, soft_mask
from torchpfc.audio.metrics import Scores, TrackScores, bss_eval, feature_mse, median_scores, sdr, superposition_error
from torchpfc.audio.models import SavedSeparator, load_separator, save_separator
from torchpfc.audio.nmf import NMFSeparator
from torchpfc.audio.resampling import Resampler, resample
from torchpfc.audio.separation import Separated, Separator, separate, separate_by_oracle, separate_file
from torchpfc.audio.stems import (
    STEMS,
    MusdbFiles,
    Track,
    TrainingFiles,
    find_musdb,
    find_tracks,
    find_training_songs,
    load_track,
    load_tracks,
    unpack_stems,
)
from torchpfc.audio.training import TrainedSeparator, train_separator

__all__ = [
    "STEMS",
    "Audio",
    "AudioReader",
    "AudioWriter",
    "ClipSampler",
    "Clips",
    "Features",
    "MusdbFiles",
    "NMFSeparator",
    "Resampler",
    "SavedSeparator",
    "Scores",
    "Separated",
    "SeparationErrors",
    "Separator",
    "StreamingAnalysis",
    "StreamingSynthesis",
    "Track",
    "TrackScores",
    "TrainedSeparator",
    "TrainingFiles",
    "all_clips",
    "apply_mask",
    "bss_eval",
    "feature_mse",
    "find_musdb",
    "find_tracks",
    "find_training_songs",
    "hear",
    "hear_both",
    "load_separator",
    "load_track",
    "load_tracks",
    "median_scores",
    "read_audio",
    "resample",
    "save_separator",
    "sdr",
    "separate",
    "separate_by_oracle",
    "separate_file",
    "soft_mask",
    "superposition_error",
    "train_separator",
    "unpack_stems",
    "write_audio",
]

_SONGS = ("fingerprint", "generate_track", "generate_tracks")  # they live with the paper's experiments now


def __getattr__(name: str) -> Any:
    if name in _SONGS:
        return getattr(import_module("torchpfc.paper.songs"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
