from dataclasses import replace
from itertools import product

from tests.paper.report.made import Made, experiment
from torchpfc.paper.registry import Row, Table
from torchpfc.paper.report.compare import fill
from torchpfc.paper.report.layout import Wording, by_first, by_size


def sheet(*configs):
    table = Table("T", "a table", tuple(Row(f"row {i}", config) for i, config in enumerate(configs)))
    return fill(experiment(table), table, [])


GRID = sheet(*(Made(*values) for values in product(["mnist", "cifar10"], [300, 2000], [0.5, 1.0])))


def labels(groups):
    return {group.title: list(group.entries) for group in groups}


def test_rows_name_the_settings_in_which_they_differ():
    assert Wording.of(GRID.table) == Wording(("dataset", "num_basis", "prediction_weight"), {})
    assert Wording.of(sheet(Made()).table) == Wording((), {})
    assert Wording.of(GRID.table).describe(GRID.lines[0]) == "MNIST, 300 parts, λ = 0.5"


def describe(rows):
    wording = Wording.of(rows.table)
    return [wording.describe(line) for line in rows.lines]


def test_what_most_rows_have_goes_without_saying():
    rows = sheet(*(Made(num_basis=size) for size in (1, 2, 3)), Made(num_basis=3, solver="quick"))
    assert describe(rows) == ["1 parts", "2 parts", "3 parts", "3 parts, quick"]


def test_what_two_thirds_of_the_rows_have_is_said():
    assert describe(sheet(Made(), Made(num_basis=2), Made("cifar10"))) == [
        "MNIST, 300 parts",
        "MNIST, 2 parts",
        "CIFAR-10, 300 parts",
    ]


def test_a_list_of_numbers_can_be_usual_too():
    rows = sheet(*(Made(num_basis=size) for size in (1, 2, 3)), Made(sizes=(3,)))
    assert describe(rows) == ["1 parts", "2 parts", "3 parts", "300 parts, sizes 3"]


def test_the_row_about_which_nothing_is_unusual_is_called_so():
    rows = sheet(*(Made(solver=solver) for solver in ("slow", "slow", "slow", "quick")))
    assert describe(rows) == ["", "", "", "quick"]
    assert labels(by_first(rows)) == {"": ["unchanged", "row 1", "row 2", "quick"]}


def test_rows_in_words_stand_under_what_they_share():
    rows = tuple(
        Row(f"{i}", Made(num_basis=i), what=what, under=under)
        for i, (under, what) in enumerate(product(("MNIST", "CIFAR-10"), ("fast", "slow")))
    )
    table = Table("T", "a table", (*rows, Row("4", Made(), what="alone")))
    found = fill(experiment(table), table, [])
    assert describe(found) == ["MNIST: fast", "MNIST: slow", "CIFAR-10: fast", "CIFAR-10: slow", "alone"]
    assert labels(by_first(found)) == {"MNIST": ["fast", "slow"], "CIFAR-10": ["fast", "slow"], "": ["alone"]}
    assert [list(labels(row)) for row in by_size(found, 2)] == [["MNIST", "CIFAR-10", ""]]


def test_words_are_those_of_the_table_even_for_some_of_its_rows():
    some = replace(GRID, lines=GRID.lines[:2])
    assert labels(by_first(some)) == {"MNIST": ["300 parts, λ = 0.5", "300 parts, λ = 1"]}


def test_rows_that_only_unusual_settings_tell_apart_stay_together():
    sweep = [Made(name, solver=solver) for name in ("mnist", "cifar10") for solver in ("slow",) * 7 + ("a", "b")]
    ((mnist, cifar),) = by_size(sheet(*sweep), 3)
    assert [len(group.entries) for group in (mnist, cifar)] == [9, 9]
    assert list(mnist.entries)[-2:] == ["a", "b"]


def test_groups_by_the_first_setting_name_the_others():
    assert labels(by_first(GRID)) == {
        name: ["300 parts, λ = 0.5", "300 parts, λ = 1", "2000 parts, λ = 0.5", "2000 parts, λ = 1"]
        for name in ("MNIST", "CIFAR-10")
    }


def test_one_setting_alone_does_not_part_the_rows():
    assert labels(by_first(sheet(Made(num_basis=1), Made(num_basis=2)))) == {"": ["1 parts", "2 parts"]}


def test_a_setting_that_would_part_all_rows_parts_none():
    rows = sheet(Made("mnist", 1), Made("cifar10", 2))
    assert labels(by_first(rows)) == {"": ["MNIST, 1 parts", "CIFAR-10, 2 parts"]}


def test_groups_are_as_large_as_the_limit_allows():
    assert [list(labels(row)) for row in by_size(GRID, 8)] == [[""]]
    assert [list(labels(row)) for row in by_size(GRID, 4)] == [["MNIST", "CIFAR-10"]]
    assert [list(labels(row)) for row in by_size(GRID, 2)] == [
        ["MNIST, 300 parts", "MNIST, 2000 parts"],
        ["CIFAR-10, 300 parts", "CIFAR-10, 2000 parts"],
    ]
    assert by_size(GRID, 3) == by_size(GRID, 2)
    assert labels(by_size(GRID, 2)[0])["MNIST, 300 parts"] == ["λ = 0.5", "λ = 1"]


def test_rows_that_only_the_last_setting_tells_apart_stay_together():
    rows = sheet(*(Made(num_basis=i) for i in range(9)))
    assert [len(group.entries) for (group,) in by_size(rows, 2)] == [9]


def test_rows_that_no_setting_tells_apart_go_by_their_ids():
    assert labels(by_first(sheet(Made(), Made()))) == {"": ["row 0", "row 1"]}
    assert labels(by_size(sheet(Made()), 6)[0]) == {"": ["row 0"]}


def test_rows_whose_words_are_equal_go_by_their_ids():
    rows = sheet(Made(prediction_weight=0.5), Made(prediction_weight=0.5000001), Made(prediction_weight=1.0))
    assert labels(by_first(rows)) == {"": ["λ = 0.5", "row 1", "λ = 1"]}


def test_groups_that_have_no_others_beside_them_form_one_row():
    rows = sheet(Made("mnist", 1, 0.5), Made("mnist", 1, 1.0), Made("cifar10", 2, 0.5), Made("cifar10", 2, 1.0))
    assert [list(labels(row)) for row in by_size(rows, 2)] == [["MNIST", "CIFAR-10"]]
    assert [list(labels(row)) for row in by_size(rows, 1)] == [["MNIST, 1 parts", "CIFAR-10, 2 parts"]]
