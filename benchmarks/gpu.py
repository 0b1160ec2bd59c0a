"""How long does a training step of a PFC block take on a GPU, against the textbook form and against an MLP?

The textbook form is what a straightforward implementation does: autograd through 100 unrolled steps, two products with
W in each, and the step size from 40 power iterations on the Gram matrix at every call. It runs as such an
implementation would, one operation after the other, and also captured as a CUDA graph. All forms train with batches of
200, reconstruction loss, RMSprop and the projection to non-negative weights. Products may be rounded to TF32 in all of
them; ours then multiply in half precision, which keeps as many bits. The forms take turns, round by
round, and the times are medians over the rounds. "fast" is what the preset of that name does with weights of either
sign: 30 steps from a cold start, and the gradient of the optimum.

    python benchmarks/gpu.py [--shapes 784x300 ...] [--stacks 1 2 4 8] [--rounds 15] [--out benchmarks/results/gpu.json]
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from _machine import describe, write_json
from _steps import Name, Step, captured, measure, textbook_step
from torch import Tensor, nn

from torchpfc import FISTA, MLP, Implicit, PFCBlock, RMSprop, Unrolled, keep_nonnegative, stack_models
from torchpfc.solvers import Adjoint

BATCH, CLASSES, EXAMPLES = 200, 10, 4000
SHAPES = [(features, basis) for features in (784, 3072) for basis in (300, 2000, 5000)]
PAPER_STEPS = 100
IMPLICIT_STEPS = 15  # of the linear solver of the gradient
FAST_STEPS, FAST_IMPLICIT_STEPS = 30, 8

WARM_UP = 3
TIMED_SECONDS = 0.02  # of each form in each round, or one step where that takes longer


class Data(NamedTuple):
    """A training set, and the rows of it that make up the present batch."""

    x: Tensor
    target: Tensor
    rows: Tensor

    @classmethod
    def made(cls, features: int, stack: int | None = None) -> Data:
        """Images as sparse as MNIST's, four fifths zeros, made of parts; with a stack, other rows for each model."""
        generator = torch.Generator().manual_seed(0)

        def sparse(*shape: int, share: float) -> Tensor:
            return torch.rand(shape, generator=generator) * (torch.rand(shape, generator=generator) < share)

        x = (sparse(EXAMPLES, 50, share=0.1) @ sparse(50, features, share=0.05)).clamp_(max=1.0)
        labels = torch.randint(CLASSES, (EXAMPLES,), generator=generator)
        rows = torch.stack([torch.randperm(EXAMPLES, generator=generator)[:BATCH] for _ in range(stack or 1)])
        target = F.one_hot(labels, CLASSES).float()
        return cls(*(t.cuda() for t in (x, target, rows if stack else rows[0])))

    def batch(self) -> tuple[Tensor, Tensor]:
        """The examples in these rows."""
        return self.x[self.rows], self.target[self.rows]

    def next_(self) -> None:
        """Moves on to the next rows, where captured steps see them too."""
        self.rows.add_(BATCH).remainder_(EXAMPLES)


def textbook(features: int, basis: int, data: Data) -> Step:
    block, optimizer = trained(features, basis, FISTA.paper(), Unrolled())

    def step() -> None:
        textbook_step(block, optimizer, *data.batch(), PAPER_STEPS)

    return step


def ours(
    features: int, basis: int, data: Data, solver: FISTA, adjoint: Adjoint, *, signed: bool = False, stack: int = 0
) -> Step:
    block, optimizer = trained(features, basis, solver, adjoint, signed=signed, stack=stack)

    def step() -> None:
        x, target = data.batch()
        optimizer.zero_grad(set_to_none=True)
        out = block.couple(x)
        loss = (stack or 1) * (F.mse_loss(out.y, target) + F.mse_loss(out.x, x))
        loss.backward()
        optimizer.step()

    return step


def implicit(features: int, basis: int, data: Data, stack: int = 0) -> Step:
    return ours(features, basis, data, FISTA.paper(PAPER_STEPS), Implicit.fast(IMPLICIT_STEPS), stack=stack)


def fast(features: int, basis: int, data: Data, stack: int = 0) -> Step:
    solver, adjoint = FISTA.paper(FAST_STEPS), Implicit.fast(FAST_IMPLICIT_STEPS)
    return ours(features, basis, data, solver, adjoint, signed=True, stack=stack)


def trained(
    features: int, basis: int, solver: FISTA, adjoint: Adjoint, *, signed: bool = False, stack: int = 0
) -> tuple[PFCBlock, torch.optim.Optimizer]:
    generator = torch.Generator("cuda").manual_seed(0)
    how = {"solver": solver, "adjoint": adjoint, "generator": generator, "device": "cuda"}
    blocks = [PFCBlock(features, CLASSES, basis, nonnegative=not signed, **how) for _ in range(stack or 1)]
    block = stack_models(blocks) if stack else blocks[0]
    optimizer = RMSprop(block.parameters(), lr=3e-4, weight_decay=1e-4)
    if not signed:
        keep_nonnegative(block, optimizer)
    return block, optimizer


def mlp(features: int, hidden: int, data: Data) -> Step:
    model: nn.Module = MLP(features, CLASSES, hidden, device="cuda")
    optimizer = RMSprop(model.parameters(), lr=1e-4, weight_decay=1e-4)

    def step() -> None:
        x, target = data.batch()
        optimizer.zero_grad(set_to_none=True)
        F.mse_loss(model(x), target).backward()
        optimizer.step()

    return step


