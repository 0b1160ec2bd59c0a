"""Solve many non-negative least squares problems at once, and see how good each answer is."""

import torch

from torchpfc import nnls

generator = torch.Generator().manual_seed(0)
parts = torch.rand(30, 8, generator=generator)  # one part per column
amounts = torch.rand(1000, 8, generator=generator) * (torch.rand(1000, 8, generator=generator) < 0.4)
x = amounts @ parts.T  # 1,000 mixtures of the parts, one per row

solution = nnls(x, parts)
print(f"largest error of an amount:   {(solution.h - amounts).abs().max():.1e}")
print(f"steps that the rows needed:   {solution.iterations.min()} to {solution.iterations.max()}")

# Half of the entries are missing: the mask says which ones were seen.
seen = torch.rand(x.shape, generator=generator) < 0.5
partly = nnls(x.where(seen, torch.nan), parts, mask=seen)
print(f"the same with half unseen:    {(partly.h - amounts).abs().max():.1e}")

# Gradients pass through the optimum, so the parts can be learned by any loss of the amounts.
parts.requires_grad_()
nnls(x, parts).h.square().mean().backward()
print(f"gradient of the parts:        {tuple(parts.grad.shape)}")
