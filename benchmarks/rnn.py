"""How long does a training step of a factorized RNN take, against the textbook form and against `nn.LSTM`?

The textbook form is what a straightforward implementation does: a loop over slices, in each one a loop over unrolled
steps with two products, autograd through all of it, and the step size from 40 power iterations on the Gram matrix, once
per sequence. All factorized forms train on the same images, read in 28 columns, with the losses of prediction, states
and inputs, RMSprop and the projection to non-negative weights. The LSTM, the GRU and the vanilla RNN have as large a
state and the loss of the prediction alone. On a GPU, products are in TF32 for all, and captured means that the whole
step is one CUDA graph. The forms take turns, round by round, and the times are medians over the rounds.

    python benchmarks/rnn.py [--device cpu|cuda] [--num-basis 512] [--rounds 15] [--out benchmarks/results/rnn.json]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _machine import describe, write_json
from _steps import Step, captured, measure, textbook_codes, textbook_lipschitz
from torch import Tensor, nn

from torchpfc import FactorizedRNN, RMSprop, VanillaRNN, keep_nonnegative, record_couplings, rnn_reconstruction_loss

BATCH, SLICES, PIXELS, CLASSES, ITERATIONS = 100, 28, 28, 10, 10
TIMED_SECONDS = 0.05  # of each form in each round, or one step where that takes longer


def textbook_states(x: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """States of all slices and what they should reconstruct, differentiated by autograd."""
    L = textbook_lipschitz(W)
    h = torch.zeros(len(x), W.shape[1], device=x.device)
    states, targets = [], []
    for x_t in x.unbind(1):
        z = torch.cat([h, x_t], dim=1)
        targets.append(z.detach())
        h = textbook_codes(z, W, ITERATIONS, L, start=h)
        states.append(h)
    return torch.stack(states, 1), torch.stack(targets, 1)


def factorized(size: int, bptt: bool = True) -> tuple[FactorizedRNN, torch.optim.Optimizer]:
    rnn = FactorizedRNN(PIXELS, size, CLASSES, bptt=bptt, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    optimizer = RMSprop(rnn.parameters(), lr=5e-5, weight_decay=1e-5)
    keep_nonnegative(rnn, optimizer)
    return rnn, optimizer


def textbook(size: int, x: Tensor, target: Tensor) -> Step:
    rnn, optimizer = factorized(size)

    def step() -> None:
        optimizer.zero_grad()
        W, W_y = rnn.block.weight_x, rnn.block.weight_y
        h, z = textbook_states(x, W)
        errors = h @ W.T - z
        loss = F.mse_loss(h[:, -1] @ W_y.T, target)
        loss = loss + errors[..., :size].square().mean() + errors[..., size:].square().mean()
        loss.backward()
        optimizer.step()

    return step


def ours(size: int, x: Tensor, target: Tensor, bptt: bool = True) -> Step:
    rnn, optimizer = factorized(size, bptt)

    def step() -> None:
        optimizer.zero_grad()
        with record_couplings(rnn) as seen:
            y, _ = rnn(x)
        (F.mse_loss(y[:, -1], target) + rnn_reconstruction_loss(seen)).backward()
        optimizer.step()

    return step


class Reader(nn.Module):
    """One of PyTorch's recurrent layers, and a linear output."""

    def __init__(self, layer: type[nn.LSTM] | type[nn.GRU], size: int) -> None:
        super().__init__()
        self.rnn = layer(PIXELS, size, batch_first=True)
        self.output = nn.Linear(size, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        """Outputs of all slices, and the last state."""
        h, state = self.rnn(x)
        return self.output(h), state


def other(model: nn.Module, x: Tensor, target: Tensor) -> Step:
    model = model.to(DEVICE)
    optimizer = RMSprop(model.parameters(), lr=1e-5, weight_decay=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        F.mse_loss(model(x)[0][:, -1], target).backward()
        optimizer.step()

    return step


def forms(size: int, x: Tensor, target: Tensor) -> dict[str, Step]:
    data = (x, target)
    eager: dict[str, Callable[[], Step]] = {
        "textbook": lambda: textbook(size, *data),
        "factorized": lambda: ours(size, *data),
        "factorized_no_bptt": lambda: ours(size, *data, bptt=False),
        "vanilla": lambda: other(VanillaRNN(PIXELS, size, CLASSES), *data),
        "lstm": lambda: other(Reader(nn.LSTM, size), *data),
        "gru": lambda: other(Reader(nn.GRU, size), *data),
    }
    made = {name: make() for name, make in eager.items()}
    if DEVICE == "cuda":
        made |= {f"{name}_captured": captured(make()) for name, make in eager.items()}
    return made


def made_data() -> tuple[Tensor, Tensor]:
    """Images as sparse as MNIST's, four fifths zeros, with dark margins left and right."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(BATCH, SLICES, PIXELS, generator=generator)
    x *= torch.rand(BATCH, SLICES, PIXELS, generator=generator) < 0.3
    x[:, :4] = x[:, -4:] = 0.0
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    return x.to(DEVICE), F.one_hot(labels, CLASSES).float().to(DEVICE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--num-basis", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    global DEVICE
    DEVICE = args.device
    torch.set_float32_matmul_precision("high")
    if DEVICE == "cpu":
        torch.set_num_threads(2)
    seconds = measure(forms(args.num_basis, *made_data()), args.rounds, timed_seconds=TIMED_SECONDS)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    best = "factorized_captured" if DEVICE == "cuda" else "factorized"
    result = {
        "question": __doc__.splitlines()[0],
        "device": DEVICE,
        "batch": BATCH,
        "slices": SLICES,
        "num_basis": args.num_basis,
        "iterations": ITERATIONS,
        "rounds": args.rounds,
        "median_seconds": medians,
        "all_seconds": seconds,
        "best_form": best,
        "time_relative_to_best_form": {name: value / medians[best] for name, value in medians.items()},
        **describe(),
    }
    name = "rnn_gpu.json" if DEVICE == "cuda" else "rnn.json"
    write_json(args.out or Path(__file__).parent / "results" / name, result)
    print(f"{'form':<28}{'ms':>10}{f'x {best}':>24}")
    for form, value in medians.items():
        print(f"{form:<28}{1e3 * value:>10.2f}{value / medians[best]:>24.2f}")


DEVICE = "cpu"

if __name__ == "__main__":
    main()
