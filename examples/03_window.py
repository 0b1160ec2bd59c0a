"""Teach one class after another, without replay: a sliding window protects what was learned first."""

import torch
from torch.nn.functional import mse_loss, one_hot

from torchpfc import FISTA, Implicit, PFCBlock, RMSprop, RMSpropSLW, keep_nonnegative

generator = torch.Generator().manual_seed(0)
parts = torch.rand(8, 30, generator=generator).pow(4)  # shared: each class is a mixture of all parts in its own ratio
ratios = torch.rand(5, 8, generator=generator).pow(2)
labels = torch.randint(5, (500,), generator=generator)
amounts = ratios[labels] * (0.5 + torch.rand(500, 8, generator=generator))
x, target = amounts @ parts, one_hot(labels).float()
x /= x.max()


def accuracy_after_all_classes(window: bool) -> float:
    start = torch.Generator().manual_seed(1)
    block = PFCBlock(30, 5, num_basis=60, solver=FISTA.paper(30), adjoint=Implicit.fast(), generator=start)
    if window:  # 5 x 40 steps of 0.25 columns, and the window itself, use 60 columns
        optimizer = RMSpropSLW(block.parameters(), lr=3e-3, width=10, sweep_speed=0.25)
    else:
        optimizer = RMSprop(block.parameters(), lr=3e-3)
    keep_nonnegative(block, optimizer)
    for task in range(5):
        seen = labels == task
        for _ in range(40):
            out = block.couple(x[seen])
            loss = mse_loss(out.y, target[seen]) + mse_loss(out.x, x[seen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    block.eval()
    with torch.no_grad():
        return (block(x).argmax(1) == labels).double().mean().item()


print(f"all columns learn all the time: {accuracy_after_all_classes(window=False):.1%}")
print(f"a window of 10 columns:         {accuracy_after_all_classes(window=True):.1%}")
