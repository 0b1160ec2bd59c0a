import doctest
import importlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)  # as for any script
    return importlib.import_module("page")


@pytest.fixture
def results(tmp_path):
    return shutil.copytree(BENCHMARKS / "results", tmp_path / "results")


@pytest.fixture
def run(page, results, tmp_path):
    def run(*options):
        return page.main(["--results", str(results), "--docs", str(tmp_path / "docs"), *options])

    return run


@pytest.fixture
def read(run, tmp_path):
    def read():
        assert run() == 0
        return (tmp_path / "docs" / "speed.md").read_text("utf-8")

    return read


def change(path, edit):
    data = json.loads(path.read_text("utf-8"))
    edit(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def cells(text):
    """The rows of all tables."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


def section(text, title):
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_page_and_its_figures_are_what_the_files_say(page, capsys):
    assert page.main(["--check"]) == 0, capsys.readouterr().err


def test_the_script_runs_from_anywhere(tmp_path):
    command = [sys.executable, BENCHMARKS / "page.py", "--docs", tmp_path / "docs"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "docs" / "speed.md").read_bytes() == (ROOT / "docs" / "speed.md").read_bytes()


def test_the_same_files_give_the_same_bytes(run, capsys):
    assert run() == 0
    capsys.readouterr()
    assert run() == 0
    assert capsys.readouterr().out == ""
    assert run("--check") == 0


def test_a_changed_number_fails_the_check_in_one_line_and_writes_nothing(run, results, tmp_path, capsys):
    assert run() == 0
    before = (tmp_path / "docs" / "speed.md").read_bytes()
    capsys.readouterr()
    change(results / "separation.json", lambda data: data["runs"][0].update(seconds=7.0))
    assert run("--check") == 1
    told = capsys.readouterr().err
    assert told == f"not what the files in {results} say: speed.md; run python benchmarks/page.py\n"
    assert (tmp_path / "docs" / "speed.md").read_bytes() == before


def test_a_number_of_a_figure_fails_the_check(run, results, capsys):
    assert run() == 0
    change(results / "gpu.json", lambda data: data["shapes"][0]["all_seconds"].update(textbook=[0.5]))
    assert run("--check") == 1
    assert "figures/speed/gpu.svg" in capsys.readouterr().err


def test_a_figure_that_is_no_longer_drawn_is_removed(run, tmp_path):
    assert run() == 0
    stale = tmp_path / "docs" / "figures" / "speed" / "old.svg"
    stale.write_text("<svg/>")
    assert run("--check") == 1
    assert run() == 0
    assert not stale.exists()


def test_a_missing_file_is_named_as_not_measured(read, results, tmp_path, page):
    for path in results.iterdir():
        path.unlink()
    text = read()
    for each in page.SECTIONS:
        told = section(text, each.title)
        assert f"Not measured yet: there is no `{each.file}`. Measure it: `{each.command}`." in told
        assert told.strip().splitlines()[0].endswith("?")
    assert not cells(text)
    assert not list(tmp_path.rglob("*.svg"))


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("{", r"must hold JSON \(.*\); delete it"),
        ("[]", "must hold a JSON object, got a list; delete it"),
        ("{}", r"must hold what its benchmark writes, got KeyError: .*; measure it again: python benchmarks/gpu\.py"),
        ('{"shapes": []}', "must hold what its benchmark writes, got "),
    ],
)
def test_a_corrupt_file_is_named_in_one_line(run, results, tmp_path, capsys, content, wanted):
    (results / "gpu.json").write_text(content)
    for options in ((), ("--check",)):
        assert run(*options) == 1
        told = capsys.readouterr().err
        assert told.startswith(f"{results / 'gpu.json'} must hold ") and told.count("\n") == 1
        assert re.search(wanted, told)
    assert not (tmp_path / "docs").exists()


def test_every_result_file_has_a_section(page):
    files = {path.name for path in (BENCHMARKS / "results").glob("*.json")}
    assert files <= {each.file for _, sections in page.PAGES.values() for each in sections}


def test_every_section_names_its_question_its_hardware_and_its_versions(read, results, page):
    text = read()
    for each in page.SECTIONS:
        if (results / each.file).exists():
            told, data = section(text, each.title), json.loads((results / each.file).read_text("utf-8"))
            assert data.get("question", "?") in told
            assert (data["hardware"]["gpu"] or data["hardware"]["cpu"]) in told
            assert f"torch {data['versions']['torch']}" in told
            assert f"`{each.command}`" in told


def test_the_medians_in_the_files_are_those_of_the_times():
    def look(data):
        for value in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
            yield from look(value)
        if isinstance(data, dict) and isinstance(data.get("median_seconds"), float):
            yield data["median_seconds"], data.get("all_seconds") or data["seconds"]
        elif isinstance(data, dict) and "all_seconds" in data:
            yield from ((median, data["all_seconds"][form]) for form, median in data["median_seconds"].items())

    for path in (BENCHMARKS / "results").glob("*.json"):
        for median, seconds in look(json.loads(path.read_text("utf-8"))):
            assert median == pytest.approx(statistics.median(seconds)), path


def test_every_time_of_the_gpu_benchmark_appears(read, results):
    data, rows = json.loads((results / "gpu.json").read_text("utf-8")), cells(read())
    for shape in data["shapes"]:
        place = [f"{shape['features']:,}", f"{shape['num_basis']:,}"]
        (row,) = [row for row in rows if row[:2] == place and len(row) == 2 + len(shape["median_seconds"])]
        shown = [float(cell.replace(",", "")) for cell in row[2:]]
        assert shown == pytest.approx([1e3 * seconds for seconds in shape["median_seconds"].values()], rel=0.006)
    for stack in data["stacks"]:
        (row,) = [row for row in rows if row[:2] == [stack["form"], str(stack["models"])]]
        assert float(row[2]) == pytest.approx(1e3 * stack["median_seconds"], rel=0.006)


def test_the_ratios_of_the_gpu_benchmark_are_those_that_it_computed(read, results):
    means = json.loads((results / "gpu.json").read_text("utf-8"))["geometric_mean_times_faster"]
    rows = {row[0]: row[1:] for row in cells(section(read(), "A training step on a GPU"))}
    names = {"textbook": "eager textbook", "textbook_captured": "captured textbook", "mlp": "eager MLP"}
    for k, ours in enumerate(("unrolled", "implicit", "fast")):
        for other, words in names.items():
            assert float(rows[words][k].split()[0]) == pytest.approx(means[f"{ours} than {other}"], rel=0.05)


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ((2.0, 4.0), "is 2.0 to 4.0 times as fast as a captured MLP of the same width."),
        ((0.5, 0.25), "is slower than a captured MLP of the same width: it takes 2.0 to 4.0 times as long."),
        (
            (0.25, 10.0),
            "is up to 10.0 times as fast as a captured MLP of the same width, but slower at 784 × 300: there it takes"
            " up to 4.0 times as long.",
        ),
    ],
)
def test_a_sentence_turns_when_the_numbers_do(read, results, times, wanted):
    def edit(data):
        first, *others = (shape["median_seconds"] for shape in data["shapes"])
        for medians, ratio in ((first, times[0]), *((other, times[1]) for other in others)):
            medians["mlp_captured"] = ratio * medians["fast"]

    change(results / "gpu.json", edit)
    assert f"The fast form {wanted}" in read()


def test_ways_to_the_gradient_have_a_time_and_a_size(read, results):
    seconds = {"textbook": 0.01, "unrolled-40": 0.002, "truncated-20": 0.0015, "implicit-40": 0.001}
    sizes = {"textbook": 600e6, "unrolled-40": 60e6, "truncated-20": 20e6, "implicit-40": 5e6}
    shape = {"features": 3072, "num_basis": 300, "median_seconds": seconds, "peak_bytes": sizes}
    machine = {key: json.loads((results / "gpu.json").read_text("utf-8"))[key] for key in ("versions", "hardware")}
    made = {"batch": 200, "iterations": 100, "rounds": 15, "shapes": [shape], **machine}
    (results / "gradients.json").write_text(json.dumps(made))
    told = section(read(), "Ways to the gradient on a GPU")
    assert ["textbook", "10.0", "600"] in cells(told)
    assert ["all of 40 steps", "2.00", "60.0"] in cells(told)
    assert ["the last 20 of 100 steps", "1.50", "20.0"] in cells(told)
    assert "implicit after 40 steps needs the least memory, and all of 40 steps the most." in told
    assert "The textbook form needs 10.0 times as much as that." in told


def rnn(forms, best):
    medians = dict(forms)
    return {
        "question": "How long does a step of a made RNN take?",
        "device": "cpu",
        "batch": 100,
        "slices": 28,
        "num_basis": 512,
        "iterations": 10,
        "rounds": 15,
        "median_seconds": medians,
        "all_seconds": {form: [seconds] for form, seconds in medians.items()},
        "best_form": best,
        "time_relative_to_best_form": {form: seconds / medians[best] for form, seconds in medians.items()},
        "versions": {"torchpfc": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.7"},
        "hardware": {"cpu": "a made CPU", "cores": 2, "threads": 2, "gpu": None},
    }


def test_a_recurrent_benchmark_is_on_the_page_once_it_was_measured(read, results):
    seconds = {
        "textbook": 2.0,
        "factorized": 0.5,
        "factorized_no_bptt": 0.4,
        "vanilla": 0.02,
        "lstm": 0.05,
        "gru": 0.04,
    }
    (results / "rnn.json").write_text(json.dumps(rnn(seconds, "factorized")))
    told = section(read(), "A recurrent network on a CPU")
    assert "Not measured" not in told
    assert ["textbook", "2,000", "4.0"] in cells(told)
    assert ["LSTM", "50.0", "0.10"] in cells(told)
    assert "The factorized RNN is 4.0 times as fast as the textbook form." in told
    assert "The factorized RNN is slower than the LSTM: it takes 10.0 times as long." in told
    assert "Measured on a made CPU, 2 cores, 2 threads with torchpfc 0.1.0" in told


def test_captured_networks_are_compared_with_captured_ones(read, results):
    seconds = {"textbook": 2.0, "factorized": 0.5, "lstm": 0.05}
    seconds |= {"textbook_captured": 0.4, "factorized_captured": 0.1, "lstm_captured": 0.2}
    (results / "rnn_gpu.json").write_text(json.dumps(rnn(seconds, "factorized_captured")))
    told = section(read(), "A recurrent network on a GPU")
    assert ["eager LSTM", "50.0", "0.50"] in cells(told)
    assert "The captured factorized RNN is 20.0 times as fast as the eager textbook form." in told
    assert "The captured factorized RNN is 4.0 times as fast as the captured textbook form." in told
    assert "The captured factorized RNN is 2.0 times as fast as the captured LSTM." in told


def test_a_method_that_never_arrived_has_no_time_and_no_ratio(read, results):
    def edit(data):
        for row in data["results"]:
            for found in row["summary"].values():
                found["median_seconds"] = {"torchpfc": 1.0, "quick": 3.0, "lost": None}
            for made in row["runs"]:
                made["seconds"] = {"torchpfc": 1.0, "quick": 3.0, "lost": None}

    change(results / "nmf.json", edit)
    told = section(read(), "Factorizing a matrix")
    assert all(row[5:] == ["1.00", "3.00", "not reached", "3.0"] for row in cells(told)[2:])
    assert "torchpfc is 3.0 times as fast as quick." in told and "Never reached by lost." in told


def contender(seconds, **others):
    return {"iterations": 100, "timed_iterations": 100, "seconds": [seconds], "median_seconds": seconds, **others}


def codes(**contenders):
    return lambda data: data.update(
        problems=[{"rows": 2000, "features": 784, "num_basis": 300, "contenders": {**contenders}}]
    )


def test_what_was_not_timed_in_full_says_so(read, results):
    methods = {
        "torchpfc nnls": contender(0.5),
        "torchpfc slow": contender(4.0, timed_iterations=7),
        "exact": contender(2.0, iterations=None, timed_iterations=None, note="exact; from 200 rows"),
        "broken": {"note": "failed: no reason."},
    }
    for file in ("nnls.json", "nnls_gpu.json"):
        change(results / file, codes(**methods))
    text = read()
    told = section(text, "Finding codes on a CPU")
    assert ["torchpfc nnls", "", "1", "0.500", "1.0", ""] in cells(told)
    assert ["torchpfc slow", "100", "1", "4.00", "8.0", "from 7 iterations"] in cells(told)
    assert ["exact", "", "1", "2.00", "4.0", "exact; from 200 rows"] in cells(told)
    assert ["broken", "", "", "", "", "failed"] in cells(told)
    assert "With 300 parts torchpfc nnls is 4.0 times as fast as the best alternative, exact." in told
    assert "Slower than it: torchpfc slow." in told and "broken has no time: failed: no reason." in told
    told = section(text, "Finding codes on a GPU")
    assert ["2,000", "784", "300", "500", "4,000", "2,000"] in cells(told)
    assert "torchpfc nnls is 4.0 times as fast as exact." in told
    assert "the time of the others added: torchpfc slow." in told and "No alternative" not in told


def test_where_nobody_else_was_timed_the_page_says_that_nothing_is_compared(read, results):
    missing = {"note": "not run: torchnmf is not installed"}
    change(results / "nnls_gpu.json", codes(**{"torchpfc ADMM": contender(0.5), "torchnmf": missing}))
    told = section(read(), "Finding codes on a GPU")
    assert "No alternative was measured" in told and "`nnls` itself was not measured either" in told
    assert "torchnmf has no time: not run: torchnmf is not installed." in told


def test_figures_can_be_read_by_those_who_cannot_see_them(run, tmp_path):
    assert run() == 0
    drawn = sorted((tmp_path / "docs" / "figures" / "speed").glob("*.svg"))
    assert [path.name for path in drawn] == ["gpu.svg", "nmf.svg"]
    assert all(ET.parse(path).getroot().get("aria-label") for path in drawn)
    assert all("prefers-color-scheme: dark" in path.read_text("utf-8") for path in drawn)


def test_the_examples_of_the_words_hold(page):
    assert doctest.testmod(importlib.import_module("_page_words")).failed == 0


MACHINE = {"hardware": {"gpu": None, "cpu": "CPU", "cores": 2, "threads": 2}, "versions": {"torch": "2.13"}}


def read_accuracy(run, results, tmp_path, file, data):
    (results / file).write_text(json.dumps({"question": "How good?", **data, **MACHINE}))
    assert run() == 0
    return (tmp_path / "docs" / "accuracy.md").read_text("utf-8")


def test_tables_are_ranked_without_the_scaled_model_and_misses_are_named(run, results, tmp_path):
    models = ("pfc", "pfc scaled", "linear", "knn", "mlp", "boosting", "ebm")

    def found(*means):
        scores = {model: [mean - 1, mean, mean + 1] for model, mean in zip(models, means, strict=False)}
        return {"rows": 100, "features": 3, "classes": 2, "scores": scores}

    sets = {"good": found(90, 90.5, 80, 70, 60, 50, 40), "bad": found(50, 60, 80, 70, 60, 55, 40)}
    sets["without the last"] = found(90, 90, 80, 70, 60, 50)
    text = read_accuracy(run, results, tmp_path, "tables.json", {"data": sets, "folds": 3, "most_rows": 100})
    told = section(text, "Tables as they come")
    assert cells(told)[-1] == ["mean rank", "", "2.33", "", "1.67", "2.67", "3.67", "4.67", "6.00"]
    assert "Ours has a mean rank of 2.33 on all tables, not behind that of the MLP (3.67)." in told
    assert "a mean rank of 3.00 on the 2 that all models were fitted to, not behind that of the MLP (3.50)." in told
    assert "That is missed on bad." in told
    assert cells(told)[-2][:3] == ["without the last", "100 x 3, 2 classes", "90.00"] and cells(told)[-2][-1] == ""


def test_intents_have_what_each_learner_keeps_and_the_time_it_takes(run, results, tmp_path):
    learner = {"test": 91.0, "valid": 92.0, "bytes": 2e6, "teach_seconds": 3.0, "ask_seconds": 4.0}
    sets = {"clinc150": {"embeddings": {"lda": {**learner, "out_of_scope_auroc": 0.9}}, "sizes": {}}}
    sets["clinc150"]["sizes"] = {"classes": 150, "train": 5, "test": 1000}
    text = read_accuracy(run, results, tmp_path, "intents.json", {"data": sets})
    row = cells(section(text, "Intents one at a time"))[-1]
    assert row == ["streaming LDA", "91.00", "92.00", "2.00", "3.00", "4.00", "0.900"]


def test_streams_have_the_time_of_an_example_at_first_and_at_last(run, results, tmp_path):
    ours = {"accuracy": 90.0, "examples": 2000, "first_seconds": 0.01, "last_seconds": 0.02}
    ours |= {"half_bytes": 1e5, "last_bytes": 2e5}
    stream = {"data": {"bananas": {"pfc": ours}}, "max_parts": 200, "unjudged": 100}
    text = read_accuracy(run, results, tmp_path, "streams.json", stream)
    assert cells(section(text, "Streams of single examples"))[-1] == [
        "bananas",
        "2,000",
        "90.00",
        *[""] * 4,
        "10.0",
        "20.0",
        "100",
        "200",
    ]


def test_images_have_the_medians_of_their_times(run, results, tmp_path):
    ours = {"accuracy": [96.0, 97.0], "fit_seconds": [30.0, 50.0], "predict_seconds": [0.4, 0.6]}
    other = {"accuracy": [95.0, 95.0], "fit_seconds": [5.0, 5.0], "predict_seconds": [0.05, 0.05]}
    found = {"pfc": ours, "mlp": other, "seeds": [0, 1], "fit_times_as_long": 8.0, "predict_times_as_long": 10.0}
    told = section(read_accuracy(run, results, tmp_path, "images.json", {"data": {"10000": found}}), "Images")
    assert cells(told)[-2] == ["`PFCClassifier`", "10,000", "96.50", "40.0", "0.500", "2"]
    assert "8.00 times as long to fit as the perceptron, and 10.0 times as long to predict" in told
