"""Does `nnls` find the optimum of ordinary hard problems, and in what time beside a loop over SciPy's?

More than twenty families: sums of decays, overlapping peaks, Hilbert and Vandermonde matrices, nearly equal columns,
columns of very different sizes, more columns than rows, signed matrices, noise from 1e-12 to 1, all in float64, and in
float32 beside. For every row the residual is compared with that of SciPy (`maxiter` of 100 a column), and the KKT
conditions are computed anew, on unit columns. Both run on one thread, in turns, and processor time counts.

    python benchmarks/hard_nnls.py [--rounds 3] [--out benchmarks/results/hard_nnls.json]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before the libraries are loaded that read it

import numpy as np
import torch
from _machine import describe, write_json
from scipy.optimize import nnls as scipy_nnls

from torchpfc import nnls
from torchpfc.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.solvers.hard import FAMILIES, Array, make, residual, violation

SIZES = ((100, 25), (200, 50), (400, 100))  # m, r
ROWS = (100, 1000)


def by_scipy(x: Array, W: Array) -> Array:
    return np.stack([scipy_nnls(W, row, maxiter=100 * W.shape[1])[0] for row in x])


def timed(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def measure(name: str, m: int, r: int, rounds: int) -> dict[str, Any]:
    x, W = make(name, m, r, max(ROWS))
    norms = np.linalg.norm(x, axis=1)
    expected = by_scipy(x, W)
    best = residual(x, W, expected)
    found, single = solve(x, W), solve(x.astype(np.float32), W.astype(np.float32))
    unit = W[:, np.linalg.norm(W, axis=0) > 0]
    rounded_x, rounded_W = x.astype(np.float32).astype(float), W.astype(np.float32).astype(float)
    gap = residual(rounded_x, rounded_W, single["h"]) - residual(rounded_x, rounded_W, by_scipy(rounded_x, rounded_W))
    result = {
        "family": name,
        "features": m,
        "num_basis": W.shape[1],
        "condition": float(np.linalg.cond(unit / np.linalg.norm(unit, axis=0))),
        "support": float((expected > 0).sum(1).mean()),
        "converged": float(found["converged"].mean()),
        "one_by_one": float(found["one_by_one"].mean()),
        "excess_residual": float(((residual(x, W, found["h"]) - best) / norms).max()),
        "violation": float(violation(x, W, found["h"]).max()),
        "lowest": float(found["h"].min()),
        "float32": {
            "converged": float(single["converged"].mean()),
            "excess_of_converged": float((gap / norms)[single["converged"]].max(initial=0)),
            "excess": float((gap / norms).max()),
            "warnings": single["warnings"],
        },
        "seconds": {},
    }
    for rows in ROWS:
        part, tensors = x[:rows], (torch.from_numpy(x[:rows]), torch.from_numpy(W))
        times: dict[str, list[float]] = {"torchpfc": [], "SciPy": []}
        for _ in range(rounds):
            times["torchpfc"].append(timed(lambda tensors=tensors: nnls(*tensors)))
            times["SciPy"].append(timed(lambda part=part: by_scipy(part, W)))
        result["seconds"][str(rows)] = times
    return result


def solve(x: Any, W: Any) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solution = nnls(torch.from_numpy(x), torch.from_numpy(W))
    names = ("h", "converged", "one_by_one")
    return {**{name: getattr(solution, name).numpy() for name in names}, "warnings": [str(w.message) for w in caught]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="families whose name begins so")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "hard_nnls.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [(name, *size) for size in SIZES for name in FAMILIES if name.startswith(args.only)]
    problems: list[dict[str, Any]] = []
    with Progress(len(chosen)) as bar:
        for name, m, r in chosen:
            bar.at(len(problems), f"{name}, {m} x {r}")
            problem = measure(name, m, r, args.rounds)
            problems.append(problem)
            ratios = [f"{rows} rows {ratio(problem, rows):5.2f}" for rows in ROWS]
            print(
                f"{m:4} x {r:<4} {name:30} {', '.join(ratios)}; residual {problem['excess_residual']:8.1e}, "
                f"KKT {problem['violation']:.0e}, converged {problem['converged']:.3f}, one by one "
                f"{problem['one_by_one']:.2f}; float32 {problem['float32']['excess_of_converged']:8.1e}, "
                f"converged {problem['float32']['converged']:.3f}",
                flush=True,
            )
    for m, r in SIZES:
        for rows in ROWS:
            found = [ratio(problem, rows) for problem in problems if problem["features"] == m]
            print(f"{m} x {r}, {rows} rows: time over SciPy's {statistics.median(found):.2f}, at most {max(found):.2f}")
    write_json(args.out, {"question": __doc__.splitlines()[0], "threads": 1, "problems": problems, **describe()})


def ratio(problem: dict[str, Any], rows: int) -> float:
    """Our median time over that of SciPy."""
    times = problem["seconds"][str(rows)]
    return statistics.median(times["torchpfc"]) / statistics.median(times["SciPy"])


if __name__ == "__main__":
    main()
