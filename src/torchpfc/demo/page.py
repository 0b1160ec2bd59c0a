"""The page: what was found out, in words and figures, in one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template

from torchpfc.demo import figures
from torchpfc.demo.markup import percent
from torchpfc.demo.results import Count, Explanation, Findings, Forgetting, Lessons, Recognition
from torchpfc.demo.settings import KNOWN_SHARE, MAX_TERMS, NUM_EXAMPLES, SCORE_SHARE
from torchpfc.paper.report.markup import read_style


@dataclass(frozen=True)
class Made:
    """With what a page was made, and in how much time."""

    seconds: float
    versions: dict[str, str]
    machine: str


def draw(found: Findings, made: Made) -> str:
    """Writes the page.

    Args:
        found: What it shows.
        made: What it says about itself.
    """
    train, validation, test = found.sizes
    recognition, window, taught = found.recognition, found.settings.window, found.task_window
    template = Template((files("torchpfc.demo") / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        style=read_style("colours", "type"),
        num_train=f"{train:,}",
        num_validation=validation,
        num_test=test,
        one_digit=f"{100 / test:.2f}",
        units=found.settings.units,
        hero=figures.draw_equation(max(found.explanations, key=_worth_showing)),
        facts=figures.draw_facts(list_facts(found)),
        classifiers=figures.draw_classifiers({"PFC block": found.pfc, "MLP": found.mlp}),
        parts=figures.draw_parts(found.parts),
        num_examples=NUM_EXAMPLES,
        score_share=percent(SCORE_SHARE, 0),
        max_terms=MAX_TERMS,
        mistakes=describe_mistakes(found.explanations),
        examples="\n".join(map(figures.draw_example, found.explanations)),
        kinds=figures.draw_kinds(recognition),
        spread=figures.draw_spread(recognition),
        known_share=percent(KNOWN_SHARE, 0),
        threshold=percent(recognition.threshold, 0),
        alarms=describe_alarms(recognition),
        width=window.width,
        sweep_speed=f"{window.sweep_speed:g}",
        iterations=found.settings.iterations,
        batch_size=taught.training.batch_size,
        lr=_short(taught.training.lr),
        weight_decay=_short(taught.training.weight_decay),
        matrices=figures.draw_matrices(name_lessons(found)),
        task_sizes=" to ".join(str(pick(count.total for count in taught.tests[0])) for pick in (min, max)),
        all_at_once=percent(found.pfc.test.share),
        num_columns=found.num_columns,
        rates=describe_rates(name_lessons(found)),
        strip=figures.draw_strip(found.window_parts, taught.unfinished),
        num_batches=found.forgetting.num_batches,
        num_corrupted=len(found.forgetting.corrupted),
        num_removed=len(found.forgetting.columns),
        num_forgetful=len(found.forgetting.parts.images),
        forgetting=figures.draw_facts(list_forgetting(found.forgetting)),
        forgotten=figures.draw_forgetting(found.forgetting),
        seed=found.seed,
        made=describe_making(found, made),
    )


def summarise(found: Findings) -> str:
    """The accuracies as lines for a terminal."""
    lines = [f"Accuracy on {found.pfc.test.total} test digits (seed {found.seed})"]
    at_once = {"MLP": found.mlp.test, "PFC block": found.pfc.test}
    in_tasks = {name: taught.final for name, taught in name_lessons(found).items()}
    taken = found.forgetting
    forgotten = {"as learned": taken.before, "after forgetting them": taken.after, "never seen": taken.never}
    wrong = f"{len(taken.corrupted)} of {taken.num_batches} batches with wrong labels"
    for title, counts in (("all classes at once", at_once), ("two digits at a time", in_tasks), (wrong, forgotten)):
        lines.append(f"  {title}")
        lines += [f"    {name:<26}{100 * count.share:5.1f} %" for name, count in counts.items()]
    return "\n".join(lines)


def name_lessons(found: Findings) -> dict[str, Lessons]:
    """The networks that learned task by task, each by its name."""
    return {
        "MLP with RMSprop": found.task_mlp,
        "PFC block with RMSprop": found.task_pfc,
        "PFC block with RMSpropSLW": found.task_window,
    }


def list_facts(found: Findings) -> dict[str, Count]:
    """The three numbers to remember."""
    noise = found.recognition.noise.above(found.recognition.threshold)
    return {
        f"of {found.pfc.test.total} test digits read correctly. "
        f"An MLP of the same size: {percent(found.mlp.test.share)}.": found.pfc.test,
        f"of {noise.total} images of noise noticed, by what they leave unexplained.": noise,
        "of the test digits read correctly after learning two digits at a time. "
        f"An MLP: {percent(found.task_mlp.final.share)}.": found.task_window.final,
    }


def list_forgetting(forgetting: Forgetting) -> dict[str, Count]:
    """Accuracies before and after, and what there was to gain."""
    return {
        "of the test digits read correctly, as learned.": forgetting.before,
        "after the columns that wrong labels could write were removed.": forgetting.after,
        "by a block that never saw those batches.": forgetting.never,
    }


def describe_mistakes(explanations: Sequence[Explanation]) -> str:
    """How the list of examples goes on after those that the block got right."""
    wrong = any(explanation.answer != explanation.label for explanation in explanations)
    return ", and the first that it got wrong" if wrong else "; it got none wrong"


def describe_alarms(recognition: Recognition) -> str:
    """How many images of each kind leave more unexplained than the limit."""
    counts = [kind.above(recognition.threshold) for kind in figures.kinds(recognition).values()]
    digits, shuffled, noise = (f"{count.right} of the {count.total}" for count in counts)
    return f"{digits} test digits, {shuffled} shuffled ones and {noise} images of noise"


def describe_rates(lessons: dict[str, Lessons]) -> str:
    """The learning rate and the largest number of epochs of each network that learned task by task."""
    return "; ".join(
        f"{name}: {_short(taught.training.lr)}, {taught.training.max_epochs} epochs" for name, taught in lessons.items()
    )


def describe_making(found: Findings, made: Made) -> str:
    """The last line of the page."""
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    machine = escape(made.machine)
    return f"Made with {versions}, seed {found.seed}, in {made.seconds:.0f} seconds on one thread of {machine}."


def _worth_showing(explanation: Explanation) -> tuple[bool, int]:
    return explanation.answer == explanation.label, len(explanation.terms)


def _short(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-")
