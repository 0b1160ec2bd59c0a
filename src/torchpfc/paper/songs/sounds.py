"""What sounds are made of: cycles of waves, noise between two frequencies, echoes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RATE = 44_100
"""Samples per second of everything that is generated."""

Signal = NDArray[np.float64]

_CYCLE = 4096


def clock(seconds: float) -> Signal:
    """The time of each sample, in seconds."""
    return np.arange(max(1, round(seconds * RATE))) / RATE


def envelope(t: Signal, attack: float, release: float) -> Signal:
    """Up within so many seconds, and down again at the end."""
    rise = np.clip(t / attack, 0, 1)
    fall = np.clip((t[-1] - t) / release, 0, 1)
    return np.asarray(rise * fall)


def cycle(amplitudes: Signal) -> Signal:
    """One cycle of a wave with these harmonics, and its first sample again at the end."""
    spectrum = np.zeros(_CYCLE // 2 + 1, dtype=complex)
    spectrum[1 : 1 + len(amplitudes)] = -0.5j * _CYCLE * amplitudes
    wave = np.fft.irfft(spectrum, _CYCLE)
    return np.append(wave, wave[0])


def play(wave: Signal, turns: Signal) -> Signal:
    """A wave at a phase that is given for each sample, in turns."""
    place = (turns % 1.0) * _CYCLE
    index = place.astype(np.int64)
    here = wave[index]
    return np.asarray(here + (place - index) * (wave[index + 1] - here))


def noise(rng: np.random.Generator, count: int, low: float, high: float) -> Signal:
    """Noise between two frequencies in Hz, with soft edges, as loud on average as a signal of 1."""
    spectrum = np.fft.rfft(rng.standard_normal(count))
    f = np.fft.rfftfreq(count, 1 / RATE)
    below = 1 / (1 + (low / np.maximum(f, 1e-3)) ** 6)
    return normalized(np.fft.irfft(spectrum * below / (1 + (f / high) ** 6), count))


def add(out: Signal, start: float, sound: Signal) -> None:
    """Adds a sound at a time in seconds; what lies beyond the end is left out."""
    first = round(start * RATE)
    skipped = max(0, -first)
    sound = sound[skipped : max(0, len(out) - first)]
    out[first + skipped : first + skipped + len(sound)] += sound


def echo(rng: np.random.Generator, x: Signal) -> Signal:
    """A signal in some room, whose sound falls by 60 dB within about a second."""
    seconds, amount = rng.uniform(0.3, 1.2), rng.uniform(0.05, 0.25)
    t = clock(seconds)
    room = rng.standard_normal(len(t)) * 10 ** (-3 * t / seconds)
    room *= amount / np.sqrt(np.sum(room**2))
    size = 1 << (len(x) + len(room) - 1).bit_length()
    wet = np.fft.irfft(np.fft.rfft(x, size) * np.fft.rfft(room, size), size)[: len(x)]
    return np.asarray(x + wet)


def level(x: Signal) -> float:
    """The root of the mean of the squares."""
    return float(np.sqrt(np.mean(x**2)))


def normalized(x: Signal) -> Signal:
    """A signal at a level of 1."""
    return np.asarray(x / max(level(x), 1e-9))
