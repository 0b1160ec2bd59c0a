"""What the page says about finding codes, factorizing and separating; each comparison is made from the numbers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from _page_words import (
    Data,
    Gain,
    Told,
    compare,
    grid,
    listed,
    name,
    paragraphs,
    sentences,
    significant,
    times,
)

OURS = "torchpfc"
NNLS = "torchpfc nnls"


def tell_nnls(data: Data) -> Told:
    """What `nnls.py` found, in a table for each problem."""
    parts, found, gains = [], [], []
    for problem in data["problems"]:
        medians = _medians(problem)
        our = min((method for method in medians if OURS in method), key=medians.__getitem__)
        heads = ["method", "iterations", "n", "seconds", f"its time over that of {our}", "remark"]
        rows = [_contender(method, row, medians[our]) for method, row in problem["contenders"].items()]
        parts += [f"{_size(problem)}:", grid(heads, rows, words=1, remarks=1)]
        others = [method for method in medians if OURS not in method]
        if others:
            best = min(others, key=medians.__getitem__)
            ratio = _over(medians, our, best)
            found.append(
                compare(f"With {problem['num_basis']:,} parts {our}", f"the best alternative, {best}", {"": ratio})
            )
            slow = [method for method in medians if OURS in method and medians[method] > medians[best]]
            found += [f"Slower than it: {listed(slow)}."] if slow else []
            gains.append(
                Gain(f"codes of {problem['rows']:,} rows, {problem['num_basis']:,} parts, {our}", best, [ratio])
            )
    method = (
        f"{_tell_gap(data)} An exact method goes all the way, and was timed on some of the rows. What would take too"
        " long was timed at fewer iterations, and the time of the others was added; the remark says at how many."
    )
    return Told(paragraphs(method, *parts, sentences(*found), _tell_absent(data)), gains)


def tell_hard_nnls(data: Data) -> Told:
    """What `hard_nnls.py` found, in a table over the sizes, with the families that stand out."""
    problems = data["problems"]
    counts = list(problems[0]["seconds"])
    ratios = {(p["family"], _shape(p), rows): _time_ratio(p, rows) for p in problems for rows in counts}
    lines = []
    for shape in dict.fromkeys(map(_shape, problems)):
        cells = []
        for rows in counts:
            found = [ratio for (_, where, n), ratio in ratios.items() if (where, n) == (shape, rows)]
            cells += [times(statistics.median(found)), times(max(found))]
        lines.append([shape, *cells])
    heads = ["features x parts", *(f"{n} rows, {what}" for n in counts for what in ("median", "most"))]
    worst = max(problems, key=lambda p: float(p["excess_residual"]))
    share = min(p["converged"] for p in problems)
    single = max(p["float32"]["excess_of_converged"] for p in problems)
    warned = [p for p in problems if p["float32"]["converged"] < 1]
    families = len(dict.fromkeys(p["family"] for p in problems))
    text = paragraphs(
        f"{families} families of problems at {len(lines)} sizes, 1,000 rows each, in float64. Of these rows"
        f" {'all' if share == 1 else 'not all'} converged; no residual is further above that of SciPy than"
        f" {float(worst['excess_residual']):.0e} of the norm of x, and the KKT conditions, computed anew on unit"
        f" columns, are violated by {max(p['violation'] for p in problems):.0e} of it at most.",
        f"In float32, rows that are said to have converged are within {single:.0e}; "
        + (f"{len(warned)} of the problems end with a warning." if warned else "no problem ends with a warning."),
        "Our processor time over that of a loop over SciPy's `nnls`, both on one thread: below 1 ours is faster.",
        grid(heads, lines, words=1),
        _tell_slow(ratios, counts),
    )
    return Told(text, [])


def _tell_slow(ratios: Mapping[tuple[str, str, str], float], counts: Sequence[str]) -> str:
    wanted = dict(zip(counts, (4.0, 2.0), strict=True))
    slow = [
        f"{family} ({shape}, {rows} rows: {times(ratio)})"
        for (family, shape, rows), ratio in ratios.items()
        if ratio > wanted[rows]
    ]
    limits = listed([f"{limit:g} times SciPy's time at {rows} rows" for rows, limit in wanted.items()])
    return f"We want at most {limits}. " + (f"Missed by {listed(slow)}." if slow else "No family takes longer.")


def _shape(problem: Data) -> str:
    return f"{problem['features']} x {problem['num_basis']}"


def _time_ratio(problem: Data, rows: str) -> float:
    medians = {name: statistics.median(found) for name, found in problem["seconds"][rows].items()}
    return medians[OURS] / medians["SciPy"]


def tell_nnls_sizes(data: Data) -> Told:
    """What `nnls.py --table` found, with a row for each problem."""
    problems = data["problems"]
    methods = list(dict.fromkeys(method for problem in problems for method in _medians(problem)))
    rows = [
        [
            f"{p['rows']:,}",
            f"{p['features']:,}",
            f"{p['num_basis']:,}",
            *(_milliseconds(p, method) for method in methods),
        ]
        for p in problems
    ]
    first, *rest = sorted(methods, key=lambda method: OURS not in method)
    ratios = {
        other: {_size(p): _over(_medians(p), first, other) for p in problems if {first, other} <= _medians(p).keys()}
        for other in rest
    }
    others = [method for method in rest if OURS not in method]
    partly = [m for m in methods if any(_is_partly_timed(p["contenders"].get(m, {})) for p in problems)]
    counts = sorted({len(row["seconds"]) for p in problems for row in p["contenders"].values() if "seconds" in row})
    text = paragraphs(
        f"Made problems of several sizes take the place of the images. {_tell_gap(data)} Milliseconds: medians of"
        f" n = {listed([*map(str, counts)])}.",
        grid(["rows", "features", "parts", *methods], rows, words=0),
        sentences(
            *(compare(first, other, ratios[other]) for other in rest),
            "" if others else "No alternative was measured: this says how long it takes, and not how that compares.",
            "" if NNLS in methods else "`nnls` itself was not measured either, only solvers that it can use.",
            f"Timed at fewer iterations for some sizes, and the time of the others added: {listed(partly)}."
            if partly
            else "",
            _tell_absent(data),
        ),
    )
    return Told(text, [Gain(f"codes, {first}", other, [*ratios[other].values()]) for other in others])


def _tell_gap(data: Data) -> str:
    gap, source = 100 * data["gap"], data["data"].removesuffix(".")
    return f"Every method runs until its objective is within {gap:g} % of the optimum. Data: {source}."


def _tell_absent(data: Data) -> str:
    """The methods without a time, each with what the file says about it."""
    absent: dict[tuple[str, str], list[str]] = {}
    everywhere = len(data["problems"])
    for problem in data["problems"]:
        for method, row in problem["contenders"].items():
            if "median_seconds" not in row:
                where = absent.setdefault((method, row["note"].removesuffix(".")), [])
                where.append(f"{problem['num_basis']:,}")
    return sentences(
        *(
            f"{method} has no time{'' if len(where) == everywhere else f' with {listed(where)} parts'}: {note}."
            for (method, note), where in absent.items()
        )
    )


def _contender(method: str, row: Data, ours: float) -> list[str]:
    if "median_seconds" not in row:
        return [method, "", "", "", "", row["note"].partition(":")[0]]
    iterations = row["iterations"]
    remarks = [row.get("note", ""), f"from {row['timed_iterations']:,} iterations" if _is_partly_timed(row) else ""]
    return [
        method,
        "" if iterations is None or method == NNLS else f"{iterations:,}",  # nnls has a tolerance instead
        str(len(row["seconds"])),
        significant(row["median_seconds"]),
        times(row["median_seconds"] / ours),
        "; ".join(filter(None, remarks)),
    ]


def _is_partly_timed(row: Data) -> bool:
    return "timed_iterations" in row and row["timed_iterations"] != row["iterations"]


def _medians(problem: Data) -> dict[str, float]:
    return {m: row["median_seconds"] for m, row in problem["contenders"].items() if "median_seconds" in row}


def _milliseconds(problem: Data, method: str) -> str:
    medians = _medians(problem)
    return significant(1e3 * medians[method]) if method in medians else ""


def _over(seconds: Mapping[str, float], our: str, other: str) -> float:
    return seconds[other] / seconds[our]


def _size(problem: Data) -> str:
    return f"{problem['rows']:,} rows, {problem['features']:,} features, {problem['num_basis']:,} parts"


def tell_nmf(data: Data) -> Told:
    """What `nmf.py` found."""
    results = [
        (row, target, row["summary"][target]["median_seconds"]) for row in data["results"] for target in data["slack"]
    ]
    methods = list(dict.fromkeys(method for _, _, seconds in results for method in seconds))
    rows, ratios, rivals = [], {}, []
    for row, target, seconds in results:
        within = f"{100 * data['slack'][target]:g} %"
        reached = [m for m in methods if m != OURS and seconds[m] is not None]
        best = min(reached, key=seconds.__getitem__) if reached and seconds[OURS] is not None else None
        gain = _over(seconds, OURS, best) if best else None
        if best and gain:
            ratios[f"{name(row['data'])}, {row['num_basis']} parts, within {within}"] = gain
            rivals.append(best)
        cells = ["not reached" if seconds[m] is None else significant(seconds[m]) for m in methods]
        matrix = [name(row["data"]), " × ".join(f"{n:,}" for n in row["shape"]), str(row["num_basis"])]
        rows.append([*matrix, within, str(row["starts"]), *cells, times(gain) if gain else ""])
    rival = rivals[0] if len(set(rivals)) == 1 else "the best alternative"
    least = min(ratios, key=ratios.__getitem__)
    never = [m for m in methods if all(seconds[m] is None for _, _, seconds in results)]
    single = [f"{name(row['data'])} with {row['num_basis']} parts" for row in data["results"] if row["starts"] == 1]
    text = paragraphs(
        "Seconds until the objective is within so many percent of what scikit-learn's coordinate descent reaches at its"
        " defaults: medians over n starts, the same for all. Who takes longer than scikit-learn does at its defaults"
        " has not reached it.",
        grid(["data", "size", "parts", "within", "n", *methods, f"times as fast as {rival}"], rows, words=1),
        sentences(
            compare("torchpfc", rival, ratios),
            f"The gain is least on {least}: {times(ratios[least])} times.",
            f"Never reached by {listed(never)}." if never else "",
            f"Only one start was measured on {listed(single)}." if single else "",
            *(f"Not run: {line}." for line in data["not_run"]),
        ),
    )
    return Told(text, [Gain("factorizing a matrix", rival, [*ratios.values()])])


def tell_separation(data: Data) -> Told:
    """What `separation.py` found."""
    heads = ["model", "rate in Hz", "minutes of stereo", "seconds", "CPU seconds", "times real time", "peak MB"]
    rows = [
        [
            name(run["model"]),
            f"{run['rate']:,}",
            f"{run['minutes']:g}",
            significant(run["seconds"]),
            significant(run["cpu_seconds"]),
            times(run["times_real_time"]),
            f"{run['peak_mb']:,.0f}",
        ]
        for run in data["runs"]
    ]
    found: dict[str, dict[str, float]] = {}
    for run in data["runs"]:
        found.setdefault(run["model"], {})[f"{run['rate']:,} Hz"] = run["seconds"]
    real_time = {f"{r['rate']:,} Hz": r["times_real_time"] for r in data["runs"] if r["model"] == "factorized"}
    ours = found.pop("factorized")
    ratios = {name(model): {rate: seconds[rate] / ours[rate] for rate in seconds} for model, seconds in found.items()}
    text = paragraphs(
        "`torchpfc separate` as a process of its own, from its start to its end, n = 1 for each row.",
        grid(heads, rows, words=1),
        sentences(
            compare("The factorized RNN", "the song plays", real_time),
            *(compare("It", other if other == "NMF" else f"the {other}", ratios[other]) for other in ratios),
            "All of these models are in this library. No other program that separates songs was measured.",
        ),
    )
    what = "separating a song, factorized RNN"
    gains = [Gain(what, other, [*ratios[other].values()]) for other in ratios]
    return Told(text, [Gain(what, "playing it", [*real_time.values()]), *gains])
