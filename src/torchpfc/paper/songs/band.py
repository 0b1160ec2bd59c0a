"""The band: drums, a bass, chords and a lead instrument."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchpfc.paper.songs.score import Note, Score
from torchpfc.paper.songs.sounds import RATE, Signal, add, clock, cycle, envelope, noise, play

_HIGHEST = 12_000.0  # Hz; harmonics above are left out


def play_drums(rng: np.random.Generator, score: Score, seconds: float) -> Signal:
    """Kick, snare, hats and toms, whose sounds are the same throughout a song."""
    out = np.zeros(len(clock(seconds)))
    t = clock(0.35)
    low, snare_tone, tom = rng.uniform(42, 62), rng.uniform(160, 240), rng.uniform(90, 160)
    ring = rng.uniform(0.03, 0.12)
    kick = np.sin(2 * np.pi * (low * t + rng.uniform(4, 9) * (1 - np.exp(-t / 0.03)))) * np.exp(-t / 0.11)
    kick += 0.2 * noise(rng, len(t), 1000.0, 6000.0) * np.exp(-t / 0.004)
    snare = 0.5 * np.sin(2 * np.pi * snare_tone * t) * np.exp(-t / 0.06)
    snare += 0.6 * noise(rng, len(t), 900.0, float(rng.uniform(6000, 11000))) * np.exp(-t / ring)
    hat = 0.35 * noise(rng, len(t), float(rng.uniform(5000, 8000)), 16000.0) * np.exp(-t / rng.uniform(0.015, 0.06))
    toms = np.sin(2 * np.pi * (tom * t + 2 * (1 - np.exp(-t / 0.05)))) * np.exp(-t / 0.12)
    for notes, sound in ((score.kick, kick), (score.snare, snare), (score.hat, hat), (score.tom, 0.8 * toms)):
        faded = sound * envelope(t, 0.001, 0.02)
        for note in notes:
            add(out, note.start, note.loudness * faded)
    return out


def play_bass(rng: np.random.Generator, score: Score, seconds: float) -> Signal:
    """Low notes with few harmonics."""
    out = np.zeros(len(clock(seconds)))
    tilt, fade = float(rng.uniform(1.0, 2.0)), float(rng.uniform(0.3, 1.5))
    for note in score.bass:
        t = clock(note.seconds)
        sound = play(_wave(note, tilt, 25), note.frequency * t) * np.exp(-t / fade)
        add(out, note.start, note.loudness * sound * envelope(t, 0.006, 0.03))
    return out


def play_others(rng: np.random.Generator, score: Score, seconds: float) -> Signal:
    """Chords, and a lead instrument with a vibrato, which a voice could be taken for."""
    out = np.zeros(len(clock(seconds)))
    kind = str(rng.choice(["pad", "organ", "pluck"]))
    tilt, detune = float(rng.uniform(0.8, 1.6)), float(rng.uniform(0.001, 0.004))
    attack, fade = {"pad": (0.12, 4.0), "organ": (0.01, 8.0), "pluck": (0.004, 0.45)}[kind]
    drawbars = np.array([1.0, 0.8, 0.6, 0.5, 0.0, 0.4, 0.0, 0.3]) * rng.uniform(0.4, 1.0, 8)
    for note in score.chords:
        t = clock(note.seconds)
        wave = cycle(drawbars[: _count(note, 8)]) if kind == "organ" else _wave(note, tilt, 40)
        sound = np.zeros_like(t)
        for bent in (1 - detune, 1 + detune):
            turns = note.frequency * bent * t + rng.random()
            if kind == "pluck":  # what is bright fades first
                bright = np.exp(-t / 0.15)
                sound += bright * play(wave, turns) + (1 - bright) * play(_wave(note, tilt + 1.0, 40), turns)
            else:
                sound += play(wave, turns)
        add(out, note.start, 0.5 * note.loudness * sound * np.exp(-t / fade) * envelope(t, attack, 0.04))
    _play_lead(rng, score.lead, out)
    return out


def _play_lead(rng: np.random.Generator, notes: Sequence[Note], out: Signal) -> None:
    tilt, odd = float(rng.uniform(0.7, 1.3)), rng.random() < 0.5
    rate, depth, loudness = rng.uniform(4.5, 6.5), rng.uniform(0.1, 0.4), rng.uniform(0.8, 1.6)
    for note in notes:
        t = clock(note.seconds)
        bend = depth * np.clip(t / 0.3, 0, 1) * np.sin(2 * np.pi * rate * t)
        turns = np.cumsum(note.frequency * 2 ** (bend / 12)) / RATE
        sound = play(_wave(note, tilt, 40, odd=odd), turns)
        add(out, note.start, loudness * note.loudness * sound * envelope(t, 0.02, 0.05))


def _wave(note: Note, tilt: float, most: int, *, odd: bool = False) -> Signal:
    """A cycle whose harmonics fall off, all of them or the odd ones alone."""
    k = np.arange(1, _count(note, most) + 1)
    amplitudes = np.asarray(k**-tilt, dtype=np.float64)
    return cycle(amplitudes * (k % 2) if odd else amplitudes)


def _count(note: Note, most: int) -> int:
    return max(1, min(most, int(_HIGHEST / note.frequency)))
