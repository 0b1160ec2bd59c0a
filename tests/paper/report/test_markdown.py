import re

import pytest

from tests.paper.report.made import EXPERIMENT, ROWS, TABLE, Made, compare, experiment, faster, result
from torchpfc.paper.registry import Row, Table
from torchpfc.paper.report.figures import draw_figures
from torchpfc.paper.report.markdown import CAPTION, fill_places, write_document


def link(run):
    return f"r/{run.key}.json"


def document(*results, before=None, of=(EXPERIMENT,), known_data=None):
    comparison = compare(*results, of=of)
    return write_document(before, comparison, draw_figures(comparison.sheets), known_data or {}, link)


def part(text, name):
    return re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)[1].strip()


def rows(text):
    """The cells of a table, without its head and its rule; small print in parentheses, and of links the words only."""
    text = text.replace("\u00a0", " ")
    text = re.sub(r"(<br>)?<small>(.*?)</small>", lambda small: f" ({small[2]})" if small[1] else small[2], text)
    lines = [re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", line) for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


RUNS = [
    *(result(value=96.5 + seed / 10, seed=seed) for seed in range(3)),
    *(result(faster(Made()), 97.0 + seed / 10, seed) for seed in range(2)),
    result(ROWS[1].config, 90.0),
    result(ROWS[3].config, 51.0),
]


def test_a_table_has_every_row_with_the_paper_s_number_ours_and_the_verdict():
    assert rows(part(document(*RUNS), "table T")) == [
        ["`A`", "MNIST, 300 parts", "96.83", "96.63", "96.60 ± 0.10 (n = 3, seeds 0, 1, 2)",
         "97.05 ± 0.07 (n = 2 of 3, seeds 0, 1)", "**missed**, −0.23; fast preset: met"],
        ["`B`", "MNIST, 2000 parts", "97.00", "96.80", "90.00 (n = 1 of 2, seed 0)", "", "**missed**, −7.00"],
        ["`C`", "CIFAR-10, 300 parts", "53.25", "52.25", "", "", "not run"],
        ["`D`", "CIFAR-10, 2000 parts", "", "", "51.00 (n = 1, seed 0)", "", ""],
    ]  # fmt: skip


def test_a_verdict_on_settings_of_ours_says_so():
    ours = Table("T", "ours", (ROWS[0], Row("A.ours", Made(num_basis=7), paper=96.83, slack=0.2, ours=True)))
    text = part(document(result(Made(num_basis=7), 97.0), of=[experiment(ours)]), "table T")
    assert [row[-1] for row in rows(text)] == ["not run", "met, +0.17; settings of ours"]


def test_a_seed_leads_to_its_file_and_shows_its_number():
    seeds = f'seeds [0](r/{RUNS[3].key}.json "97.00"), [1](r/{RUNS[4].key}.json "97.10")'
    text = part(document(*RUNS), "table T")
    assert f"| 97.05\u00a0±\u00a00.07<br><small>n = 2 of 3, {seeds}</small> |" in text
    assert f'[0](r/{RUNS[5].key}.json "90.00")' in text


def test_without_results_every_row_says_not_run():
    text = document()
    assert [row[-1] for row in rows(part(text, "table T"))] == ["not run"] * 4
    assert "preset" not in part(text, "table T")
    assert "Of 3 rows of the paper with a number, 0 met, 0 missed, 3 not run." in part(text, "summary")
    assert part(text, "presets") == "No row was run under both presets yet."
    assert part(text, "other runs") == "None."
    assert part(text, "figures T") == ""


def test_a_table_without_numbers_of_the_paper_has_no_columns_for_them():
    bare = Table("T", "bare", (Row("A", Made()), Row("B", Made(num_basis=2))))
    text = part(document(result(), of=[experiment(bare)]), "table T")
    assert text.splitlines()[0] == "| row | settings | paper preset | verdict |"
    assert rows(text)[0] == ["`A`", "300 parts", "96.90 (n = 1, seed 0)", ""]


def test_a_preset_that_changes_nothing_says_so():
    idle = experiment(TABLE, presets={"paper": lambda c: c, "fast": lambda c: faster(c) if c == Made() else c})
    text = part(document(result(faster(Made())), of=[idle]), "table T")
    assert [row[-2] for row in rows(text)] == ["96.90 (n = 1 of 3, seed 0)", *["the same"] * 3]


def test_below_a_table_is_where_its_numbers_come_from():
    data = {"cifar10": "abc"}
    run = result(ROWS[2].config, seconds=90.0, data=data)
    text = part(document(*RUNS, run, known_data={"abc": "JPEG pixels."}), "table T")
    assert text.startswith("Made by hand.\n\n|")
    assert "8 runs, torch 2.11, 8.5 GPU minutes (A GPU). CIFAR-10: JPEG pixels." in text
    assert "[Every run](report.html#T). Run it: `torchpfc run made --rows 'T.*'`." in text
    assert "JPEG" not in part(document(*RUNS, run), "table T")


def test_the_summary_counts_and_adds_up():
    text = part(document(*RUNS), "summary")
    assert "Of 3 rows of the paper with a number, 0 met, 2 missed, 1 not run." in text
    assert "Of 1 row without one, 1 run." in text
    assert "With fewer runs than its table asks for: 1 row." in text
    assert "All 7 runs took 7.0 GPU minutes (A GPU); those that shared a device count in full." in text
    assert rows(text) == [["A GPU", "2.11", "", "7", "7.0"]]


def test_presets_are_compared_row_by_row():
    both = [
        *(result(value=96.5 + seed / 10, seed=seed) for seed in range(3)),
        *(result(faster(Made()), 96.8 + seed / 10, seed) for seed in range(3)),
        result(ROWS[1].config, 90.0),
        result(faster(ROWS[1].config), 91.0),
    ]
    assert rows(part(document(*both), "presets")) == [
        ["`A`", "96.60 ± 0.10 (n = 3, seeds 0, 1, 2)", "96.90 ± 0.10 (n = 3, seeds 0, 1, 2)",
         "+0.30", "0.16", "0.30", "yes"],
        ["`B`", "90.00 (n = 1 of 2, seed 0)", "91.00 (n = 1 of 2, seed 0)", "+1.00", "", "0.30", "**no**"],
    ]  # fmt: skip


def test_other_runs_name_what_differs_from_the_defaults():
    runs = [
        *(result(Made(num_basis=7), 80.0 + seed, seed) for seed in range(2)),
        result(Made(), metrics={"auroc": 0.5}),
        result(name="unknown", metrics={"loss": 0.5, "auroc": 0.25}),
    ]
    assert rows(part(document(*runs), "other runs")) == [
        ["made", "defaults", "AUROC 0.5000 (n = 1, seed 0)"],
        ["made", "7 parts", "test accuracy in % 80.50 ± 0.71 (n = 2, seeds 0, 1)"],
        ["unknown", "MNIST, 300 parts, λ = 0.5, slow, sizes 1, 2",
         "AUROC 0.2500 (n = 1, seed 0); loss 0.5000 (n = 1, seed 0)"],
    ]  # fmt: skip


def test_what_is_written_around_the_parts_is_kept():
    first = document()
    edited = first.replace("## Other runs", "Why B misses: see below.\n\n## Other runs").replace("# The", "# My", 1)
    second = document(*RUNS, before=edited)
    assert "Why B misses: see below.\n\n## Other runs" in second
    assert second.startswith("# My")
    assert part(second, "table T") == part(document(*RUNS), "table T")
    assert document(*RUNS, before=second) == second


def test_a_part_may_stand_anywhere_and_be_left_out():
    text = document(*RUNS, before="Hello <!-- a remark -->\n<!-- table T -->\nold\n<!-- end -->\nGoodbye\n")
    assert text.startswith("Hello <!-- a remark -->\n<!-- table T -->\n\nMade by hand.")
    assert text.endswith("<!-- end -->\nGoodbye\n")
    assert "old" not in text
    assert "summary" not in text


def test_a_table_that_has_no_place_comes_at_the_end():
    second = Table("U", "Another table", ROWS[:1])
    text = document(before=document(), of=[experiment(TABLE, second)])
    assert text.index("<!-- table U -->") > text.index("<!-- other runs -->")
    assert "\n\n## U: Another table\n\n<!-- table U -->\n" in text
    assert document(before=text, of=[experiment(TABLE, second)]) == text


def test_a_figure_stands_with_its_table_or_in_a_place_of_its_own():
    text = document(*RUNS)
    picture = "![A made table: the paper's numbers beside ours](figures/paper/T-numbers.svg)"
    assert part(text, "figures T").startswith(picture)
    moved = document(*RUNS, before=f"<!-- figure T-numbers -->\n<!-- end -->\n\n{text}")
    assert part(moved, "figure T-numbers").startswith(picture)
    assert part(moved, "figures T") == ""
    assert part(document(before=moved), "figure T-numbers") == ""


def test_a_bar_in_a_cell_does_not_end_it():
    odd = Table("T", "odd", (Row("A", Made("a|b")), Row("B", Made("c"))))
    assert rows(part(document(of=[experiment(odd)]), "table T"))[0][1] == r"a\|b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "<!-- table T9 --><!-- end -->",
            r"must name a part of the report, got <!-- table T9 -->; the parts are: summary",
        ),
        ("<!-- summary -->", r"must end with <!-- end -->, got none after <!-- summary -->"),
        ("<!-- summary --><!-- summary -->", r"must end with <!-- end -->, got <!-- summary --> out of turn"),
        ("<!-- end -->", r"must end with <!-- end -->, got <!-- end --> out of turn"),
    ],
)
def test_comments_that_do_not_fit_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        fill_places(text, {"summary": "s"})


