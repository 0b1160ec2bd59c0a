"""Trains stacks of recurrent networks in rounds, with backpropagation or without."""

from __future__ import annotations

from collections.abc import Callable

from torchpfc.nn import PFCBlock, keep_nonnegative, stack_models
from torchpfc.optim import RMSprop
from torchpfc.paper.learners import GradientLearner
from torchpfc.paper.recurrent_models import build_network
from torchpfc.paper.results import Result
from torchpfc.paper.stack_run import Found, StackRun
from torchpfc.training import Objective, random_stream


class NetworkRun(StackRun):
    """The training of a stack of recurrent networks, round by round, until each has stopped."""

    def seeds(self) -> list[int]:
        """The seeds of the networks that still learn."""
        return [self.jobs[i].seed for i in self.members.tolist()]

    def gradient_learner(
        self,
        input_size: int,
        output_size: int,
        objective: Callable[[float], Objective],
        *,
        init_high: float | None = None,
    ) -> GradientLearner:
        """All networks as they begin, where they learn by backpropagation.

        Args:
            input_size: Size of the input of a slice.
            output_size: Size of the output of a slice.
            objective: Makes the loss from what errors of reconstruction count, which is 0 where there are none.
            init_high: Width of the range that weights start from; None takes the published one.
        """
        config = self.config
        networks = [
            build_network(
                config.model,
                input_size,
                config.num_basis,
                output_size,
                bptt=getattr(config, "bptt", True),
                nonnegative=getattr(config, "nonnegative", False),
                iterations=config.iterations,
                init_high=init_high,
                generator=random_stream(job.seed, "weights"),
            )
            for job in self.jobs
        ]
        stack = stack_models(networks).to(self.device, self.dtype)
        optimizer = RMSprop(stack.parameters(), lr=config.lr, weight_decay=config.weight_decay)
        if any(isinstance(module, PFCBlock) and module.nonnegative for module in stack.modules()):
            keep_nonnegative(stack, optimizer)
        weight = getattr(config, "reconstruction_weight", 0.0) if config.model == "factorized" else 0.0
        loss = objective(weight)
        return GradientLearner(stack, optimizer, lambda members: loss, self.fabric)

    def result(self, i: int, found: Found) -> Result:
        """What is known of a network, with the number of rounds."""
        found.metrics = {"rounds": len(self.history[i]["train_loss"]), **found.metrics}
        return super().result(i, found)
