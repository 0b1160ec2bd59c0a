"""What do more iterations, and other ways to the gradient, cost a training step on a GPU, in time and memory?

All forms train as those of `gpu.py` do, captured as CUDA graphs: batches of 200, reconstruction loss, non-negative
weights. "unrolled" sends the gradient back through all steps of the solver, "truncated" through the last ones of 100,
"implicit" solves for the gradient of the optimum instead. The alternative is the textbook form, which autograd sends
back through 100 steps. Memory is what an eager step needs at most beside the examples, the weights, their gradients and
the state of the optimizer. Each time is a median over rounds, in which the forms take turns.

    python benchmarks/gradients.py [--rounds 15] [--out benchmarks/results/gradients.json]
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch
from _machine import describe, write_json
from _steps import Step, captured
from gpu import BATCH, IMPLICIT_STEPS, PAPER_STEPS, Data, measure_on, ours, ready, textbook

from torchpfc import FISTA, Implicit, Truncated, Unrolled

UNROLLED = (10, 20, 40, 70, 100)
IMPLICIT = (20, 40, 100)
TRUNCATED = (20, 50, 80)
SHAPES = ((784, 300), (3072, 2000))


def forms_of(features: int, basis: int, data: Data) -> dict[str, Step]:
    def form(steps: int, adjoint: Unrolled | Truncated | Implicit) -> Step:
        return ours(features, basis, data, FISTA.paper(steps), adjoint)

    return {
        "textbook": textbook(features, basis, data),
        **{f"unrolled-{steps}": form(steps, Unrolled()) for steps in UNROLLED},
        **{f"truncated-{last}": form(PAPER_STEPS, Truncated(last)) for last in TRUNCATED},
        **{f"implicit-{steps}": form(steps, Implicit.fast(IMPLICIT_STEPS)) for steps in IMPLICIT},
    }


def memory_of(step: Step) -> int:
    """Bytes that a step needs at most, beside what is there before it."""
    step()  # makes the state of the optimizer and the gradients
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measure_shape(features: int, basis: int, rounds: int) -> dict[str, Any]:
    data = Data.made(features)
    forms = forms_of(features, basis, data)
    peak = {name: memory_of(step) for name, step in forms.items()}
    seconds = measure_on([data], {name: captured(step) for name, step in forms.items()}, rounds)
    torch.cuda.empty_cache()
    return {
        "features": features,
        "num_basis": basis,
        "peak_bytes": peak,
        "median_seconds": {name: statistics.median(times) for name, times in seconds.items()},
        "all_seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gradients.json")
    args = parser.parse_args()
    if not ready():
        return
    shapes = [measure_shape(*shape, args.rounds) for shape in SHAPES]
    result = {
        "question": __doc__.splitlines()[0],
        "batch": BATCH,
        "iterations": PAPER_STEPS,
        "implicit_iterations": IMPLICIT_STEPS,
        "rounds": args.rounds,
        "shapes": shapes,
        **describe(),
    }
    write_json(args.out, result)
    for shape in shapes:
        print(f"{shape['features']} features, {shape['num_basis']} parts")
        for name, seconds in shape["median_seconds"].items():
            print(f"  {name:<14}{1e3 * seconds:>8.3f} ms{shape['peak_bytes'][name] / 1e6:>9.1f} MB")


if __name__ == "__main__":
    main()
