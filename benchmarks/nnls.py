"""How long does it take to find the codes of 2,000 images, against what people use today?

Given W, every solver starts cold and runs until its objective, summed over the rows, is within 0.1 % of the optimum,
with the fewest of its own iterations that get there, found beforehand and not timed. Exact methods have no such choice.
W has 300 or 1,350 columns, the k-means centres of other images. The images are MNIST where the environment variable
TORCHPFC_DATA names a folder with mnist/ in it, else made mixtures of the same size. `pip install torchnmf nmf-torch`
adds those two; a competitor that is missing is listed as not run.

    python benchmarks/nnls.py [--rounds 5] [--out benchmarks/results/nnls.json]
    python benchmarks/nnls.py --device cuda --table --out benchmarks/results/nnls_gpu.json

With --table, made problems of several sizes take the place of the images.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _machine import describe, write_json
from torch import Tensor

from torchpfc import ADMM, FISTA, CoordinateDescent, NonnegativeLeastSquares, nnls, solve
from torchpfc.solvers import Solver

ROWS, FEATURES, GAP = 2_000, 784, 1e-3
BASIS = (300, 1350)
TABLE = [(n, m, r) for n in (200, 2_000, 20_000) for m, r in ((784, 300), (784, 2000), (3072, 300), (3072, 2000))]
PATIENCE = 10.0  # seconds for one run, and for all timed runs of a contender
SAMPLE = 200  # rows that an exact method is timed on

Codes = Callable[[int], Tensor]  # from a number of iterations to codes


def images(count: int) -> tuple[Tensor, str]:
    folder = os.environ.get("TORCHPFC_DATA")
    if folder is not None:
        with gzip.open(Path(folder) / "mnist" / "train-images-idx3-ubyte.gz") as file:
            pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, FEATURES)
        return torch.from_numpy(pixels[:count].astype(np.float32) / 255), "MNIST, training images in order"
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


def ours(x: Tensor, W: Tensor) -> dict[str, Codes]:
    problem = NonnegativeLeastSquares(x, W)

    def with_solver(kind: type[Solver]) -> Codes:
        return lambda iterations: solve(problem, kind(max_iter=iterations)).h

    contenders = {"torchpfc ADMM": with_solver(ADMM), "torchpfc FISTA": with_solver(FISTA)}
    if x.device.type == "cpu":  # on a GPU a sweep is hundreds of launches
        contenders["torchpfc CoordinateDescent"] = with_solver(CoordinateDescent)
    return contenders


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


def fewest_iterations(codes: Codes, reached: Callable[[Tensor], bool]) -> tuple[int, str | None]:
    """The fewest iterations that reach the gap, to 5 %.

    Where a single run takes longer than anyone would wait, the search ends early and errs in favour of the contender:
    with the most iterations known not to be enough, and a note that says so.
    """
    low, high = 0, 8
    while True:
        start = time.perf_counter()
        enough, slow = reached(codes(high)), time.perf_counter() - start > PATIENCE
        if enough and slow:
            return low, f"needs more than {low} iterations, at which it was timed, and at most {high}"
        if slow:
            return high, f"needs more than {high} iterations, at which it was timed"
        if enough:
            break
        low, high = high, 2 * high
    while high - low > max(1, high // 20):
        middle = (low + high) // 2
        low, high = (low, middle) if reached(codes(middle)) else (middle, high)
    return high, None


def installed(competitor: Callable[[Tensor, Tensor], Codes], x: Tensor, W: Tensor) -> Codes | str:
    try:
        return competitor(x, W)
    except ModuleNotFoundError as error:
        return f"not run: {error.name} is not installed"


def measure(x: Tensor, W: Tensor, rounds: int) -> dict[str, Any]:
    best = objective(x, W, nnls(x.double(), W.double(), tol=1e-7).h)
    contenders: dict[str, Codes | str] = {**ours(x, W)}
    if x.device.type == "cpu":
        contenders["scikit-learn NMF cd"] = scikit_learn(x, W)
    contenders["torchnmf"] = installed(torchnmf, x, W)

    def timed(run: Callable[[], Tensor]) -> float:
        start = time.perf_counter()
        run()
        if x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    rows: dict[str, Any] = {}
    ready: dict[str, Callable[[], Tensor]] = {}
    for name, codes in contenders.items():
        if isinstance(codes, str):
            rows[name] = {"note": codes}
            continue
        iterations, note = fewest_iterations(codes, lambda h: objective(x, W, h) <= best * (1 + GAP))
        rows[name] = {"iterations": iterations, "note": note, "seconds": []}
        ready[name] = lambda codes=codes, iterations=iterations: codes(iterations)
    if x.device.type == "cpu":
        # Exact methods go row by row and have no iterations to choose: a sample of the rows says what all of them take.
        sample, factor = x[:SAMPLE], len(x) / SAMPLE
        for name, competitor in (("SciPy nnls, row by row", scipy_loop), ("nmf-torch nnls_bpp", nmf_torch)):
            codes = installed(competitor, sample, W)
            if isinstance(codes, str):
                rows[name] = {"note": codes}
            else:
                try:
                    seconds = [factor * timed(lambda codes=codes: codes(0))]
                except RuntimeError as error:
                    rows[name] = {"note": f"failed: {error}"}
                    continue
                rows[name] = {"iterations": None, "note": f"exact; from {SAMPLE} rows", "seconds": seconds}
    for _ in range(rounds):
        for name, run in ready.items():
            if sum(rows[name]["seconds"]) < PATIENCE:
                rows[name]["seconds"].append(timed(run))
    for row in rows.values():
        if row.get("seconds"):
            row["median_seconds"] = statistics.median(row["seconds"])
    fastest = min(row["median_seconds"] for name, row in rows.items() if "torchpfc" in name)
    others = [row["median_seconds"] for name, row in rows.items() if "median_seconds" in row and "torchpfc" not in name]
    return {
        "objective": best,
        "contenders": rows,
        "times_faster_than_best_other": min(others) / fastest if others else None,
    }


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
            print(f"  {name:<28}{seconds}{steps}  {row['note'] or ''}")
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
