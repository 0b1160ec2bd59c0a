"""A model before and after it has forgotten something, beside one that never knew it."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchpfc.data.streams import next_label
from torchpfc.nn import PFCBlock
from torchpfc.paper.column_pictures import draw_lines, spread_out
from torchpfc.paper.components import Window
from torchpfc.paper.image_run import ImageRun
from torchpfc.paper.unlearning_settings import Unlearning, num_strangers
from torchpfc.paper.windows import make_optimizer
from torchpfc.training import Batches, evaluate
from torchpfc.unlearning import Relearning, audit, forget, membership_attack

_AT_ONCE = 2000
"""Images that an audit looks at, at most, of each kind."""


class Forgotten:
    """A model before and after it has forgotten, and one that never knew.

    Args:
        run: The training of all of them.
        i: Which model of the run this is.
        before: The model that has learned everything.
        never: Its twin, which passed over what is to be forgotten; None where there is none.
    """

    def __init__(self, run: ImageRun, i: int, before: PFCBlock, never: PFCBlock | None) -> None:
        self.run, self.i, self.job, self.record = run, i, run.jobs[i], run.records[i]
        self.config: Unlearning = self.job.config
        self.objective = self.config.model.errors(*self.config.model.loss_weights())
        self.train = run.sets.train[0][i]
        self.before, self.never, self.after = before, never, deepcopy(before)
        for model in self.models.values():
            model.solver = self.config.model.inference.eval_solver
            model.eval()
        self.rows = self.config.rows_to_forget(run.data, self.train)
        wanted: dict[str, Any] = {"examples": self.rows}
        if self.config.what == "batches":
            wanted = {"batches": self.config.batches_to_forget(run.data, self.train)}
        self.report = forget(self.after, self.config.make_ledger(self.train), **wanted)

    @property
    def models(self) -> dict[str, PFCBlock]:
        """The models by what they are called in the metrics."""
        found = {"before": self.before, "after": self.after}
        return found if self.never is None else {**found, "exact": self.never}

    def metrics(self) -> dict[str, float]:
        """Everything that was measured."""
        columns = self.report.columns
        found = {
            "columns_used": self.record.columns[-1],
            "forgotten_columns": float(self.report.num_columns),
            "forgotten_share": self.report.share,
            "first_forgotten_column": float(columns[0][0]),
            "last_forgotten_column": float(columns[-1][1] - 1),
            "other_batches_affected": float(len(self.report.others_affected)),
        }
        found |= self._audit()
        if self.run.context.test:
            found["test_accuracy"] = found["before_accuracy"]
            if self.config.what == "batches":
                found |= self._published_range()
        return found

    def _published_range(self) -> dict[str, float]:
        """The accuracy without the columns that the published code removes, which are a few more."""
        window = self.config.window
        first = int(self.config.start * window.sweep_speed)
        last = min(int(self.config.stop * window.sweep_speed + window.width), self.config.model.num_basis - 1)
        model = deepcopy(self.before)
        with torch.no_grad():
            for weight in (model.weight_x, model.weight_y):
                weight[:, first : last + 1] = 0
        model.reset_step_size()
        batches = Batches(*self.run.sets.test[:2], batch_size=_AT_ONCE)
        accuracy = 100 * evaluate(model, batches, self.objective).accuracy.item()
        found = {"published_first_column": float(first), "published_last_column": float(last)}
        return {**found, "after_published_range_accuracy": accuracy}

    def _audit(self) -> dict[str, float]:
        run, config = self.run, self.config
        valid = config.split(len(run.data.train), self.job.seed)[1]
        unknown = valid[-num_strangers(len(valid)) :]
        if config.what == "class":
            of_class = run.data.train.label[unknown] == config.forgotten_class
            unknown = unknown[of_class] if of_class.sum() > 1 else unknown
        others = self.train[~torch.isin(self.train, self.rows)]
        forgotten, outside = self._examples(_some(self.rows)), self._examples(unknown)
        if config.what == "batches":
            forgotten, outside = next_label(*forgotten), next_label(*outside)
        test = run.sets.test[:2] if run.context.test else self._examples(run.sets.valid[0][self.i])
        relearning = None
        if config.relearn_steps:
            with torch.no_grad():
                loss = self.objective(self.before, *forgotten).loss.item()
            optimizing = partial(make_optimizer, config=config, window=Window())
            relearning = Relearning(optimizing, loss=1.05 * loss, max_steps=config.relearn_steps)
        audits = audit(
            self.models,
            self.objective,
            retained=self._examples(_some(others)),
            forgotten=forgotten,
            test=test,
            non_members=outside,
            relearning=relearning,
            batch_size=_AT_ONCE,
        )
        metrics: dict[str, float] = {}
        for name, found in audits.models.items():
            metrics[f"{name}_accuracy" if run.context.test else f"{name}_valid_accuracy"] = 100 * found.test
            metrics[f"{name}_retained_accuracy"] = 100 * found.retained
            metrics[f"{name}_forgotten_accuracy"] = 100 * found.forgotten
            metrics[f"{name}_membership_auroc"] = found.membership.auroc
            metrics[f"{name}_membership_deviation"] = found.membership.deviation
            if found.relearn_steps is not None:
                metrics[f"{name}_relearn_steps"] = float(found.relearn_steps)
        if self.never is not None:
            attack = membership_attack(
                self.before, members=forgotten, non_members=outside, reference=self.never, batch_size=_AT_ONCE
            )
            metrics["before_membership_auroc_with_reference"] = attack.auroc
        return metrics

    def _examples(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = rows.to(self.run.device)
        return self.run.sets.x[rows], self.run.sets.target[rows]

    def pictures(self) -> dict[str, str]:
        """Columns from the first to the last: before, after, and of the model that never knew."""
        if self.job.seed:
            return {}
        lines = [spread_out(model.weight_x) for model in self.models.values()]
        return draw_lines({"weights_before_and_after": lines}, self.run.data.train.shape)


def _some(rows: Tensor) -> Tensor:
    """No more than an audit looks at, evenly from first to last: sorted by label, the first are all of one class."""
    return rows[:: max(1, -(-len(rows) // _AT_ONCE))]
