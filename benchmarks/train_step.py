"""How long does a training step of a PFC block take on two CPU cores, against the textbook form?

The textbook form is what a straightforward implementation does: autograd through every unrolled step, two products with
W in each, and the step size from 40 power iterations on the Gram matrix at every call. All forms train the same block,
with reconstruction loss, RMSprop and the projection to non-negative weights. Medians over rounds in which every form
takes its turn, so that a busy machine slows all of them alike.

    python benchmarks/train_step.py [--rounds 15] [--out benchmarks/results/train_step.json]
"""

from __future__ import annotations

import argparse
import functools
import statistics
from pathlib import Path

import torch
import torch.nn.functional as F
from _machine import describe, write_json
from _steps import FLOOR, Step, measure, textbook_step
from torch import Tensor

from torchpfc import FISTA, Implicit, PFCBlock, RMSprop, Unrolled, keep_nonnegative
from torchpfc.solvers import Adjoint

FEATURES, BASIS, BATCH, CLASSES = 784, 300, 200, 10
PAPER_ITERATIONS, WARM_ITERATIONS = 100, 10


def our_step(
    block: PFCBlock, optimizer: torch.optim.Optimizer, x: Tensor, target: Tensor, codes: Tensor | None = None
) -> None:
    optimizer.zero_grad()
    out = block.couple(x, warm_start=codes)
    loss = F.mse_loss(out.y, target) + F.mse_loss(out.x, x)
    loss.backward()
    optimizer.step()
    if codes is not None:
        codes.copy_(out.h.detach())


def made_data() -> tuple[Tensor, Tensor]:
    """Images of MNIST's size and sparsity: 80 % zeros, the rest in strokes of parts."""
    generator = torch.Generator().manual_seed(0)
    parts = torch.rand(50, FEATURES, generator=generator) * (torch.rand(50, FEATURES, generator=generator) < 0.05)
    amounts = torch.rand(BATCH, 50, generator=generator) * (torch.rand(BATCH, 50, generator=generator) < 0.1)
    x = (amounts @ parts).clamp(max=1.0)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    return x, F.one_hot(labels, CLASSES).float()


def trained(solver: FISTA, adjoint: Adjoint) -> tuple[PFCBlock, torch.optim.Optimizer]:
    block = PFCBlock(
        FEATURES,
        CLASSES,
        num_basis=BASIS,
        solver=solver,
        adjoint=adjoint,
        generator=torch.Generator().manual_seed(0),
    )
    optimizer = RMSprop(block.parameters(), lr=3e-4, weight_decay=1e-4)
    keep_nonnegative(block, optimizer)
    return block, optimizer


def forms(x: Tensor, target: Tensor) -> dict[str, Step]:
    def ours(solver: FISTA, adjoint: Adjoint, codes: Tensor | None = None) -> Step:
        return functools.partial(our_step, *trained(solver, adjoint), x, target, codes)

    paper, short = FISTA.paper(PAPER_ITERATIONS), FISTA.paper(WARM_ITERATIONS)
    return {
        "textbook": functools.partial(textbook_step, *trained(paper, Unrolled()), x, target, PAPER_ITERATIONS),
        "unrolled": ours(paper, Unrolled()),
        "implicit": ours(paper, Implicit.fast()),
        "implicit_warm": ours(short, Implicit.fast(), codes=torch.full((BATCH, BASIS), FLOOR)),
    }


def saved_bytes(iterations: int, x: Tensor) -> int:
    """Bytes that a forward pass with the implicit gradient keeps for the backward pass."""
    block, _ = trained(FISTA.paper(max_iter=iterations), Implicit.fast())
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        block(x)
    return sum(storages.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "train_step.json")
    args = parser.parse_args()

    torch.set_num_threads(2)
    x, target = made_data()
    seconds = measure(forms(x, target), args.rounds)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    result = {
        "question": __doc__.splitlines()[0],
        "features": FEATURES,
        "num_basis": BASIS,
        "batch": BATCH,
        "iterations": {
            **dict.fromkeys(("textbook", "unrolled", "implicit"), PAPER_ITERATIONS),
            "implicit_warm": WARM_ITERATIONS,
        },
        "rounds": args.rounds,
        "median_seconds": medians,
        "all_seconds": seconds,
        "times_faster_than_textbook": {name: medians["textbook"] / value for name, value in medians.items()},
        "implicit_saved_bytes": {str(k): saved_bytes(k, x) for k in (50, 800)},
        **describe(),
    }
    write_json(args.out, result)
    print(f"{'form':<16}{'ms':>8}{'x textbook':>12}")
    for name, value in medians.items():
        print(f"{name:<16}{1e3 * value:>8.1f}{medians['textbook'] / value:>12.1f}")
    print("bytes saved for backward by implicit:", result["implicit_saved_bytes"])


if __name__ == "__main__":
    main()
