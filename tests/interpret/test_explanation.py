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


def named(**fields) -> Explanation:
    """Two parts of three features with names: the first is mostly height, the second weight without height."""
    values = {
        "x": torch.tensor([[170.0, 60.0, 0.0]]),
        "y": torch.tensor([[1.5, 0.5]]),
        "h": torch.tensor([[0.5, 2.0]]),
        "weight_x": torch.tensor([[100.0, -1.0], [200.0, 30.0], [0.0, 0.0]]),
        "weight_y": torch.tensor([[3.0, 0.0], [0.0, 0.25]]),
        "base": torch.zeros(2),
        "outputs": ("tall", "small"),
        "features": ("height", "weight", "age"),
        "classes": True,
    }
    return Explanation(**values | fields)


def test_parts_are_called_by_their_largest_features():
    one = named()
    assert one.top_features(0) == [("weight", 200.0), ("height", 100.0)]
    assert one.name_of(1) == "1: weight, -height"
    in_units = named(units=torch.tensor([10.0, 100.0, 1.0]))
    assert in_units.name_of(0) == "0: height, weight"
    assert named(parts=("length", "mass")).name_of(1) == "mass"
    assert named(features=()).name_of(1) == "1"
    assert named(features=()).top_features(1, count=1) == [("1", 30.0)]
    with pytest.raises(ValueError, match=r"part must name parts in \[0, 2\), got 2"):
        one.top_features(2)


def test_names_are_in_the_table_and_in_the_plain_values():
    lines = str(named()).splitlines()
    assert lines[0] == "Answer: tall" and lines[1].split()[-2:] == ["tall", "small"]
    assert lines[2].startswith("0: weight, height") and lines[3].startswith("1: weight, -height")
    terms = named().to_dict()["terms"]
    assert [term["name"] for term in terms] == ["0: weight, height", "1: weight, -height"]
    assert terms[1]["features"] == {"weight": 30.0, "height": -1.0}


def test_the_order_is_that_of_what_parts_add_and_not_of_their_amounts():
    assert [term.part for term in named().terms()] == [0, 1]  # of the second there is more
    assert [term.part for term in named().terms(output="small")] == [1, 0]
    with pytest.raises(ValueError, match=r"output must be one of tall, small, got 'large'"):
        named().terms(output="large")


@pytest.mark.parametrize(("field", "count"), [("features", 3), ("parts", 2)])
def test_names_must_be_as_many_as_there_are(field, count):
    with pytest.raises(ValueError, match=rf"{field} must name each of the {count} {field}, got 1 names"):
        named(**{field: ("one",)})


def test_weights_and_base_may_differ_between_examples():
    generator = torch.Generator().manual_seed(0)
    h, weight_y, base = (torch.rand(*shape, generator=generator) for shape in ((4, 5), (4, 3, 5), (4, 3)))
    y = base + torch.stack([weight_y[i] @ h[i] for i in range(4)])
    explanation = Explanation(torch.rand(4, 6), y, h, torch.rand(6, 5), weight_y, base)
    assert torch.allclose(explanation.contributions.sum(2) + base, y)
    for row in range(4):
        one = explanation[row].to_dict()
        total = [one["base"][k] + sum(term["contributions"][k] for term in one["terms"]) for k in range(3)]
        assert total == pytest.approx(y[row].tolist(), abs=1e-5)
    assert torch.allclose(explanation.scaled({1: 0.0}).y, y - explanation.contributions[:, :, 1])
    with pytest.raises(RuntimeError, match="the parts must add up to the prediction"):
        Explanation(torch.rand(4, 6), y + 0.1, h, torch.rand(6, 5), weight_y, base)


def test_parts_that_add_nothing_to_the_answer_come_by_what_they_add_to_others():
    h, weight_y = torch.ones(1, 4), torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.1, 0.0, 0.0, 0.3]])
    explanation = Explanation(torch.ones(1, 3), h @ weight_y.mT, h, torch.ones(3, 4), weight_y, torch.zeros(2))
    assert [term.part for term in explanation.terms()] == [1, 3, 0, 2]
