import math
from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu
from torch import Tensor, nn

from torchpfc import FISTA, PFCBlock, RMSprop, keep_nonnegative
from torchpfc.training import Batches, SquaredErrors, fit
from torchpfc.unlearning import Membership, Relearning, audit, fingerprint, membership_attack, steps_to_relearn


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def given_losses(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Losses that are the data themselves."""
    return x[:, 0] if isinstance(model, nn.Identity) else x[:, 1]


def attack(members: list[float], non_members: list[float]) -> Membership:
    data = [
        (torch.tensor(losses, dtype=torch.float64)[:, None], torch.zeros(len(losses)))
        for losses in (members, non_members)
    ]
    return membership_attack(nn.Identity(), members=data[0], non_members=data[1], losses=given_losses, batch_size=3)


few_values = st.lists(st.integers(0, 6).map(float), min_size=2, max_size=12)


@given(members=few_values, non_members=few_values)
def test_the_area_is_that_of_the_rank_test_and_its_error_that_of_all_pairs(
    members: list[float], non_members: list[float]
) -> None:
    found = attack(members, non_members)
    m, n = len(members), len(non_members)
    assert math.isclose(found.auroc, mannwhitneyu(non_members, members).statistic / (m * n), abs_tol=1e-12)
    wins = torch.tensor([[float(a < b) + (a == b) / 2 for b in non_members] for a in members])
    error = math.sqrt(float(wins.mean(1).var() / m + wins.mean(0).var() / n))
    assert math.isclose(found.standard_error, error, abs_tol=1e-6)
    assert (found.members, found.non_members) == (m, n)


def test_the_standard_error_is_the_spread_of_repeated_attacks() -> None:
    generator = seeded(0)
    areas, errors = [], []
    for _ in range(300):
        inside, outside = torch.randn(40, generator=generator), 0.5 + torch.randn(60, generator=generator)
        found = attack(inside.tolist(), outside.tolist())
        areas.append(found.auroc)
        errors.append(found.standard_error)
    assert math.isclose(torch.tensor(areas).std(), torch.tensor(errors).mean(), rel_tol=0.15)


def test_a_deviation_counts_standard_errors() -> None:
    assert Membership(0.6, 0.05, 10, 10).deviation == pytest.approx(2)
    assert Membership(1.0, 0.0, 10, 10).deviation == math.inf
    assert Membership(0.0, 0.0, 10, 10).deviation == -math.inf
    assert Membership(0.5, 0.0, 10, 10).deviation == 0


def test_a_reference_takes_out_how_hard_an_example_is() -> None:
    hard = torch.arange(20.0)
    x = torch.stack([hard, hard], dim=1)
    x[:10, 0] -= 0.1  # members are a little easier for the model under attack
    order = torch.randperm(10, generator=seeded(0))
    x[:10], x[10:] = x[:10][order] + 10, x[10:] - 10  # and harder in themselves
    data = {"members": (x[:10], x[:10]), "non_members": (x[10:], x[10:])}
    plain = membership_attack(nn.Identity(), losses=given_losses, **data)
    helped = membership_attack(nn.Identity(), losses=given_losses, reference=nn.Flatten(), **data)
    assert plain.auroc < 0.5
    assert helped.auroc == 1


def test_an_attack_needs_two_of_each() -> None:
    with pytest.raises(ValueError, match="non_members must have at least 2 examples, got 1"):
        attack([1.0, 2.0], [3.0])


def test_attacks_leave_the_mode_of_a_model_as_it_was() -> None:
    model = nn.Dropout().train()
    data = torch.rand(5, 3)
    found = membership_attack(model, members=(data, data), non_members=(data, data))
    assert model.training
    assert found.auroc == 0.5  # no noise while under attack


# Learning again, and all together


def make_optimizer(model: nn.Module) -> RMSprop:
    optimizer = RMSprop(model.parameters(), lr=1e-2)
    keep_nonnegative(model, optimizer)
    return optimizer


def make_data(count: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(count, 12, generator=seeded(seed))
    return x, torch.eye(3)[torch.randint(3, (count,), generator=seeded(seed + 100))]


def test_an_audit_tells_who_has_seen_the_data() -> None:
    """Labels are random, so that knowing one means having seen it."""
    start = PFCBlock(12, 3, num_basis=40, solver=FISTA.paper(20), init_range=(0.0, 0.5), generator=seeded(0))
    retained, forgotten, test = (make_data(30, seed) for seed in (1, 2, 3))
    everything = tuple(torch.cat(pair) for pair in zip(retained, forgotten, strict=True))
    models = {}
    for name, data in (("saw it", everything), ("never saw it", retained)):
        models[name] = deepcopy(start)
        batches = Batches(*data, batch_size=15, seeds=0)
        list(fit(models[name], make_optimizer(models[name]), batches, SquaredErrors(), epochs=40))
    before = {name: fingerprint(model) for name, model in models.items()}
    relearning = Relearning(make_optimizer, loss=0.1, max_steps=60)
    found = audit(
        models,
        SquaredErrors(),
        retained=retained,
        forgotten=forgotten,
        test=test,
        non_members=test,
        relearning=relearning,
        batch_size=16,
    )
    saw, never = found.models["saw it"], found.models["never saw it"]
    assert saw.membership.deviation > 5
    assert abs(never.membership.deviation) < 3
    assert saw.forgotten > never.forgotten + 0.2
    assert min(saw.retained, never.retained) > max(saw.test, never.test) + 0.2
    assert saw.relearn_steps is not None
    assert never.relearn_steps is not None
    assert saw.relearn_steps < never.relearn_steps
    assert before == {name: fingerprint(model) for name, model in models.items()}
    quick = audit(models, SquaredErrors(), retained=retained, forgotten=forgotten, test=test, non_members=test)
    assert quick.models["saw it"].relearn_steps is None
    assert quick.models["saw it"].membership == saw.membership


def test_relearning_is_counted_in_steps() -> None:
    weight = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(weight.weight)
    x = torch.ones(1, 1)

    def steps(loss: float, max_steps: int) -> int | None:
        relearning = Relearning(lambda model: torch.optim.SGD(model.parameters(), lr=0.25), loss, max_steps)
        return steps_to_relearn(weight, [(x, x)], SquaredErrors(), relearning)

    # Each step halves the error of 1, so its square is 1, 1/4, 1/16, ...
    assert [steps(loss, 3) for loss in (1.0, 0.25, 1 / 16, 1 / 64, 1 / 256)] == [0, 1, 2, 3, None]
    assert float(weight.weight.detach()) == 0