def test_a_preset_that_does_not_decide_is_heard_only_when_it_differs():
    for value, verdict in ((96.8, "met, +0.07"), (90.0, "met, +0.07; fast preset: missed")):
        text = document(result(value=96.9), result(faster(Made()), value))
        assert rows(part(text, "table T"))[0][-1] == verdict


def further(*runs, of=EXPERIMENT):
    """The heads and the rows of the table of further measurements."""
    text = part(document(*runs, before="<!-- further T --><!-- end -->", of=[of]), "further T")
    assert text.startswith(CAPTION) or not text
    return [cell.strip() for cell in text.splitlines()[2].split("|")[1:-1]] if text else [], rows(text)


def test_what_else_was_measured_stands_below_tables_without_numbers_of_the_paper():
    bare = Table("T", "bare", (Row("A", Made()), Row("B", Made(num_basis=2))))
    run = result(metrics={"test_accuracy": 90.0, "epochs": 7.0})
    assert rows(part(document(run, of=[experiment(bare)]), "further T")) == [["epochs", "7"], ["runs", "seed 0"]]
    assert part(document(of=[experiment(bare)]), "further T") == ""
    assert "further" not in document(run)


def test_few_rows_stand_side_by_side():
    runs = [
        result(seed=0, metrics={"test_accuracy": 97.0, "auroc": 0.5, "epochs": 10.0}),
        result(seed=1, metrics={"test_accuracy": 97.0, "auroc": 0.75, "epochs": 20.0}),
        result(ROWS[3].config, metrics={"test_accuracy": 50.0, "epochs": 7.0}),
        result(faster(Made()), metrics={"test_accuracy": 97.0, "auroc": 0.0, "other": 1.0}),
    ]
    assert further(*runs) == (
        ["", "MNIST, 300 parts, paper preset", "MNIST, 300 parts, fast preset", "CIFAR-10, 2000 parts, paper preset"],
        [
            ["AUROC", "0.6250", "0", ""],
            ["epochs", "15", "", "7"],
            ["other", "", "1", ""],
            ["runs", "seeds 0, 1", "seed 0", "seed 0"],
        ],
    )


