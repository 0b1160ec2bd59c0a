from pathlib import Path
from typing import Any

import pytest

from torchpfc.paper import load_results, run
from torchpfc.paper.launch import RequestError, make_jobs

TINY: dict[str, Any] = {"dataset": "digits", "num_basis": 5, "iterations": 3, "eval_iterations": 4, "epochs": 1}


def test_a_run_from_python_returns_all_results_and_repeats_none(tmp_path: Path) -> None:
    first = run("pfc-image", settings=TINY, seeds=1, device="cpu", results=tmp_path)
    assert (first.new, first.folder) == (1, tmp_path)
    both = run("pfc-image", settings=TINY, seeds=2, device="cpu", results=str(tmp_path))
    assert both.new == 1 and [result.seed for result in both.results] == [0, 1]
    assert both.results[0] == first.results[0]
    assert sorted(result.key for result in both.results) == sorted(result.key for result in load_results(tmp_path))


def test_without_test_data_results_are_kept_apart(tmp_path: Path) -> None:
    ran = run("pfc-image", settings=TINY, device="cpu", results=tmp_path, test=False)
    assert ran.folder == tmp_path / "validation" and not load_results(tmp_path)
    assert "test_accuracy" not in ran.results[0].metrics


def test_settings_are_values_or_texts_and_go_before_a_preset() -> None:
    given = make_jobs("pfc-image", ["T2.M.300.N.r"], {"num_basis": 600, "iterations": 77}, "fast", 1)
    assert make_jobs("pfc-image", ["T2.M.300.N.r"], ["num_basis=600", "iterations=77"], "fast", 1) == given
    assert [job.seed for job in make_jobs("pfc-image", ["T2.[MF].300.N.r"])] == [0, 1, 2] * 2
    assert make_jobs("pfc-image", ["T9.*"]) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"experiment": "pfc"}, r"the experiment must be one of mlp-image, .*, got 'pfc'"),
        ({"rows": ["T9.*"]}, r"rows must match ids that `torchpfc list NAME` shows, got T9\.\*"),
        ({"settings": {"num_bases": 3}}, "got 'num_bases'; did you mean 'num_basis'"),
        ({"preset": "quick"}, "preset must be one of paper, fast, got 'quick'"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"devices": 3}, "batch_size must be a multiple of the 3 processes, got 200"),
        ({"precision": "16"}, "precision must be one of tf32, 32, 64, bf16, got '16'"),
    ],
)
def test_what_cannot_be_run_is_named_and_nothing_is_written(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=message):
        run(**({"experiment": "pfc-image", "device": "cpu", "results": tmp_path} | given))
    assert list(tmp_path.iterdir()) == []
