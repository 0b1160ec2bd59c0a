"""How long does it take to find the codes of 2,000 images, against what people use today?

Given W, every solver starts cold and runs until its objective, summed over the rows, is within 0.1 % of the optimum,
with the fewest of its own iterations that get there: found beforehand, on a sample of the rows, and not timed. `nnls`
has a tolerance instead, and gets the largest that gets there. Exact methods have no such choice. A run that would take
longer than anyone would wait is timed at fewer iterations, and the time of the others is added.

W has 300 or 1,350 columns, the k-means centres of other images. The images are MNIST where the environment variable
TORCHPFC_DATA names a folder with mnist/ in it, else made mixtures of the same size. `pip install torchnmf nmf-torch`
adds those two; a competitor that is missing is listed as not run.

    python benchmarks/nnls.py [--rounds 5] [--out benchmarks/results/nnls.json]
    python benchmarks/nnls.py --device cuda --table --out benchmarks/results/nnls_gpu.json

With --table, made problems of several sizes take the place of the images.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _machine import describe, write_json
from _steps import wall_clock
from torch import Tensor

from torchpfc import ADMM, FISTA, ActiveSet, CoordinateDescent, NonnegativeLeastSquares, nnls, solve
from torchpfc.data import load_images
from torchpfc.solvers import Solver

ROWS, FEATURES, GAP = 2_000, 784, 1e-3
BASIS = (300, 1350)
TABLE = [(n, m, r) for n in (200, 2_000, 20_000) for m, r in ((784, 300), (784, 2000), (3072, 300), (3072, 2000))]
PATIENCE = 10.0  # seconds for one run, and for all timed runs of a contender
SAMPLE = 200  # rows that iterations are counted on, and that an exact method is timed on
MOST_ITERATIONS = 2**15

Codes = Callable[[int], Tensor]  # from a number of iterations to codes
Contender = Callable[[Tensor, Tensor], Codes]  # from x and W to that


def images(count: int) -> tuple[Tensor, str]:
    if "TORCHPFC_DATA" in os.environ:
        return load_images("mnist").train.x[:count], "MNIST, training images in order"
    generator = torch.Generator().manual_seed(0)
    strokes = torch.rand(400, FEATURES, generator=generator) * (torch.rand(400, FEATURES, generator=generator) < 0.04)
    amounts = torch.rand(count, 400, generator=generator) * (torch.rand(count, 400, generator=generator) < 0.03)
    return (amounts @ strokes).clamp(max=1.0), "made mixtures of 400 sparse parts"


def made(n: int, m: int, r: int, device: str) -> tuple[Tensor, Tensor]:
    """Noisy sparse mixtures of parts that overlap."""
    generator = torch.Generator().manual_seed(0)
    W = torch.rand(m, r, generator=generator) * (torch.rand(m, r, generator=generator) < 0.2)
    amounts = torch.rand(n, r, generator=generator) * (torch.rand(n, r, generator=generator) < 0.1)
    x = (amounts @ W.T + 0.1 * torch.rand(n, m, generator=generator)).to(device)
    return x, W.to(device)


def centres(x: Tensor, count: int) -> Tensor:
    from sklearn.cluster import MiniBatchKMeans

    found = MiniBatchKMeans(count, random_state=0, n_init=1, max_iter=20).fit(x.numpy()).cluster_centers_
    return torch.from_numpy(found.astype(np.float32)).T.contiguous()


def objective(x: Tensor, W: Tensor, h: Tensor) -> float:
    return 0.5 * (x.double() - h.double() @ W.double().T).square().sum().item()


def ours(kind: type[Solver]) -> Contender:
    return lambda x, W: lambda iterations: solve(NonnegativeLeastSquares(x, W), kind(max_iter=iterations)).h


def ours_by_tolerance(x: Tensor, W: Tensor) -> Codes:
    """`nnls`, where rows stop one by one; "iterations" are halvings of the tolerance, two for each half."""
    return lambda halvings: nnls(x, W, tol=2.0 ** (-halvings / 2)).h


def scikit_learn(x: Tensor, W: Tensor) -> Codes:
    """`NMF(solver="cd").transform`, called as the function behind it."""
    from sklearn.decomposition import non_negative_factorization

    rows, parts = x.numpy(), np.ascontiguousarray(W.T.numpy())

    def codes(iterations: int) -> Tensor:
        h, _, _ = non_negative_factorization(
            rows, H=parts, n_components=len(parts), update_H=False, solver="cd", max_iter=iterations, tol=0
        )
        return torch.from_numpy(h)

    return codes


def scipy_loop(x: Tensor, W: Tensor) -> Codes:
    """An active-set method: exact, so it has no iterations to choose."""
    from scipy.optimize import nnls as scipy_nnls

    rows, parts = x.double().numpy(), W.double().numpy()
    return lambda _: torch.from_numpy(np.stack([scipy_nnls(parts, row)[0] for row in rows]))


def torchnmf(x: Tensor, W: Tensor) -> Codes:
    from torchnmf.nmf import NMF

    def codes(iterations: int) -> Tensor:
        model = NMF(W=W.clone(), H=torch.full((len(x), W.shape[1]), 0.1), trainable_W=False).to(x.device)
        model.fit(x, beta=2, tol=0.0, max_iter=iterations)
        return model.H.detach()

    return codes


def nmf_torch(x: Tensor, W: Tensor) -> Codes:
    """Block principal pivoting, which its NMF uses to find the codes: exact."""
    here = sys.path.pop(0)  # this folder has an nmf.py of its own
    try:
        from nmf.utils import nnls_bpp
    finally:
        sys.path.insert(0, here)

    def codes(_: int) -> Tensor:
        h = torch.zeros(W.shape[1], len(x))
        if nnls_bpp(W.T @ W, (x @ W).T.contiguous(), h, "cpu") < 0:
            raise RuntimeError("nnls_bpp did not converge")
        return h.T

    return codes


def fewest_iterations(codes: Codes, reached: Callable[[Tensor], bool]) -> int | None:
    """The fewest iterations that reach the gap, to 5 %; None where it is never reached."""
    low, high = 0, 8
    while not reached(codes(high)):
        low, high = high, 2 * high
        if high > MOST_ITERATIONS:
            return None
    while high - low > max(1, high // 20):
        middle = (low + high) // 2
        low, high = (low, middle) if reached(codes(middle)) else (middle, high)
    return high


def affordable(run: Callable[[int], float], iterations: int) -> int:
    """As many of the iterations as there is patience for."""
    few = min(iterations, 4)
    return min(iterations, max(few, int(few * PATIENCE / run(few))))


def measure(x: Tensor, W: Tensor, rounds: int) -> dict[str, Any]:
    sample = x[:SAMPLE]
    best = objective(sample, W, nnls(sample.double(), W.double(), tol=1e-7).h)

    def reached(h: Tensor) -> bool:
        return objective(sample, W, h) <= best * (1 + GAP)

    rows: dict[str, Any] = {}
    runs: dict[str, Callable[[], float]] = {}
    for name, contender in contenders(x.device.type).items():
        try:
            iterations = fewest_iterations(contender(sample, W), reached)
        except ModuleNotFoundError as error:
            rows[name] = {"note": f"not run: {error.name} is not installed"}
            continue
        if iterations is None:
            rows[name] = {"note": f"does not get there in {MOST_ITERATIONS} iterations"}
            continue

        codes = contender(x, W)

        def seconds(count: int, codes: Codes = codes) -> float:
            return wall_clock(lambda: codes(count), 1)

        seconds(1)
        count = iterations if name == "torchpfc nnls" else affordable(seconds, iterations)
        rows[name] = {"iterations": iterations, "timed_iterations": count, "note": "", "seconds": []}
        runs[name] = lambda seconds=seconds, count=count, iterations=iterations: extrapolated(
            seconds, count, iterations
        )
    if x.device.type == "cpu":
        rows |= exact_methods(x, W)
    for _ in range(rounds):
        for name, run in runs.items():
            if sum(rows[name]["seconds"]) < PATIENCE:
                rows[name]["seconds"].append(run())
    for row in rows.values():
        if row.get("seconds"):
            row["median_seconds"] = statistics.median(row["seconds"])
    fastest = min(row["median_seconds"] for name, row in rows.items() if "torchpfc" in name)
    others = [row["median_seconds"] for name, row in rows.items() if "median_seconds" in row and "torchpfc" not in name]
    return {"contenders": rows, "times_faster_than_best_other": min(others) / fastest if others else None}


def contenders(device: str) -> dict[str, Contender]:
    found = {"torchpfc nnls": ours_by_tolerance, "torchpfc ADMM": ours(ADMM), "torchpfc FISTA": ours(FISTA)}
    if device == "cpu":  # on a GPU a sweep is hundreds of launches
        found |= {"torchpfc ActiveSet": ours(ActiveSet), "torchpfc CoordinateDescent": ours(CoordinateDescent)}
        found |= {"scikit-learn NMF cd": scikit_learn}
    return {**found, "torchnmf": torchnmf}


def extrapolated(seconds: Callable[[int], float], count: int, iterations: int) -> float:
    """The time of all iterations, where only some are taken: what comes once counts once."""
    taken = seconds(count)
    return (
        taken
        if count == iterations
        else taken + (iterations - count) * (taken - seconds(count // 2)) / (count - count // 2)
    )


def exact_methods(x: Tensor, W: Tensor) -> dict[str, Any]:
    """They go row by row: a sample of the rows says what all of them take."""
    sample, factor = x[:SAMPLE], len(x) / SAMPLE
    rows: dict[str, Any] = {}
    for name, contender in (("SciPy nnls, row by row", scipy_loop), ("nmf-torch nnls_bpp", nmf_torch)):
        try:
            codes = contender(sample, W)
            seconds = [factor * wall_clock(lambda codes=codes: codes(0), 1)]
        except ModuleNotFoundError as error:
            rows[name] = {"note": f"not run: {error.name} is not installed"}
        except RuntimeError as error:
            rows[name] = {"note": f"failed: {error}"}
        else:
            rows[name] = {"iterations": None, "note": f"exact; from {SAMPLE} rows", "seconds": seconds}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "nnls.json")
    args = parser.parse_args()
    torch.set_num_threads(2)
    result: dict[str, Any] = {"question": __doc__.splitlines()[0], "gap": GAP, "problems": []}

    def add(x: Tensor, W: Tensor) -> None:
        (n, m), r = x.shape, W.shape[1]
        measured = measure(x, W, args.rounds)
        result["problems"].append({"rows": n, "features": m, "num_basis": r, **measured})
        print(f"{n} rows, {m} features, {r} columns, gap {GAP}")
        for name, row in measured["contenders"].items():
            seconds = f"{1e3 * row['median_seconds']:>10.1f} ms" if "median_seconds" in row else ""
            steps = f"{row['iterations']:>6} iterations" if row.get("iterations") else ""
            print(f"  {name:<28}{seconds}{steps}  {row['note']}")
        print(f"  ours against the best of the others: {measured['times_faster_than_best_other']}", flush=True)
        write_json(args.out, {**result, **describe()})  # after each: the larger problems take minutes

    if args.table:
        result["data"] = made.__doc__
        for sizes in TABLE:
            add(*made(*sizes, args.device))
    else:
        x, result["data"] = images(12_000)
        for num_basis in BASIS:
            add(x[-ROWS:].to(args.device), centres(x[:10_000], num_basis).to(args.device))


if __name__ == "__main__":
    main()
