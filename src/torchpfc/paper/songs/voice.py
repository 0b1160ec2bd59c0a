"""A voice that sings: harmonics with a vibrato, shaped by the formants of vowels, and noise for consonants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchpfc.paper.songs.score import Note
from torchpfc.paper.songs.sounds import RATE, Signal, add, clock, envelope, noise

VOWELS = np.array(
    [
        (730.0, 1090.0, 2440.0, 3400.0),  # a
        (530.0, 1840.0, 2480.0, 3500.0),  # e
        (270.0, 2290.0, 3010.0, 3700.0),  # i
        (570.0, 840.0, 2410.0, 3300.0),  # o
        (300.0, 870.0, 2240.0, 3200.0),  # u
    ]
)
"""Formants in Hz."""

NASAL = np.array([250.0, 1100.0, 2200.0, 3000.0])
BANDWIDTHS = np.array([80.0, 100.0, 140.0, 220.0])
GAINS = np.array([1.0, 0.7, 0.45, 0.3])

FRICATIVES = ((4500.0, 9000.0), (2200.0, 6000.0), (1200.0, 7000.0))  # s, sh, f
PLOSIVES = ((300.0, 1500.0), (1500.0, 4000.0), (2500.0, 7000.0))  # p, k, t

_CONTROL = 256  # samples from one set of amplitudes to the next
_HIGHEST = 9000.0  # Hz; harmonics above are left out


@dataclass(frozen=True)
class _Singer:
    size: float
    """Formants are higher in a small head."""
    tilt: float
    """How fast the harmonics of the voice itself fall off."""
    vibrato_rate: float
    vibrato: float
    """In semitones."""
    breath: float
    consonants: float


def sing(rng: np.random.Generator, notes: list[Note], seconds: float) -> Signal:
    """Sings a melody, a syllable on each note."""
    out = np.zeros(len(clock(seconds)))
    singer = _Singer(
        size=float(rng.uniform(0.9, 1.2)),
        tilt=float(rng.uniform(0.5, 1.1)),
        vibrato_rate=float(rng.uniform(4.8, 6.6)),
        vibrato=float(rng.uniform(0.15, 0.6)),
        breath=float(rng.uniform(0.01, 0.05)),
        consonants=float(rng.uniform(0.1, 0.3)),
    )
    for before, note in zip([None, *notes], notes, strict=False):
        tied = before is not None and note.start - before.start - before.seconds < 0.1
        _syllable(rng, out, singer, note, before.pitch if before is not None and tied else note.pitch - 1.0)
    return out


def _syllable(rng: np.random.Generator, out: Signal, singer: _Singer, note: Note, pitch_before: float) -> None:
    first, second = VOWELS[rng.integers(len(VOWELS))], VOWELS[rng.integers(len(VOWELS))]
    kind = str(rng.choice(["none", "fricative", "plosive", "nasal"], p=[0.2, 0.3, 0.3, 0.2]))
    glide = second if rng.random() < 0.3 else first
    shape = np.stack([NASAL if kind == "nasal" else first, first, glide])
    add(out, note.start, note.loudness * _vowel(rng, singer, note, pitch_before, shape * singer.size))
    if kind in ("fricative", "plosive"):
        bands, lasting = (FRICATIVES, rng.uniform(0.05, 0.14)) if kind == "fricative" else (PLOSIVES, 0.03)
        t = clock(float(lasting))
        weight = envelope(t, 0.02, 0.03) if kind == "fricative" else np.exp(-t / 0.006)
        loudness = singer.consonants * note.loudness * (0.6 if kind == "fricative" else 1.2)
        add(out, note.start - t[-1] + 0.02, loudness * weight * noise(rng, len(t), *bands[rng.integers(len(bands))]))


def _vowel(rng: np.random.Generator, singer: _Singer, note: Note, pitch_before: float, shape: Signal) -> Signal:
    """A sung note: formants go from the first shape to the second quickly, and to the third until the end."""
    points = max(2, -(-round(note.seconds * RATE) // _CONTROL) + 1)
    t = np.arange((points - 1) * _CONTROL) / RATE
    phase = 2 * np.pi * np.cumsum(_frequency(rng, singer, note, pitch_before, t)) / RATE
    knots = np.arange(points) * _CONTROL / RATE
    onset, share = np.exp(-knots / 0.03)[:, None], (knots / knots[-1])[:, None]
    formants = onset * shape[0] + (1 - onset) * ((1 - share) * shape[1] + share * shape[2])  # (points, 4)
    count = max(1, int(_HIGHEST / note.frequency))
    f = note.frequency * np.arange(1, count + 1)[:, None]
    distance = (f[..., None] - formants) / BANDWIDTHS
    amplitudes = (GAINS / np.sqrt(1 + distance**2)).sum(-1) * np.arange(1, count + 1)[:, None] ** -singer.tilt
    wave = _harmonics(phase, amplitudes)
    breath = singer.breath * noise(rng, len(t), 800.0, 6000.0)
    return np.asarray((wave + breath) * envelope(t, 0.03, 0.05))


def _frequency(rng: np.random.Generator, singer: _Singer, note: Note, pitch_before: float, t: Signal) -> Signal:
    """The pitch slides to the note, then swings around it, and is never quite in tune."""
    slide = (pitch_before - note.pitch) * np.exp(-t / 0.025)
    swing = singer.vibrato * np.clip((t - 0.12) / 0.25, 0, 1)
    swing = swing * np.sin(2 * np.pi * (singer.vibrato_rate * t + rng.random()))
    wander = rng.normal(0, 0.08) + 0.06 * np.sin(2 * np.pi * (1.3 * t + rng.random()))
    return np.asarray(note.frequency * 2 ** ((slide + swing + wander) / 12))


def _harmonics(phase: Signal, amplitudes: Signal) -> Signal:
    """Sums harmonics whose amplitudes are given every so many samples, with straight lines between them."""
    ramp = np.arange(_CONTROL) / _CONTROL
    turn = phase.reshape(-1, _CONTROL)
    twice, last, now = 2 * np.cos(turn), np.zeros_like(turn), np.sin(turn)
    out = np.zeros_like(turn)
    for a in amplitudes:
        out += now * (a[:-1, None] + np.diff(a)[:, None] * ramp)
        now, last = twice * now - last, now  # sin(k + 1)φ = 2 cos φ sin kφ - sin(k - 1)φ
    return out.reshape(-1)
