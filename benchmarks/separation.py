"""How fast, and in how much memory, is a long stereo song separated on a CPU?

`torchpfc separate` runs as a process of its own on ten minutes of stereo, with models of the paper's size: a factorized
RNN with 1,024 parts and 10 steps per slice, a vanilla RNN with 1,024 units, and NMF with 64 and 64 columns. The weights
are random: neither time nor memory depends on what was learned.

    python benchmarks/separation.py [--minutes 10] [--rates 44100] [--models factorized vanilla nmf] [--out FILE]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
from _machine import describe, write_json

from torchpfc import FactorizedRNN, VanillaRNN
from torchpfc.audio import AudioWriter, NMFSeparator, save_separator
from torchpfc.paper.songs import generate_track

BINS, SIZE = 350, 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rates", type=int, nargs="+", default=[44_100])
    parser.add_argument("--models", nargs="+", default=["factorized", "vanilla", "nmf"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "separation.json")
    args = parser.parse_args()
    torch.set_num_threads(1)  # as the command does
    generator = torch.Generator().manual_seed(0)
    models = {
        "factorized": FactorizedRNN(BINS, SIZE, BINS, nonnegative=False, generator=generator),
        "vanilla": VanillaRNN(BINS, SIZE, BINS, generator=generator),
        "nmf": NMFSeparator(torch.rand(BINS, 128, generator=generator), 64),
    }
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for rate in args.rates:
            song = write_song(folder / f"{rate}.wav", rate, args.minutes)
            for name in args.models:
                save_separator(folder / name, models[name])
                found = measure(song, folder / name, args.minutes * 60)
                runs.append({"model": name, "rate": rate, "minutes": args.minutes, **found})
                print(f"{name:<12}{rate:>7} Hz  " + "  ".join(f"{key} {value:g}" for key, value in found.items()))
    write_json(args.out, {**describe(), "runs": runs})


def write_song(path: Path, rate: int, minutes: float) -> Path:
    """A made-up song of thirty seconds, again and again, the right channel a little behind the left."""
    track = generate_track(0, seconds=30.0).at_rate(rate)
    part = torch.cat([track.mixture, track.mixture.roll(200, -1)])
    left = round(minutes * 60 * rate)
    with AudioWriter(path, rate, 2) as writer:
        while left:
            count = min(left, part.shape[-1])
            writer.write(part[:, :count])
            left -= count
    return path


def measure(song: Path, model: Path, length: float) -> dict[str, float]:
    """Time and memory of the command, from its start to its end."""
    out = model / "parts"
    command = [sys.executable, "-m", "torchpfc", "separate", str(song), "--model", str(model), "--out", str(out)]
    start = time.perf_counter()
    _, status, usage = os.wait4(os.spawnv(os.P_NOWAIT, sys.executable, command), 0)
    seconds = time.perf_counter() - start
    assert status == 0, f"torchpfc separate ended with {os.waitstatus_to_exitcode(status)}"
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "times_real_time": round(length / seconds, 2),
        "peak_mb": round(usage.ru_maxrss / 1024, 1),
    }


if __name__ == "__main__":
    main()
