from tests.paper.report.made import result
from torchpfc.paper.report.provenance import machines, remarks, time_spent, torch_versions

CPU = {"gpu": None, "cpu": "a CPU"}


def test_time_is_added_up_by_what_was_computed_on():
    runs = [
        result(seconds=30.0, hardware=CPU),
        result(seconds=60.0),
        result(seconds=90.0),
        result(seconds=6000.0, hardware={"gpu": "B GPU"}),
    ]
    assert time_spent(runs) == "100 GPU minutes (B GPU), 2.5 GPU minutes (A GPU), 0.5 CPU minutes (a CPU)"
    assert time_spent([]) == ""


def test_machines_are_told_apart_by_name_version_and_precision():
    runs = [
        result(hardware=CPU),
        result(),
        result(versions={"torch": "2.13"}),
        result(hardware={"gpu": "A GPU", "precision": "tf32"}),
        result(seconds=12.0),
    ]
    assert [(found.name, found.torch, found.precision, len(found.results)) for found in machines(runs)] == [
        ("A GPU", "2.13", "", 1),
        ("A GPU", "2.11", "tf32", 1),
        ("A GPU", "2.11", "", 2),
        ("a CPU", "2.11", "", 1),
    ]
    assert machines(runs)[2].seconds == 72


def test_a_result_that_says_nothing_about_itself_is_counted():
    run = result(versions={}, hardware={})
    assert [(found.kind, found.name, found.torch) for found in machines([run])] == [("CPU", "unknown", "unknown")]


def test_versions_are_named_once():
    runs = [result(), result(), result(versions={"torch": "2.10"})]
    assert torch_versions(runs) == "2.10, 2.11"


def test_data_that_is_known_gets_its_remark_once():
    runs = [result(data={"cifar10": "abc", "mnist": "def"}), result(data={"cifar10": "abc"}), result()]
    assert remarks(runs, {"abc": "JPEG pixels."}) == ["CIFAR-10: JPEG pixels."]
    assert remarks(runs, {"abc": ""}) == remarks(runs, {}) == []
