"""Train a block to classify mixtures, then see which parts an answer is made of."""

import torch
from torch.nn.functional import mse_loss, one_hot

from torchpfc import Implicit, PFCBlock, RMSprop, keep_nonnegative

generator = torch.Generator().manual_seed(0)
planted = torch.rand(6, 40, generator=generator).pow(6)  # three classes, two parts each
labels = torch.randint(3, (600,), generator=generator)
amounts = torch.rand(600, 6, generator=generator) * one_hot(labels).repeat_interleave(2, dim=1)
x, target = amounts @ planted, one_hot(labels).float()

block = PFCBlock(40, 3, num_basis=12, adjoint=Implicit.fast(), generator=generator)
optimizer = RMSprop(block.parameters(), lr=3e-3)
keep_nonnegative(block, optimizer)
for _ in range(200):
    out = block.couple(x)
    loss = mse_loss(out.y, target) + mse_loss(out.x, x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

block.eval()
with torch.no_grad():
    out = block.couple(x)
accuracy = (out.y.argmax(1) == labels).double().mean()
print(f"training accuracy {accuracy:.1%}, unexplained {mse_loss(out.x, x) / x.square().mean():.2%} of the input")

# y is a sum over parts, so each part's share of an answer is a product of two numbers.
answer = out.y[0].argmax()
shares = out.h[0] * block.weight_y[answer]
print(f"example 0 is of class {labels[0]}; score of class {answer}: {out.y[0, answer]:.3f}, of which")
for column in shares.argsort(descending=True)[:3]:
    print(f"  part {column:2}: amount {out.h[0, column]:.3f} gives {shares[column]:.3f}")
