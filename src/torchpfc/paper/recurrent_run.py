"""Trains stacks of recurrent networks in rounds, with backpropagation or without."""

from __future__ import annotations

from torchpfc.nn import keep_nonnegative, stack_models
from torchpfc.optim import RMSprop
from torchpfc.paper.learners import GradientLearner
from torchpfc.paper.recurrent_models import SequenceErrors
from torchpfc.paper.results import Result
from torchpfc.paper.settings import Component
from torchpfc.paper.stack_run import Found, StackRun
from torchpfc.training import Objective, random_stream


class SideBySide(Component):
    """Settings of networks that learn at once where they differ in their seed alone."""

    def stack_key(self) -> object:
        """Itself."""
        return self

    def shared_batch(self) -> int:
        """None, where there are no gradients to average."""
        return 1


class NetworkRun(StackRun):
    """The training of a stack of recurrent networks, round by round, until each has stopped."""

    def seeds(self) -> list[int]:
        """The seeds of the networks that still learn."""
        return [self.jobs[i].seed for i in self.members.tolist()]

    def gradient_learner(
        self,
        input_size: int,
        output_size: int,
        *,
        init_high: float | None = None,
        last: int | None = None,
        objective: Objective | None = None,
    ) -> GradientLearner:
        """All networks as they begin, where they learn by backpropagation.

        Args:
            input_size: Size of the input of a slice.
            output_size: Size of the output of a slice.
            init_high: Width of the range that weights start from; None takes the published one.
            last: How many slices, at the end, have a target; None for all.
            objective: What to learn for; None takes the paper's loss.
        """
        network, optimizing = self.config.network, self.config.optimizer
        streams = [random_stream(job.seed, "weights") for job in self.jobs]
        networks = [network.build(input_size, output_size, stream, init_high=init_high) for stream in streams]
        stack = stack_models(networks).to(self.device, self.dtype)
        optimizer = RMSprop(stack.parameters(), lr=optimizing.lr, weight_decay=optimizing.weight_decay)
        factorized = network.model == "factorized"
        if factorized and network.nonnegative:
            keep_nonnegative(stack, optimizer)
        weight = network.reconstruction_weight if factorized else 0.0
        errors = SequenceErrors(1.0, weight, last) if objective is None else objective
        return GradientLearner(stack, optimizer, lambda members: errors, self.fabric)

    def result(self, i: int, found: Found) -> Result:
        """What is known of a network, with the number of rounds."""
        found.metrics = {"rounds": len(self.history[i]["train_loss"]), **found.metrics}
        return super().result(i, found)
