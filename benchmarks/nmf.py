"""How long does a non-negative matrix factorization take to a given objective, against scikit-learn and torchnmf?

Everyone gets the same data (float32), the same random W and H to start from, and two threads. From each start,
scikit-learn's coordinate descent runs at its defaults; what it reaches there is the objective to reach. NMF is not
convex, so that two methods rarely end at the same point: a run has arrived when it is within 0.1 % of that objective
("same"), or within 1 % of it ("near"). Of each competitor the iterations that it needs are counted first, and then a
run of exactly that many is timed, so that none pays for a test of convergence or for one iteration too many; our run
is timed with its own tests. A run that takes longer than that of scikit-learn at its defaults counts as
infinitely long. Methods take turns, start by start; ratios are of medians over starts.

torchnmf is optional: `pip install --no-deps torchnmf tqdm`. MNIST is read from the folder mnist/ inside the one that
TORCHPFC_DATA names, as the usual four gzipped files, and left out where that is not set.

    TORCHPFC_DATA=... python benchmarks/nmf.py [--starts 3] [--only digits,made] [--out benchmarks/results/nmf.json]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import math
import os
import statistics
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _machine import describe, write_json
from _steps import wall_clock
from sklearn.datasets import load_digits
from sklearn.decomposition import non_negative_factorization
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from torchpfc.data import load_images
from torchpfc.nmf import factorize

SLACK = {"near": 0.01, "same": 0.001}
NOISE = 0.1
SIZES = {"digits": (20, 50), "mnist": (20, 50, 200), "made": (20, 50, 200)}
FEW_STARTS_FROM = 200  # parts; a run of a competitor then takes minutes
MORE_STARTS = 5  # times as many for digits, where a run takes a fraction of a second
HAVE_TORCHNMF = importlib.util.find_spec("torchnmf") is not None


def mnist() -> Tensor:
    return load_images("mnist").train.x[:10_000]


def digits() -> Tensor:
    return torch.from_numpy(load_digits().data.astype(np.float32) / 16)


def made(rank: int) -> Tensor:
    """A 20,000 x 1,000 product of sparse factors of known rank, with noise of a tenth of its mean."""
    generator = torch.Generator().manual_seed(0)

    def sparse(rows: int, share: float) -> Tensor:
        kept = torch.rand(rows, rank, generator=generator) < share
        return torch.rand(rows, rank, generator=generator) * kept

    V = sparse(20_000, 0.3) @ sparse(1_000, 0.2).T
    noise = torch.randn(V.shape, generator=generator)
    return V.add_(noise, alpha=NOISE * float(V.mean())).clamp_(min=0.0)


def start(V: Tensor, num_basis: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scale = (V.mean() / num_basis).sqrt()
    W, H = (torch.randn(size, num_basis, generator=generator).abs_() * scale for size in reversed(V.shape))
    return W, H


def objective(V: Tensor, W: Tensor, H: Tensor) -> float:
    residual = V - H @ W.T
    return float(torch.linalg.vector_norm(residual, dim=1).double().square().sum()) / 2


class Competitor(ABC):
    """A method that can only be told how many iterations to take."""

    def __init__(self, V: Tensor) -> None:
        self.V = V

    @abstractmethod
    def run(self, W: Tensor, H: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        """W and H after some iterations."""

    def iterations_to(self, targets: dict[str, float], W: Tensor, H: Tensor, limit: float) -> dict[str, int]:
        """How many iterations each target takes; one that is not reached in time is left out.

        The methods remember nothing but W and H, so a run may be cut into pieces.
        """
        needed: dict[str, int] = {}
        done, spent = 0, 0.0
        while len(needed) < len(targets) and spent < limit:
            piece = max(1, done // 20)  # so a count is at most 5 % too high; what is timed is the count itself
            before = (W, H)
            begin = time.perf_counter()
            W, H = self.run(W, H, piece)
            spent += time.perf_counter() - begin
            value = objective(self.V, W, H)
            reached = [name for name, target in targets.items() if name not in needed and value <= target]
            for name in reached:
                needed[name] = self._refine(targets[name], *before, done, piece)
            done += piece
        return needed

    def _refine(self, target: float, W: Tensor, H: Tensor, done: int, piece: int) -> int:
        """The exact count, by going through the last piece one iteration at a time."""
        for k in range(1, piece):
            W, H = self.run(W, H, 1)
            if objective(self.V, W, H) <= target:
                return done + k
        return done + piece

    def seconds(self, W: Tensor, H: Tensor, iterations: int) -> float:
        """How long that takes."""
        return wall_clock(lambda: self.run(W, H, iterations), 1)


class ScikitLearn(Competitor):
    """One of the solvers of scikit-learn's NMF."""

    def __init__(self, V: Tensor, solver: str) -> None:
        super().__init__(V)
        self.solver = solver

    def run(self, W: Tensor, H: Tensor, iterations: int, tol: float = 0.0) -> tuple[Tensor, Tensor]:
        """W and H after some iterations."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            codes, parts, _ = non_negative_factorization(
                self.V.numpy(),
                H.numpy().copy(),
                W.T.numpy().copy(),
                n_components=W.shape[1],
                init="custom",
                solver=self.solver,
                tol=tol,
                max_iter=iterations,
            )
        return torch.from_numpy(parts).T, torch.from_numpy(codes)


class TorchNMF(Competitor):
    """The multiplicative updates of torchnmf."""

    def run(self, W: Tensor, H: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        """W and H after some iterations."""
        from torchnmf.nmf import NMF

        model = NMF(W=W, H=H)
        model.fit(self.V, beta=2, tol=-math.inf, max_iter=iterations)
        return model.W.detach(), model.H.detach()


def our_seconds(V: Tensor, W: Tensor, H: Tensor, target: float, limit: float) -> tuple[float, int]:
    begin = time.perf_counter()
    reached = False

    def stop(_: int, value: float) -> bool:
        nonlocal reached
        reached = value <= target
        return reached or time.perf_counter() - begin > limit

    history = factorize(V, W.shape[1], init=(W, H), tol=0.0, max_iter=100_000, callback=stop, progress=False).history
    seconds = time.perf_counter() - begin
    return (seconds if reached else math.inf), len(history.objective)


def measure(V: Tensor, num_basis: int, starts: int) -> dict[str, Any]:
    competitors: dict[str, Competitor] = {
        "scikit-learn cd": ScikitLearn(V, "cd"),
        "scikit-learn mu": ScikitLearn(V, "mu"),
    }
    if HAVE_TORCHNMF:
        competitors["torchnmf"] = TorchNMF(V)
    runs = [run for seed in range(starts) for run in one_start(V, num_basis, seed, competitors)]
    summary: dict[str, Any] = {}
    for name in SLACK:
        chosen = [run for run in runs if run["target"] == name]
        medians = {
            method: statistics.median(run["seconds"][method] for run in chosen) for method in chosen[0]["seconds"]
        }
        best = min((value, method) for method, value in medians.items() if method != "torchpfc")
        ratio = best[0] / medians["torchpfc"]  # infinite where only we arrive, NaN where nobody does
        summary[name] = {
            "median_seconds": {method: finite(value) for method, value in medians.items()},
            "best_competitor": best[1],
            "times_faster_than_best": finite(ratio),
        }
        times = "  ".join(f"{method} {value:.3g} s" for method, value in medians.items())
        print(f"    {name:<6}{times}  -> {ratio:.1f} times faster than {best[1]}", flush=True)
    for run in runs:
        run["seconds"] = {method: finite(value) for method, value in run["seconds"].items()}
    return {"shape": list(V.shape), "num_basis": num_basis, "starts": starts, "summary": summary, "runs": runs}


def one_start(V: Tensor, num_basis: int, seed: int, competitors: dict[str, Competitor]) -> Iterator[dict[str, Any]]:
    W, H = start(V, num_basis, seed)
    cd = competitors["scikit-learn cd"]
    assert isinstance(cd, ScikitLearn)
    begin = time.perf_counter()
    W_found, H_found = cd.run(W, H, 200, tol=1e-4)
    limit = time.perf_counter() - begin
    reference = objective(V, W_found, H_found)
    targets = {name: (1 + slack) * reference for name, slack in SLACK.items()}
    counts = {
        method: competitor.iterations_to(targets, W, H, math.inf if competitor is cd else limit)
        for method, competitor in competitors.items()
    }
    for name, target in targets.items():
        our_time, our_count = our_seconds(V, W, H, target, limit)
        seconds, iterations = {"torchpfc": our_time}, {"torchpfc": our_count}
        for method, competitor in competitors.items():
            count = counts[method].get(name)
            iterations[method] = count
            seconds[method] = math.inf if count is None else competitor.seconds(W, H, count)
        yield {"seed": seed, "target": name, "objective": target, "iterations": iterations, "seconds": seconds}


def finite(value: float) -> float | None:
    """JSON has no infinity: None is a run that did not arrive."""
    return value if math.isfinite(value) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=3, help="starts for each matrix; five times as many for digits")
    parser.add_argument("--threads", type=int, default=2, help="of torch; for scikit-learn set OMP_NUM_THREADS too")
    parser.add_argument("--only", default="", help="names of data sets to measure anew, with commas between them")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "nmf.json")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    not_run = [] if HAVE_TORCHNMF else ["torchnmf: not installed"]
    if "TORCHPFC_DATA" not in os.environ:
        not_run.append("mnist: TORCHPFC_DATA is not set")
    for line in not_run:
        print("not run:", line)
    machine = describe()
    for package in ("scikit-learn", "torchnmf"):
        if package != "torchnmf" or HAVE_TORCHNMF:
            machine["versions"][package] = importlib.metadata.version(package)
    kept = []
    if args.only and args.out.exists():  # what is not asked for stays as it was measured
        kept = [row for row in json.loads(args.out.read_text())["results"] if row["data"] not in args.only.split(",")]
    result: dict[str, Any] = {"question": __doc__.splitlines()[0], "slack": SLACK, "not_run": not_run, "results": kept}
    for name, sizes in SIZES.items():
        if (args.only and name not in args.only.split(",")) or (name == "mnist" and "TORCHPFC_DATA" not in os.environ):
            continue
        for num_basis in sizes:
            V = made(num_basis) if name == "made" else {"digits": digits, "mnist": mnist}[name]()
            print(f"{name} {tuple(V.shape)}, {num_basis} parts", flush=True)
            factorize(V[:500], num_basis, max_iter=3)
            starts = 1 if num_basis >= FEW_STARTS_FROM else args.starts * (MORE_STARTS if name == "digits" else 1)
            result["results"].append({"data": name, **measure(V, num_basis, starts)})
            write_json(args.out, {**result, **machine})  # after each: the larger ones take minutes


if __name__ == "__main__":
    main()
