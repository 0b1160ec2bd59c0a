"""What does a PFC block cost per example, against an MLP of the same width?

Both map d features to d features, with four times as many hidden units as the MLP of a transformer has, and as many
parts. A prediction, and a training step with the mean squared error of the answer, for batches of 256 examples on one
thread: the block with its defaults (100 steps, differentiated one by one), with implicit gradients, with fewer steps,
and with few steps from the codes of the last epoch. The forms take turns; medians over the rounds.

    python benchmarks/block_cost.py [--rounds 5] [--out benchmarks/results/block_cost.json]
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before the libraries are loaded that read it

import torch
import torch.nn.functional as F
from _machine import describe, write_json
from _steps import FLOOR, Step, measure
from torch import Tensor, nn

from torchpfc import FISTA, MLP, Implicit, PFCBlock, RMSprop, keep_nonnegative

WIDTHS, HIDDEN, BATCH = (64, 256), 4, 256
FORMS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "implicit, 100 steps": {"adjoint": Implicit.fast()},
    "implicit, 30 steps": {"solver": FISTA.paper(30), "adjoint": Implicit.fast()},
    "implicit, 10 steps from warm codes": {"solver": FISTA.paper(10), "adjoint": Implicit.fast()},
}


def trained(model: nn.Module, x: Tensor, target: Tensor, codes: Tensor | None) -> Step:
    optimizer = RMSprop(model.parameters(), lr=1e-4)
    if isinstance(model, PFCBlock):
        keep_nonnegative(model, optimizer)

    def step() -> None:
        optimizer.zero_grad()
        if codes is None:
            loss = F.mse_loss(model(x), target)
        else:
            out = model.couple(x, warm_start=codes)
            codes.copy_(out.h.detach())
            loss = F.mse_loss(out.y, target)
        loss.backward()
        optimizer.step()

    return step


def predicting(model: nn.Module, x: Tensor) -> Step:
    model.eval()

    @torch.no_grad()
    def step() -> None:
        model(x)

    return step


def measure_width(width: int, rounds: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    x, target = (torch.rand(BATCH, width, generator=generator) for _ in range(2))
    steps: dict[tuple[str, str], Step] = {}
    for name in ("MLP", *FORMS):
        for kind in ("prediction", "training step"):
            if name == "MLP":
                model: nn.Module = MLP(width, width, HIDDEN * width)
            else:
                options = {"generator": torch.Generator().manual_seed(0), **FORMS[name]}
                model = PFCBlock(width, width, num_basis=HIDDEN * width, **options)
            warm = torch.full((BATCH, HIDDEN * width), FLOOR) if "warm" in name else None
            if kind == "training step":
                steps[name, kind] = trained(model, x, target, warm)
            elif warm is None:  # what is new has no code to begin with
                steps[name, kind] = predicting(model, x)
    seconds = measure(steps, rounds, timed_seconds=0.1)
    forms: dict[str, dict[str, Any]] = {}
    for (name, kind), times in seconds.items():
        forms.setdefault(name, {})[kind] = {
            "seconds": [value / BATCH for value in times],
            "median_seconds": statistics.median(times) / BATCH,
        }
    return {"features": width, "num_basis": HIDDEN * width, "forms": forms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "block_cost.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    shapes = [measure_width(width, args.rounds) for width in WIDTHS]
    for shape in shapes:
        for name, kinds in shape["forms"].items():
            text = ", ".join(f"{kind} {1e6 * found['median_seconds']:.1f} us" for kind, found in kinds.items())
            print(f"{shape['features']} features, {shape['num_basis']} parts, {name}: {text} an example")
    write_json(
        args.out,
        {"question": __doc__.splitlines()[0], "batch": BATCH, "rounds": args.rounds, "shapes": shapes, **describe()},
    )


if __name__ == "__main__":
    main()
