"""What the page says about training steps. Each comparison is made from the numbers, so that it turns when they do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from _page_words import (
    CAPTURED,
    Data,
    Gain,
    Told,
    by_count,
    compare,
    grid,
    listed,
    mean_and_span,
    name,
    paragraphs,
    sentences,
    significant,
    span,
    times,
)

OURS = ("unrolled", "implicit", "fast")
TEXTBOOK, MLP = f"textbook{CAPTURED}", f"mlp{CAPTURED}"


def tell_gpu(data: Data) -> Told:
    """What `gpu.py` found."""
    shapes, steps = data["shapes"], data["iterations"]
    forms = list(shapes[0]["median_seconds"])
    others = [form for form in forms if form not in OURS]
    rows = [
        [f"{s['features']:,}", f"{s['num_basis']:,}", *(significant(1e3 * s["median_seconds"][form]) for form in forms)]
        for s in shapes
    ]
    ratios = {(our, other): _over_shapes(shapes, our, other) for our in OURS for other in others}
    means = [[name(other, forms), *(mean_and_span(ratios[our, other].values()) for our in OURS)] for other in others]
    captured = _over_shapes(shapes, TEXTBOOK, "textbook")
    text = paragraphs(
        f"Milliseconds a step, with batches of {data['batch']}: medians of n = {data['rounds']} rounds, in which the"
        f" forms take turns. Steps of the solver: {by_count(steps)}. For the gradient:"
        f" {by_count(data['implicit_iterations'])}. Captured means that a step is one CUDA graph, and our forms always"
        " are. The fast form is what the preset of that name does with weights of either sign. TF32 is"
        f" {'' if data['tf32'] else 'not '}allowed for all forms.",
        grid(["features", "parts", *(name(form, forms) for form in forms)], rows, words=0),
        "How many times as fast our forms are: the geometric mean over the shapes, and from the least to the most.",
        grid(["alternative", *map(name, OURS)], means, words=1),
        sentences(
            *(compare(f"The {name(our)} form", "the captured textbook form", ratios[our, TEXTBOOK]) for our in OURS),
            _fewer_steps(steps),
            compare("Captured, the textbook form", "eager", captured),
            "That much of the gain over the eager one is not ours.",
        ),
        sentences(
            compare("The fast form", "a captured MLP of the same width", ratios["fast", MLP]),
            compare("It", "an eager one", ratios["fast", "mlp"]),
        ),
        _tell_stacks(data["stacks"], shapes[0]) if data["stacks"] else "",
    )
    shown = [*((our, TEXTBOOK) for our in OURS), ("fast", "textbook"), ("fast", MLP)]
    return Told(
        text, [Gain(_step(our, steps), name(other, forms), [*ratios[our, other].values()]) for our, other in shown]
    )


def _over_shapes(shapes: Sequence[Data], our: str, other: str) -> dict[str, float]:
    return {
        f"{s['features']:,} × {s['num_basis']:,}": s["median_seconds"][other] / s["median_seconds"][our] for s in shapes
    }


def _step(form: str, steps: dict[str, int]) -> str:
    fewer = f" ({steps[form]} steps, not {steps['textbook']})" if steps[form] < steps["textbook"] else ""
    return f"training step, {name(form)} form{fewer}"


def _fewer_steps(steps: dict[str, int]) -> str:
    fewer = [name(form) for form in steps if steps[form] < steps["textbook"]]
    return f"Fewer steps than the textbook form, so less work: {listed(fewer)}." if fewer else ""


def _tell_stacks(stacks: Sequence[Data], shape: Data) -> str:
    alone = {s["form"]: s["median_seconds"] for s in stacks if s["models"] == 1}
    gain = {(s["form"], s["models"]): s["models"] * alone[s["form"]] / s["median_seconds"] for s in stacks}
    rows = [
        [
            name(s["form"]),
            str(s["models"]),
            significant(1e3 * s["median_seconds"]),
            f"{s['model_steps_per_second']:,.0f}",
            times(gain[s["form"], s["models"]]),
        ]
        for s in stacks
    ]
    most = max(size for _, size in gain)
    largest = {form: {"": gain[form, most]} for form in alone if (form, most) in gain}
    return paragraphs(
        "### Several models at once",
        f"`stack_models` trains several models as one, here with {shape['features']:,} features and"
        f" {shape['num_basis']:,} parts. The alternative is the same models one after the other.",
        grid(["form", "models", "ms a step", "steps of a model a second", "times as fast"], rows, words=1),
        sentences(
            *(compare(f"A stack of {most} of the {name(form)} form", "that", found) for form, found in largest.items()),
            f"A stack that took no longer than one model would be {most} times as fast.",
        ),
    )


def tell_gradients(data: Data) -> Told:
    """What `gradients.py` found."""
    shapes = data["shapes"]
    forms = list(shapes[0]["median_seconds"])
    sizes = [f"{s['features']:,} × {s['num_basis']:,}" for s in shapes]
    words = {form: _gradient(form, data["iterations"]) for form in forms}
    rows = [
        [
            words[form],
            *(significant(1e3 * s["median_seconds"][form]) for s in shapes),
            *(significant(s["peak_bytes"][form] / 1e6) for s in shapes),
        ]
        for form in forms
    ]
    ours = [form for form in forms if form != "textbook"]
    lightest, heaviest = (pick(ours, key=shapes[0]["peak_bytes"].__getitem__) for pick in (min, max))
    less = {
        size: s["peak_bytes"]["textbook"] / s["peak_bytes"][heaviest] for size, s in zip(sizes, shapes, strict=True)
    }
    text = paragraphs(
        f"Batches of {data['batch']}: medians of n = {data['rounds']} rounds, in which the forms take turns, each step"
        f" as one CUDA graph. The textbook form takes {data['iterations']} steps of the solver. Memory is what a step"
        " needs at most beside the examples, the weights, their gradients and the state of the optimizer.",
        grid(["form", *(f"ms, {size}" for size in sizes), *(f"MB, {size}" for size in sizes)], rows, words=1),
        sentences(
            f"Of our forms, {words[lightest]} needs the least memory, and {words[heaviest]} the most.",
            f"The textbook form needs {span(less.values())} times as much as that.",
        ),
    )
    return Told(text, [])


def _gradient(form: str, total: int) -> str:
    """A way to the gradient in words: that of all steps, of the last of a total, or of the optimum."""
    kind, _, steps = form.partition("-")
    words = {
        "unrolled": f"all of {steps} steps",
        "truncated": f"the last {steps} of {total} steps",
        "implicit": f"implicit after {steps} steps",
    }
    return words.get(kind, name(form))


def tell_train_step(data: Data) -> Told:
    """What `train_step.py` found."""
    medians, steps = data["median_seconds"], data["iterations"]
    gain = {form: medians["textbook"] / seconds for form, seconds in medians.items()}
    rows = [[name(form), str(steps[form]), significant(1e3 * medians[form]), times(gain[form])] for form in medians]
    ours = [form for form in medians if form != "textbook"]
    saved = data["implicit_saved_bytes"]
    text = paragraphs(
        f"{data['features']} features, {data['num_basis']} parts, batches of {data['batch']}: medians of"
        f" n = {data['rounds']} rounds, in which the forms take turns. The warm form starts from the codes that the"
        " step before has found for the same batch.",
        grid(["form", "steps of the solver", "ms a step", "times as fast as textbook"], rows, words=1),
        sentences(
            *(compare(f"The {name(form)} form", "the textbook form", {"": gain[form]}) for form in ours),
            _fewer_steps(steps),
            "" if "mlp" in medians else "An MLP was not measured on a CPU.",
            f"For the backward pass the implicit form keeps {span(size / 1e6 for size in saved.values())} MB, with"
            f" {listed([*saved])} steps.",
        ),
    )
    return Told(text, [Gain(_step(form, steps), "textbook", [gain[form]]) for form in ours])


def tell_rnn(data: Data) -> Told:
    """What `rnn.py` found."""
    medians, best = data["median_seconds"], data["best_form"]
    ratios = {form: seconds / medians[best] for form, seconds in medians.items()}
    rows = [[name(form, medians), significant(1e3 * medians[form]), times(ratios[form])] for form in medians]
    ending = CAPTURED if best.endswith(CAPTURED) else ""
    alike = (f"{kind}{ending}" for kind in ("textbook", "lstm", "gru", "vanilla"))
    others = [form for form in dict.fromkeys(("textbook", *alike)) if form in medians]
    text = paragraphs(
        f"Sequences of {data['slices']} slices, {data['num_basis']} parts or units, {data['iterations']} steps of the"
        f" solver a slice, batches of {data['batch']}: medians of n = {data['rounds']} rounds, in which the forms take"
        " turns. The LSTM, the GRU and the vanilla RNN learn from the prediction alone; the factorized RNN also"
        " reconstructs states and inputs.",
        grid(["form", "ms a step", f"its time over that of the {name(best, medians)}"], rows, words=1),
        sentences(*(compare(f"The {name(best)}", _article(other, medians), {"": ratios[other]}) for other in others)),
    )
    return Told(text, [Gain(f"training step, {name(best)}", name(other, medians), [ratios[other]]) for other in others])


def _article(other: str, forms: Iterable[str]) -> str:
    return f"the {name(other, forms)}{' form' if other.startswith('textbook') else ''}"


def tell_block_cost(data: Data) -> Told:
    """What `block_cost.py` found."""
    shapes = data["shapes"]
    kinds = ("prediction", "training step")
    rows, defaults = [], []
    for shape in shapes:
        medians = {
            (form, kind): found[kind]["median_seconds"]
            for form, found in shape["forms"].items()
            for kind in kinds
            if kind in found
        }
        size = f"{shape['features']:,} features, {shape['num_basis']:,} parts"
        for form in shape["forms"]:
            cells = []
            for kind in kinds:
                seconds = medians.get((form, kind))
                over = "" if seconds is None else times(seconds / medians["MLP", kind])
                cells += ["" if seconds is None else significant(1e6 * seconds), over]
            rows.append([size, form, *cells])
        defaults.append(medians["defaults", "training step"] / medians["MLP", "training step"])
    heads = ["size", "form", *(head for kind in kinds for head in (f"{kind}, µs", "times the MLP's"))]
    text = paragraphs(
        f"Microseconds an example, in batches of {data['batch']} and on one thread; medians of n = {data['rounds']}"
        " rounds. What is new has no code to begin with, so warm codes are for training alone.",
        grid(heads, rows, words=2),
        f"With its defaults a block takes {span(defaults)} times as long to train as the MLP.",
    )
    return Told(text, [])