def test_beside_a_time_stands_how_many_models_trained_in_it():
    timed = {"test_accuracy": 97.0, "milliseconds_per_step": 2.5}
    _, measured = further(result(metrics=timed, hardware={"stack": 12}))
    assert measured[:2] == [["milliseconds per step", "2.500"], ["models at once", "12"]]
    assert len(further(result(metrics=timed))[1]) == 2  # with the runs


def test_memory_as_older_files_have_it_is_left_out():
    assert further(result(metrics={"test_accuracy": 97.0, "peak_memory_mb": 900.0})) == ([], [])


def test_rows_with_the_same_runs_stand_together():
    metrics = {"before_accuracy": 80.0, "after_accuracy": 92.0, "epochs": 8.0}
    table = Table(
        "T", "one run", (Row("T.A", Made(), metric="before_accuracy"), Row("T.B", Made(), metric="after_accuracy"))
    )
    heads, measured = further(result(metrics=metrics), of=experiment(table))
    assert heads == ["", "T.A, T.B"] and ["epochs", "8"] in measured and measured[-1] == ["runs", "seed 0"]


def test_many_rows_stand_one_below_the_other():
    table = Table("T", "many", tuple(Row(f"row {i}", Made(num_basis=i)) for i in range(1, 8)))
    runs = [result(row.config, metrics={"test_accuracy": 97.0, "epochs": 3.0}) for row in table.rows]
    heads, measured = further(*runs, of=experiment(table))
    assert heads == ["row", "epochs", "runs"]
    assert measured == [[f"row {i}", "3", "seed 0"] for i in range(1, 8)]
    assert [row[0] for row in further(*runs[:6], of=experiment(table))[1]] == ["epochs", "runs"]


def test_a_row_that_differs_in_nothing_goes_by_its_id():
    table = Table("T", "one", ROWS[:1])
    heads, _ = further(result(metrics={"test_accuracy": 97.0, "epochs": 3.0}), of=experiment(table))
    assert heads == ["", "A"]


def test_without_other_metrics_there_is_nothing_to_show():
    assert further(result()) == further() == ([], [])


def test_what_a_result_file_says_is_text_whatever_it_looks_like():
    evil = "<script>alert(1)</script> <!-- end --> [a](javascript:b) `c` *d* | e\n\n# f"
    hardware = {"gpu": evil, "precision": evil}
    run = result(Made(evil), metrics={"test_accuracy": 96.0, evil: 1.0}, versions={"torch": evil}, hardware=hardware)
    stranger = result(name=evil, metrics={evil: 1.0}, hardware=hardware)
    shown = result(ROWS[0].config, metrics={"test_accuracy": 96.0, evil: 1.0}, hardware=hardware, data={evil: "known"})
    text = document(run, stranger, shown, known_data={"known": "A remark."})
    clean = document(shown).count("<!-- end -->")
    assert "&#60;script&#62;" in text and "<script" not in text and text.count("<!-- end -->") == clean
    assert "](javascript" not in text and "`c`" not in text and "*d*" not in text and "\n# f" not in text
    assert all(len(row) == 3 for row in rows(part(text, "other runs")))
