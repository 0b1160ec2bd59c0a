"""What the page on accuracy says of each result file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from _page_words import Data, Told, grid, listed, paragraphs, sentences, significant, times

TABLE_MODELS = {
    "pfc": "ours",
    "pfc scaled": "ours, scaled",
    "linear": "linear",
    "knn": "nearest neighbours",
    "mlp": "MLP",
    "boosting": "gradient boosting",
    "ebm": "EBM",
}
SCALED = "pfc scaled"
"""Beside the others, and not compared with them: the same model with a scaler in front."""


def tell_tables(data: Data) -> Told:
    """What `tables.py` found."""
    sets = data["data"]
    rows = []
    for name, found in sets.items():
        kind = f"{found['classes']} classes" if found["classes"] else "numbers"
        means = [_mean(found["scores"].get(model)) for model in TABLE_MODELS]
        rows.append([name, f"{found['rows']:,} x {found['features']}, {kind}", *map(_percent, means)])
    compared = [model for model in TABLE_MODELS if model != SCALED]
    scores = [{model: _mean(found["scores"].get(model)) for model in compared} for found in sets.values()]
    ranks, whole = mean_ranks(scores), [some for some in scores if None not in some.values()]
    rows.append(["mean rank", "", *(f"{ranks[model]:.2f}" if model in ranks else "" for model in TABLE_MODELS)])
    short = [name for name, found in sets.items() if shortfall(found["scores"]["pfc"], found["scores"][SCALED])]
    text = paragraphs(
        f"{len(sets)} tables, of which at most {data['most_rows']:,} rows are taken; the mean over n = {data['folds']}"
        " folds, the same for all. Accuracy for classes and R² for numbers, in percent. Every model has its default"
        " settings; only the explainable boosting machine (EBM) is a mean of 4 models, not of 14, without pairs of"
        " features where there are more than 12 of them or more than two classes, and left out where it would take"
        " hours. The linear model (logistic regression or ridge), nearest"
        " neighbours and the MLP stand behind a `StandardScaler`, which the MLP has for the numbers to predict, too;"
        " ours, gradient boosting and the EBM see the numbers"
        " as they are.",
        grid(["set", "rows x features", *TABLE_MODELS.values()], rows, words=2),
        sentences(
            "The rank of a model, 1 for the best, is a mean over the tables that it was fitted to.",
            _behind(ranks, "on all tables"),
            _behind(mean_ranks(whole), f"on the {len(whole)} that all models were fitted to"),
            "A scaler in front should not be needed: without it we want at most a point less, or one standard error of"
            " the difference over folds where that is more.",
            f"That is missed on {listed(short)}." if short else "That holds on every table.",
        ),
    )
    return Told(text, [])


def mean_ranks(sets: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """The mean rank of each model over the sets that it has a score of, among those that have one; equals share ranks.

    Example:
        >>> mean_ranks([{"a": 90.0, "b": 80.0}, {"a": 70.0, "b": 70.0}, {"a": 1.0, "b": None}, {"a": 2.0, "b": 3.0}])
        {'a': 1.375, 'b': 1.5}
    """
    ranks: dict[str, list[float]] = {}
    for scores in sets:
        there = {model: score for model, score in scores.items() if score is not None}
        for model, own in there.items():
            better = sum(other > own for other in there.values())
            equal = sum(other == own for other in there.values())
            ranks.setdefault(model, []).append(better + (equal + 1) / 2)
    return {model: statistics.mean(found) for model, found in ranks.items()}


def shortfall(raw: Sequence[float], scaled: Sequence[float]) -> bool:
    """Whether scores are lower than others by more than a point, and than the standard error of the difference.

    Example:
        >>> shortfall([90, 91, 92], [92, 93, 94]), shortfall([90, 91, 92], [90, 92, 93]), shortfall([5, 0], [0, 5])
        (True, False, False)
    """
    difference = [b - a for a, b in zip(raw, scaled, strict=True)]
    error = statistics.stdev(difference) / math.sqrt(len(difference))
    return statistics.mean(difference) > max(1.0, error)


def _behind(ranks: Mapping[str, float], where: str) -> str:
    if not {"pfc", "mlp"} <= ranks.keys():
        return ""
    place = "not behind" if ranks["pfc"] <= ranks["mlp"] else "behind"
    return f"Ours has a mean rank of {ranks['pfc']:.2f} {where}, {place} that of the MLP ({ranks['mlp']:.2f})."


LEARNERS = {
    "ours": "`ContinualPFC` with a read-out",
    "nearest mean": "nearest mean",
    "lda": "streaming LDA",
    "random features": "random features and ridge",
    "logistic regression": "logistic regression, all at once",
}
INTENT_SETS = {"clinc150": "CLINC150", "banking77": "Banking77"}


def tell_intents(data: Data) -> Told:
    """What `intents.py` found."""
    parts = []
    for name, kinds in data["data"].items():
        sizes = kinds["sizes"]
        for inputs, learners in kinds.items():
            if inputs == "sizes":
                continue
            heads = ["learner", "test, %", "validation, %", "MB kept", "s to teach all", "ms to ask one"]
            outside = any("out_of_scope_auroc" in found for found in learners.values())
            rows = []
            for key, found in learners.items():
                row = [LEARNERS[key], _percent(found["test"]), _percent(found["valid"])]
                spent = found["bytes"] / 1e6, found["teach_seconds"], 1e3 * found["ask_seconds"] / sizes["test"]
                row += map(significant, spent)
                rows.append([*row, f"{found['out_of_scope_auroc']:.3f}"] if outside else row)
            heads += ["AUROC out of scope"] if outside else []
            parts += [f"**{INTENT_SETS[name]}, {inputs}**", grid(heads, rows, words=1)]
    counts = [f"{kinds['sizes']['classes']} in {INTENT_SETS[name]}" for name, kinds in data["data"].items()]
    text = paragraphs(
        "Classes come one at a time, alphabetically, and no sentence is kept or shown again. Of intents there are"
        f" {listed(counts)}. Embeddings are those of `wordllama`, with 256 numbers; the n-grams are words and pairs of"
        " words, hashed to"
        " 4,096 numbers. Our read-out compares embeddings with 6,000 word vectors. Settings are chosen on validation"
        " sentences, and the accuracy is that of n = 1 run on the test sentences. The joint logistic regression sees"
        " all classes at once: it is what there is to reach.",
        *parts,
    )
    return Told(text, [])


STREAM_LEARNERS = {
    "pfc": "ours",
    "hoeffding tree": "Hoeffding tree",
    "adaptive random forest": "adaptive random forest",
    "naive bayes": "naive Bayes",
    "class before": "the class before",
}


def tell_streams(data: Data) -> Told:
    """What `streams.py` found."""
    rows = []
    for name, found in data["data"].items():
        accuracies = [_percent(found[learner]["accuracy"] if learner in found else None) for learner in STREAM_LEARNERS]
        ours = found.get("pfc")
        spent = [significant(1e3 * ours[key]) if ours else "" for key in ("first_seconds", "last_seconds")]
        kept = [significant(ours[key] / 1e3) if ours and key in ours else "" for key in ("half_bytes", "last_bytes")]
        rows.append([name, f"{next(iter(found.values()))['examples']:,}", *accuracies, *spent, *kept])
    heads = ["stream", "examples", *STREAM_LEARNERS.values(), "ms at first", "ms at last", "kB halfway", "kB at last"]
    text = paragraphs(
        f"Each example is asked about first and shown then. Accuracy in percent over all but the first"
        f" {data['unjudged']}, n = 1 run; ours may have {data['max_parts']} parts. The last columns are milliseconds"
        " of one processor that ours takes for one example: the mean of"
        f" {data['unjudged']}, after the first {data['unjudged']} and at the end; and what it keeps"
        " of a stream of 5,000 examples, after half of them and after all.",
        grid(heads, rows, words=1),
    )
    return Told(text, [])


def tell_images(data: Data) -> Told:
    """What `images.py` found."""
    rows = []
    for count, found in data["data"].items():
        for model, name in (("pfc", "`PFCClassifier`"), ("mlp", "`MLPClassifier`")):
            own = found[model]
            times = [significant(statistics.median(own[kind])) for kind in ("fit_seconds", "predict_seconds")]
            rows.append([name, f"{int(count):,}", _percent(_mean(own["accuracy"])), *times, str(len(found["seeds"]))])
    small = data["data"]["10000"]
    text = paragraphs(
        "Pixels from 0 to 1 and default settings; the perceptron stops early, as ours does. Accuracy on the 10,000 test"
        " images in percent, the mean over n seeds; seconds are those of one processor, medians over them.",
        grid(["model", "rows", "accuracy", "s to fit", "s to predict", "n"], rows, words=1),
        f"With 10,000 rows ours takes {significant(small['fit_times_as_long'])} times as long to fit as the perceptron,"
        f" and {significant(small['predict_times_as_long'])} times as long to predict; we want at most 10, and at least"
        " 96 %.",
    )
    return Told(text, [])


def tell_estimators(data: Data) -> Told:
    """What `estimators.py` found."""
    rows = []
    for name, found in data["data"].items():
        low, high = found["interval"]
        scores = [_percent(found[kind]) for kind in ("pfc", "mlp")]
        rows.append([name, *scores, f"{found['difference']:+.2f} ({low:+.2f} to {high:+.2f})"])
    staged = data["class_by_class"]
    text = paragraphs(
        f"The mean accuracy in percent over n = {data['folds'] * data['repeats']} splits: {data['folds']} folds,"
        f" {data['repeats']} times. Size and penalty of the perceptron are chosen in each split; the classifier has its"
        " default settings. Both stand behind the same scaler. The interval"
        " allows for splits that share examples (Nadeau and Bengio, 2003).",
        grid(
            ["data", "`PFCClassifier`", "tuned `MLPClassifier`", "difference, 95 % interval"], rows, words=1, remarks=1
        ),
        f"Shown the digits one class after another by `partial_fit`, the classifier knows {staged['pfc']:.1f} % of the"
        f" test digits at the end, and the perceptron, which is shown each class 20 times, {staged['mlp']:.1f} %.",
    )
    return Told(text, [])


FORGETTERS = {
    "ours": "`ContinualPFC`",
    "sisa": "SISA",
    "perceptron": "one perceptron, trained anew",
}
FORGETTING_SETS = {"mnist": "MNIST", "clinc150": "CLINC150"}
CHEAP = 20
"""How many times cheaper than training anew we want forgetting to be."""


def tell_forgetting(data: Data) -> Told:
    """What `forgetting.py` found."""
    parts, cheaper = [], {}
    heads = ["learner", "s to forget", "to answer", "s to train anew", "times cheaper", "shown again, %"]
    heads += ["test before, %", "after", "attack before", "after", "bits of never seen", "n"]
    for name, found in data["data"].items():
        rows = []
        for key, runs in ((key, found["learners"][key]) for key in FORGETTERS if key in found["learners"]):
            kinds = [[run[f"{kind}_seconds"] for run in runs] for kind in ("forget", "retrain")]
            (forget, answer), (anew, _) = (
                [statistics.median(some) for some in zip(*kind, strict=True)] for kind in kinds
            )
            ratio = statistics.median(sum(anew) / sum(forget) for forget, anew in zip(*kinds, strict=True))
            row = [FORGETTERS[key], *map(significant, (forget, answer, anew)), times(ratio)]
            row.append(f"{100 * statistics.mean(run['share_again'] for run in runs):.0f}")
            row += [_percent(statistics.mean(run[when]["accuracy"] for run in runs)) for when in ("before", "after")]
            row += [_attack([run[when] for run in runs]) for when in ("before", "after")]
            same = sum(run["same_bits"] for run in runs)
            rows.append([*row, "yes" if same == len(runs) else f"{same} of {len(runs)}", str(len(runs))])
            if key == "ours":
                cheaper[FORGETTING_SETS[name]] = ratio
        ours = found["learners"]["ours"]
        least = statistics.median(run["alone_seconds"] / sum(run["forget_seconds"]) for run in ours)
        call = statistics.median(run["retrain_seconds"][0] / run["forget_seconds"][0] for run in ours)
        parts += [
            f"**{FORGETTING_SETS[name]}: {found['rows']:,} rows in {found['batches']:,} batches,"
            f" {ours[0]['forgotten_rows']:,} rows to forget**",
            grid(heads, rows, words=1),
            sentences(
                f"Without the first answer ours forgets {times(call)} times cheaper than it trains anew.",
                "Making the parts of each batch by itself, without putting them together after each, takes"
                f" {times(least)} times as long as forgetting with the answer: nobody can train ours anew sooner.",
                _telling(ours),
            ),
        ]
    missed = [name for name, ratio in cheaper.items() if ratio < CHEAP]
    text = paragraphs(
        f"SISA has {data['shards']} shards of {data['slices']} slices. Seconds are those of one processor core, as"
        " medians over n seeds; the first answer after forgetting comes by itself, because ours gets its parts ready"
        " then, and counts in how many times cheaper forgetting is. Accuracies are means. What is shown again is a"
        " share of the rows that training had shown, each as often as it was. The attack is the chance that a forgotten"
        " row has a higher score for its class than a row that nobody has seen, with its standard error; 0.5 is"
        " guessing.",
        *parts,
        sentences(
            f"Forgetting with ours is {listed([f'{times(r)} times cheaper on {name}' for name, r in cheaper.items()])}"
            f" than training it anew, with the first answer; we want at least {CHEAP}.",
            f"That is missed on {listed(missed)}." if missed else "",
        ),
    )
    return Told(text, [])


def _telling(runs: Sequence[Data]) -> str:
    """Whether the attack on ours says anything: by two standard errors over all seeds."""
    before, after = (_pooled([run[when] for run in runs]) for when in ("before", "after"))
    if before[0] - 0.5 < 2 * before[1]:
        return "The attack does not beat guessing before either, so here it proves nothing."
    if after[0] - 0.5 < 2 * after[1]:
        return "The attack beats guessing before, and no longer does after."
    if not all(run["same_bits"] for run in runs):
        return "The attack beats guessing before, and still does after."
    return (
        "The attack beats guessing before, and less so after. What is left cannot come from having seen the rows, as"
        " the model is that which never saw them, to the bit: the rows that nobody has seen are harder by themselves."
    )


def _pooled(found: Sequence[Data]) -> tuple[float, float]:
    """The mean of attacks and its standard error."""
    error = math.sqrt(sum(one["standard_error"] ** 2 for one in found)) / len(found)
    return statistics.mean(one["auroc"] for one in found), error


def _attack(found: Sequence[Data]) -> str:
    mean, error = _pooled(found)
    return f"{mean:.3f} ± {error:.3f}"


def _mean(scores: Sequence[float] | None) -> float | None:
    return None if scores is None else statistics.mean(scores)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