def device_clock(step: Step, repeats: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / repeats


def measure_on(data: list[Data], forms: dict[Name, Step], rounds: int) -> dict[Name, list[float]]:
    """Seconds of a step of each form, with other rows of the data in every round."""

    def move_on() -> None:
        for used in data:
            used.next_()

    return measure(forms, rounds, clock=device_clock, warm_up=WARM_UP, timed_seconds=TIMED_SECONDS, after_round=move_on)


def forms_of(features: int, basis: int, data: Data) -> dict[str, Step]:
    shape = (features, basis, data)
    return {
        "textbook": textbook(*shape),
        "textbook_captured": captured(textbook(*shape)),
        "unrolled": captured(ours(*shape, FISTA.paper(PAPER_STEPS), Unrolled())),
        "implicit": captured(implicit(*shape)),
        "fast": captured(fast(*shape)),
        "mlp": mlp(*shape),
        "mlp_captured": captured(mlp(*shape)),
    }


def measure_shape(features: int, basis: int, rounds: int) -> dict[str, Any]:
    data = Data.made(features)
    seconds = measure_on([data], forms_of(features, basis, data), rounds)
    torch.cuda.empty_cache()  # graphs of other shapes cannot use what these have reserved
    return {
        "features": features,
        "num_basis": basis,
        "median_seconds": {name: statistics.median(times) for name, times in seconds.items()},
        "all_seconds": seconds,
    }


def measure_stacks(sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """Stacks of models at the first shape, for both forms of ours that are used with few parts."""
    features, basis = SHAPES[0]
    data = {size: Data.made(features, size) for size in sizes}
    forms = {
        (make.__name__, size): captured(make(features, basis, data[size], stack=size))
        for make in (implicit, fast)
        for size in sizes
    }
    seconds = measure_on(list(data.values()), forms, rounds)
    medians = {key: statistics.median(times) for key, times in seconds.items()}
    return [
        {
            "form": name,
            "models": size,
            "median_seconds": medians[name, size],
            "model_steps_per_second": size / medians[name, size],
            "all_seconds": seconds[name, size],
        }
        for name, size in forms
    ]


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def times_faster(shapes: list[dict[str, Any]], slow: str, fast: str) -> float:
    return geometric_mean([s["median_seconds"][slow] / s["median_seconds"][fast] for s in shapes])


def print_tables(shapes: list[dict[str, Any]], stacks: list[dict[str, Any]]) -> None:
    if shapes:
        print("ms a step | textbook eager / captured | Unrolled | Implicit | fast | MLP eager / captured")
    for shape in shapes:
        ms = {name: 1e3 * value for name, value in shape["median_seconds"].items()}
        print(
            f"{shape['features']:>4}, {shape['num_basis']:<4}"
            f"{ms['textbook']:>10.1f} / {ms['textbook_captured']:<8.2f}{ms['unrolled']:>10.2f}{ms['implicit']:>10.2f}"
            f"{ms['fast']:>10.3f}{ms['mlp']:>12.2f} / {ms['mlp_captured']:.3f}"
        )
    for slow in ("textbook", "textbook_captured", "mlp") if shapes else ():
        print(f"fast against {slow}: {times_faster(shapes, slow, 'fast'):.1f} times faster (geometric mean)")
    for stack in stacks:
        print(
            f"{stack['form']}, stack of {stack['models']} at 784, 300: {1e3 * stack['median_seconds']:.3f} ms, "
            f"{stack['model_steps_per_second']:,.0f} model-steps a second"
        )


def ready() -> bool:
    """Whether there is a device; its products may then be rounded to TF32."""
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA device, and there is none")
        return False
    torch.backends.cuda.matmul.allow_tf32 = True
    return True


def main() -> None:
    names = {f"{features}x{basis}": (features, basis) for features, basis in SHAPES}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="*", choices=names, default=list(names), metavar="FEATURESxBASIS")
    parser.add_argument("--stacks", nargs="*", type=int, default=[1, 2, 4, 8], metavar="MODELS")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu.json")
    args = parser.parse_args()
    if not ready():
        return

    begun = time.perf_counter()
    shapes = [measure_shape(*names[name], args.rounds) for name in args.shapes]
    stacks = measure_stacks(args.stacks, args.rounds)
    result = {
        "question": __doc__.splitlines()[0],
        "batch": BATCH,
        "tf32": True,
        "iterations": {"textbook": PAPER_STEPS, "unrolled": PAPER_STEPS, "implicit": PAPER_STEPS, "fast": FAST_STEPS},
        "implicit_iterations": {"implicit": IMPLICIT_STEPS, "fast": FAST_IMPLICIT_STEPS},
        "rounds": args.rounds,
        "shapes": shapes,
        "geometric_mean_times_faster": {
            f"{fast} than {slow}": times_faster(shapes, slow, fast)
            for slow in ("textbook", "textbook_captured", "mlp")
            for fast in ("unrolled", "implicit", "fast")
        }
        if shapes
        else {},
        "stacks": stacks,
        "total_seconds": time.perf_counter() - begun,
        **describe(),
    }
    write_json(args.out, result)
    print_tables(shapes, stacks)


if __name__ == "__main__":
    main()
