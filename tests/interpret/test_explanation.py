import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchpfc import FISTA, PFCBlock, nnls
from torchpfc.interpret import Explanation, counterfactual, explain


def make_block(*, nonnegative: bool = True, seed: int = 0, dtype: torch.dtype = torch.float32) -> PFCBlock:
    generator = torch.Generator().manual_seed(seed)
    span = (0.0, 1.0) if nonnegative else (-1.0, 1.0)
    return PFCBlock(
        6,
        3,
        num_basis=5,
        nonnegative=nonnegative,
        solver=FISTA(max_iter=300),
        init_range=span,
        generator=generator,
        dtype=dtype,
    ).eval()


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), nonnegative=st.booleans(), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_the_sums_equal_prediction_and_input_when_added_part_by_part(seed, nonnegative, scale):
    block = make_block(nonnegative=nonnegative, seed=seed)
    x = scale * torch.rand(4, 6, generator=torch.Generator().manual_seed(seed + 1))
    explanation = explain(block, x)
    y = block(x).detach()
    for i in range(4):
        added_y, added_x = torch.zeros(3, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
        for r in range(5):
            added_y += block.weight_y[:, r].double() * explanation.h[i, r].double()
            added_x += block.weight_x[:, r].double() * explanation.h[i, r].double()
        assert (added_y - y[i].double()).abs().max() <= 1e-5 * max(1.0, float(y[i].abs().max()))
        rest = explanation.rest[i].double()
        assert (added_x + rest - x[i].double()).abs().max() <= 1e-5 * max(1.0, float(x[i].abs().max()))
    assert torch.allclose(explanation.contributions.sum(-1), y, rtol=1e-4, atol=1e-5 * scale)
    assert torch.allclose(explanation.pieces.sum(1), explanation.reconstruction, rtol=1e-4, atol=1e-5 * scale)


def test_a_prediction_that_is_not_the_sum_is_refused():
    explanation = explain(make_block(), torch.rand(2, 6))
    fields = {name: getattr(explanation, name) for name in ("x", "y", "h", "weight_x", "weight_y", "base")}
    with pytest.raises(RuntimeError, match=r"the parts must add up to the prediction to 1e-05, got an error of "):
        Explanation(**{**fields, "y": explanation.y + 0.01})


def test_terms_are_sorted_by_what_they_add_to_the_answer():
    explanation = explain(make_block(), torch.rand(3, 6))
    for row in range(3):
        terms = explanation.terms(row)
        answer = int(explanation.y[row].argmax())
        added = [abs(term.contributions[answer]) for term in terms]
        assert added == sorted(added, reverse=True)
        assert {term.part for term in terms} == set(explanation.h[row].nonzero().flatten().tolist())
        by_last = [abs(term.contributions[2]) for term in explanation.terms(row, output=2)]
        assert by_last == sorted(by_last, reverse=True)


def test_a_table_adds_up_as_printed():
    explanation = explain(make_block(), torch.rand(1, 6), outputs=("a", "b", "c"), classes=True)
    lines = str(explanation).splitlines()
    assert lines[0] == f"Answer: {'abc'[int(explanation.y[0].argmax())]}"
    order = lines[1].split()[-3:]
    assert [float(explanation.y[0, "abc".index(name)]) for name in order] == sorted(explanation.y[0].tolist())[::-1]
    rows = [re.findall(r"[+-]\d+\.\d+", line) for line in lines[2:-2]]
    sums = [float(number) for number in lines[-2].split()[1:]]
    for k in range(3):
        assert sum(float(row[k]) for row in rows) == pytest.approx(sums[k], abs=1e-3)
    assert lines[-1] == f"Not explained: {float(explanation.unexplained[0]):.1%} of the input."


def test_a_table_adds_up_what_it_does_not_show():
    explanation = explain(make_block(seed=4), torch.rand(1, 6, generator=torch.Generator().manual_seed(0)))
    terms = explanation.terms()
    assert len(terms) > 2
    line = next(line for line in explanation.table(parts=1).splitlines() if "others" in line)
    assert line.startswith(f"{len(terms) - 1} others")
    assert float(line.split()[-3]) == pytest.approx(sum(term.contributions[0] for term in terms[1:]), abs=1e-3)


def test_many_examples_print_as_a_few_tables():
    text = str(explain(make_block(), torch.rand(5, 6)))
    assert text.count("Not explained") == 3
    assert text.endswith("and 2 more")


def test_one_example_may_come_without_a_batch():
    block, x = make_block(), torch.rand(6)
    assert torch.equal(explain(block, x).y, explain(block, x.unsqueeze(0)).y)


def test_rows_can_be_taken_and_iterated():
    explanation = explain(make_block(), torch.rand(3, 6))
    assert len(explanation) == 3
    assert torch.equal(explanation[-1].y[0], explanation.y[2])
    assert [float(one.y[0, 0]) for one in explanation] == explanation.y[:, 0].tolist()
    with pytest.raises(IndexError, match=r"row must lie in \[0, 3\), got 3"):
        explanation[3]


def test_as_plain_values_it_still_adds_up():
    one = explain(make_block(), torch.rand(2, 6)).to_dict(1)
    for k, y in enumerate(one["y"]):
        assert one["base"][k] + sum(term["contributions"][k] for term in one["terms"]) == pytest.approx(y, abs=1e-5)


def test_scaling_a_part_changes_the_answer_by_what_it_added():
    before = explain(make_block(), torch.rand(2, 6))
    part = int(before.h[0].argmax())
    after = before.scaled({part: 0.5})
    expected = before.y - 0.5 * before.h[:, part : part + 1] * before.weight_y[:, part]
    assert torch.allclose(after.y, expected, atol=1e-6)
    assert torch.equal(before.scaled({}).h, before.h)
    with pytest.raises(ValueError, match=r"factors must name parts in \[0, 5\), got 5"):
        before.scaled({5: 0.0})


def test_a_counterfactual_solves_for_the_parts_that_are_left():
    block, x = make_block(dtype=torch.float64), torch.rand(3, 6, dtype=torch.float64)
    other = counterfactual(block, x, {1: 0.0, 3: 2.0})
    before = explain(block, x)
    held = torch.zeros_like(before.h)
    held[:, 3] = 2 * before.h[:, 3]
    left = [0, 2, 4]
    expected = nnls(x - held @ block.weight_x.detach().mT, block.weight_x.detach()[:, left]).h
    assert torch.allclose(other.h[:, left], expected, atol=1e-4)
    assert torch.equal(other.h[:, 3], held[:, 3])
    assert not other.h[:, 1].any()
    with pytest.raises(ValueError, match=r"factors must name parts in \[0, 5\), got -1"):
        counterfactual(block, x, {-1: 0.0})


def test_explaining_leaves_the_mode_of_the_block():
    block = make_block().train()
    explain(block, torch.rand(2, 6))
    assert block.training


def test_wrong_shapes_are_refused():
    block = make_block()
    with pytest.raises(ValueError, match=r"x must have shape \(n, 6\), got \(2, 2, 6\)"):
        explain(block, torch.rand(2, 2, 6))
    with pytest.raises(ValueError, match=r"outputs must name each of the 3 outputs, got 2 names"):
        explain(block, torch.rand(2, 6), outputs=("a", "b"))
    explanation = explain(block, torch.rand(2, 6))
    with pytest.raises(ValueError, match=r"h must have shape \(n, num_basis\), got \(5,\)"):
        Explanation(explanation.x, explanation.y, explanation.h[0], block.weight_x, block.weight_y, explanation.base)
