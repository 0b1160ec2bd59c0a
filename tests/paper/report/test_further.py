from tests.paper.report.made import EXPERIMENT, ROWS, TABLE, Made, experiment, faster, result
from torchpfc.paper.registry import Row, Table
from torchpfc.paper.report.compare import fill
from torchpfc.paper.report.further import Grid, measure_further


def test_few_rows_stand_side_by_side():
    runs = [
        result(seed=0, metrics={"test_accuracy": 97.0, "auroc": 0.5, "epochs": 10.0}),
        result(seed=1, metrics={"test_accuracy": 97.0, "auroc": 0.75, "epochs": 20.0}),
        result(ROWS[3].config, metrics={"test_accuracy": 50.0, "epochs": 7.0}),
        result(faster(Made()), metrics={"test_accuracy": 97.0, "auroc": 0.0, "other": 1.0}),
    ]
    assert measure_further(fill(EXPERIMENT, TABLE, runs)) == Grid(
        ["", "MNIST, 300 parts, paper preset", "MNIST, 300 parts, fast preset", "CIFAR-10, 2000 parts, paper preset"],
        [
            ["AUROC", "0.6250", "0", ""],
            ["epochs", "15", "", "7"],
            ["other", "", "1", ""],
            ["runs", tuple(runs[:2]), (runs[3],), (runs[2],)],
        ],
    )


def test_beside_a_time_stands_how_many_models_trained_in_it():
    timed = {"test_accuracy": 97.0, "milliseconds_per_step": 2.5}
    grid = measure_further(fill(EXPERIMENT, TABLE, [result(metrics=timed, hardware={"stack": 12})]))
    assert [row[:2] for row in grid.rows[:2]] == [["milliseconds per step", "2.500"], ["models at once", "12"]]
    assert len(measure_further(fill(EXPERIMENT, TABLE, [result(metrics=timed)])).rows) == 2  # with the runs


def test_memory_as_older_files_have_it_is_left_out():
    runs = [result(metrics={"test_accuracy": 97.0, "peak_memory_mb": 900.0})]
    assert measure_further(fill(EXPERIMENT, TABLE, runs)) is None


def test_rows_with_the_same_runs_stand_together():
    metrics = {"before_accuracy": 80.0, "after_accuracy": 92.0, "epochs": 8.0}
    table = Table(
        "T", "one run", (Row("T.A", Made(), metric="before_accuracy"), Row("T.B", Made(), metric="after_accuracy"))
    )
    run = result(metrics=metrics)
    grid = measure_further(fill(experiment(table), table, [run]))
    assert grid.heads == ["", "T.A, T.B"] and ["epochs", "8"] in grid.rows and ["runs", (run,)] in grid.rows


def test_many_rows_stand_one_below_the_other():
    table = Table("T", "many", tuple(Row(f"row {i}", Made(num_basis=i)) for i in range(1, 8)))
    runs = [result(row.config, metrics={"test_accuracy": 97.0, "epochs": 3.0}) for row in table.rows]
    grid = measure_further(fill(experiment(table), table, runs))
    assert grid == Grid(["row", "epochs", "runs"], [[f"row {i}", "3", (runs[i - 1],)] for i in range(1, 8)])
    assert [row[0] for row in measure_further(fill(experiment(table), table, runs[:6])).rows] == ["epochs", "runs"]


def test_a_row_that_differs_in_nothing_goes_by_its_id():
    table = Table("T", "one", ROWS[:1])
    grid = measure_further(fill(experiment(table), table, [result(metrics={"test_accuracy": 97.0, "epochs": 3.0})]))
    assert grid.heads == ["", "A"]


def test_without_other_metrics_there_is_nothing_to_show():
    assert measure_further(fill(EXPERIMENT, TABLE, [result()])) is None
    assert measure_further(fill(EXPERIMENT, TABLE, [])) is None
