"""What is played: key, tempo, chords, a melody, and the patterns of the band."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

MODES = ((0, 2, 4, 5, 7, 9, 11), (0, 2, 3, 5, 7, 8, 10), (0, 2, 3, 5, 7, 9, 10))
"""Major, minor and Dorian, in semitones above the key."""

PROGRESSIONS = (
    (0, 4, 5, 3),
    (0, 5, 3, 4),
    (5, 3, 0, 4),
    (0, 3, 4, 3),
    (0, 2, 3, 4),
    (0, 6, 5, 4),
    (1, 4, 0, 5),
    (0, 0, 3, 4),
)
"""Chords of four bars, as degrees of the scale."""

KICKS = ((0, 8), (0, 6, 8), (0, 4, 8, 12), (0, 7, 10), (0, 3, 8, 11), (0, 10))
SNARES = ((4, 12), (4, 12, 15), (8,), (4, 7, 12))
BASS_LINES = ((0, 8), (0, 4, 8, 12), (0, 2, 4, 6, 8, 10, 12, 14), (0, 6, 8, 14), (0, 3, 6, 10, 12))
CHORD_RHYTHMS = ((0,), (0, 8), (0, 4, 8, 12), (0, 3, 6, 8, 11, 14), (2, 6, 10, 14), (0, 6, 12))
"""Patterns of a bar, in sixteenths."""

SIXTEENTHS = 16


@dataclass(frozen=True)
class Note:
    """A sound at a time.

    Args:
        start: When it begins, in seconds.
        seconds: How long it lasts.
        pitch: MIDI number; 69 is 440 Hz.
        loudness: A factor of about 1.
    """

    start: float
    seconds: float
    pitch: float
    loudness: float

    @property
    def frequency(self) -> float:
        """Of the pitch, in Hz."""
        return float(440.0 * 2 ** ((self.pitch - 69) / 12))


@dataclass(frozen=True)
class Score:
    """All that is played in a song."""

    melody: list[Note]
    bass: list[Note]
    chords: list[Note]
    lead: list[Note]
    kick: list[Note]
    snare: list[Note]
    hat: list[Note]
    tom: list[Note]


@dataclass(frozen=True)
class _Grid:
    """Where the sixteenths of a song are; every second one may come late (swing)."""

    step: float
    swing: float
    key: int
    mode: Sequence[int]
    degrees: Sequence[int]
    """The chord of each bar."""

    def at(self, bar: int, sixteenth: float) -> float:
        late = self.swing * self.step if int(sixteenth) % 2 else 0.0
        return (bar * SIXTEENTHS + sixteenth) * self.step + late

    def pitch(self, degree: int) -> int:
        octave, place = divmod(degree, len(self.mode))
        return self.key + 12 * octave + self.mode[place]


def compose(rng: np.random.Generator, seconds: float) -> Score:
    """Writes a song.

    Args:
        rng: Source of every choice.
        seconds: How long it is at least; the last bar may go beyond.
    """
    step = 60.0 / float(rng.uniform(72, 152)) / 4
    bars = math.ceil(seconds / (step * SIXTEENTHS))
    sections = [PROGRESSIONS[i] for i in rng.choice(len(PROGRESSIONS), 2, replace=False)]
    length = int(rng.choice([4, 8]))
    degrees = [sections[(bar // length) % 2][bar % 4] for bar in range(bars)]
    grid = _Grid(step, float(rng.choice([0.0, 0.0, 0.15, 0.3])), int(rng.integers(12)), _pick(rng, MODES), degrees)
    low = int(rng.choice([48, 53, 57]))  # of the singer's range
    melody = _melody(rng, grid, low, low + 17)
    lead = _lead(rng, grid) if rng.random() < 0.7 else []
    return Score(melody, _bass(rng, grid), _chords(rng, grid), lead, *_drums(rng, grid))


def _melody(rng: np.random.Generator, grid: _Grid, low: int, high: int) -> list[Note]:
    """Phrases of two bars, with a rest at the end of each: a walk on the scale that likes the notes of the chord."""
    notes = []
    degree = _degree_near(grid, (low + high) / 2)
    shortest = 1 if 4 * grid.step > 0.55 else 2
    for first in range(0, len(grid.degrees), 2):
        if rng.random() < 0.12:
            continue
        at, end = int(rng.choice([0, 0, 2, 4])), int(rng.integers(22, 31))
        while at < end and first + at // SIXTEENTHS < len(grid.degrees):
            bar, sixteenth = first + at // SIXTEENTHS, at % SIXTEENTHS
            length = min(int(rng.choice([2, 4, 6, 8, shortest], p=[0.4, 0.3, 0.1, 0.1, 0.1])), end - at)
            degree += int(rng.choice([-3, -2, -1, 0, 1, 2, 3], p=[0.05, 0.15, 0.25, 0.1, 0.25, 0.15, 0.05]))
            if sixteenth % 8 == 0:
                degree = _nearest_in_chord(degree, grid.degrees[bar])
            while grid.pitch(degree) > high:
                degree -= 2
            while grid.pitch(degree) < low:
                degree += 2
            start = grid.at(bar, sixteenth) + float(rng.normal(0, 0.01))
            held = length * grid.step * float(rng.uniform(0.85, 1.0))
            notes.append(Note(max(start, 0.0), held, grid.pitch(degree), float(rng.uniform(0.7, 1.2))))
            at += length
    return notes


def _bass(rng: np.random.Generator, grid: _Grid) -> list[Note]:
    notes = []
    pattern, base = _pick(rng, BASS_LINES), int(rng.choice([24, 36]))
    for bar, degree in enumerate(grid.degrees):
        root = base + (grid.pitch(degree) - base) % 12
        for k, (sixteenth, until) in enumerate(pairwise([*pattern, SIXTEENTHS])):
            pitch = root + int(rng.choice([0, 0, 0, 0, 7, 12, 5]) if k else 0)
            held = (until - sixteenth) * grid.step * float(rng.uniform(0.6, 1.0))
            notes.append(Note(grid.at(bar, sixteenth), held, pitch, float(rng.uniform(0.8, 1.1))))
    return notes


def _chords(rng: np.random.Generator, grid: _Grid) -> list[Note]:
    notes = []
    rhythms = [_pick(rng, CHORD_RHYTHMS) for _ in range(2)]
    base, seventh = int(rng.choice([48, 55, 60])), rng.random() < 0.3
    for bar, degree in enumerate(grid.degrees):
        rhythm = rhythms[(bar // 4) % 2]
        tones = [0, 2, 4, 6] if seventh else [0, 2, 4]
        pitches = sorted(base + (grid.pitch(degree + tone) - base) % 12 for tone in tones)
        for sixteenth, until in pairwise([*rhythm, SIXTEENTHS]):
            loudness = float(rng.uniform(0.7, 1.1))
            for i, pitch in enumerate(pitches):
                start = grid.at(bar, sixteenth) + 0.008 * i
                notes.append(Note(start, (until - sixteenth) * grid.step, pitch, loudness))
    return notes


def _lead(rng: np.random.Generator, grid: _Grid) -> list[Note]:
    """An instrument with a tune of its own, now and then, in the range of the voice."""
    notes = []
    degree = _degree_near(grid, float(rng.uniform(60, 74)))
    for bar in range(len(grid.degrees)):
        if rng.random() < 0.45:
            continue
        at = 0
        while at < SIXTEENTHS:
            length = int(rng.choice([2, 4, 8]))
            degree += int(rng.integers(-2, 3))
            if not 58 <= grid.pitch(degree) <= 79:
                degree = _degree_near(grid, 67)
            if rng.random() < 0.8:
                loudness = float(rng.uniform(0.6, 1.0))
                notes.append(Note(grid.at(bar, at), 0.9 * length * grid.step, grid.pitch(degree), loudness))
            at += length
    return notes


def _drums(rng: np.random.Generator, grid: _Grid) -> tuple[list[Note], list[Note], list[Note], list[Note]]:
    kick, snare, every = _pick(rng, KICKS), _pick(rng, SNARES), int(rng.choice([1, 2, 2, 4]))
    kicks, snares, hats, toms = [], [], [], []

    def hit(bar: int, sixteenth: int, loudness: float) -> Note:
        return Note(grid.at(bar, sixteenth), 0.5, 0.0, loudness * float(rng.uniform(0.85, 1.1)))

    for bar in range(len(grid.degrees)):
        fill = bar % 4 == 3 and rng.random() < 0.6
        last = 12 if fill else SIXTEENTHS
        kicks += [hit(bar, at, 1.0) for at in kick if at < last]
        snares += [hit(bar, at, 1.0) for at in snare if at < last]
        if rng.random() < 0.3:
            snares.append(hit(bar, int(rng.integers(last)), 0.3))
        hats += [hit(bar, at, 1.0 if at % 4 == 0 else 0.6) for at in range(0, last, every)]
        toms += [hit(bar, at, 0.9) for at in range(last, SIXTEENTHS)]
    return kicks, snares, hats, toms


def _degree_near(grid: _Grid, pitch: float) -> int:
    return min(range(0, 80), key=lambda degree: abs(grid.pitch(degree) - pitch))


def _nearest_in_chord(degree: int, chord: int) -> int:
    return min((degree + move for move in (0, 1, -1, 2, -2)), key=lambda d: (d - chord) % 7 not in (0, 2, 4))


def _pick(rng: np.random.Generator, choices: Sequence[Sequence[int]]) -> Sequence[int]:
    return choices[int(rng.integers(len(choices)))]
