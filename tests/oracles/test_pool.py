"""objectives/pool.py: who is trained, how, and what becomes of the old."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.methods.bayes.vbpc import VBPC
from pseudocore.methods.condense.ld import LabelDistillationRidge
from pseudocore.models.dense import MLP
from pseudocore.objectives import pool
from pseudocore.objectives.last_layer_gaussian import mean_squared_error
from pseudocore.objectives.pool import Pool

MakeProblem = Callable[..., Problem]

WIDTH, STEP_SIZE = 5, 0.01


@pytest.fixture
def problem(make_problem: MakeProblem) -> Problem:
    return make_problem(MLP(width=WIDTH, depth=1))


@pytest.fixture
def points(problem: Problem) -> tuple[Tensor, Tensor]:
    """Inputs and real-valued targets to train on."""
    x, _ = problem.batch(torch.arange(7))
    return x, Rng(1).normal(7, problem.num_classes, dtype=torch.float64)


def module(theta: Tensor) -> nn.Sequential:
    """The same network built by hand, its parameters filled in theta's documented order."""
    network = nn.Sequential(nn.Linear(6, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3)).double()
    nn.utils.vector_to_parameters(theta.clone(), network.parameters())
    return network


def advance(
    held: Pool,
    place: int,
    problem: Problem,
    points: tuple[Tensor, Tensor],
    step: int = 0,
    max_age: int = 100,
) -> Pool:
    return pool.advance(
        held,
        torch.tensor([place]),
        problem,
        *points,
        Rng(2)(step),
        step_size=STEP_SIZE,
        max_age=max_age,
    )


@pytest.mark.parametrize(
    ("size", "max_age", "ages"),
    [
        (4, 100, [0, 25, 50, 75]),
        (3, 3, [0, 1, 2]),
        (4, 2, [0, 0, 1, 1]),
        (1, 50, [0]),
        (3, 10, [0, 3, 6]),
        (3, 1, [0, 0, 0]),
    ],
)
def test_ages_start_staggered(problem: Problem, size: int, max_age: int, ages: list[int]) -> None:
    held = pool.fill(problem, Rng(0), size=size, max_age=max_age)
    assert held.age.tolist() == ages
    assert len(torch.unique(held.theta, dim=0)) == size
    assert all(part.abs().sum() == 0 for part in held.moments)


def test_every_network_is_picked() -> None:
    held = Pool(torch.zeros(5, 1), None, torch.zeros(5, dtype=torch.int64))  # type: ignore[arg-type]
    places = [int(pool.pick(held, Rng(0)(step))) for step in range(500)]
    counts = torch.bincount(torch.tensor(places), minlength=5)
    assert len(counts) == 5
    assert (
        (counts - 100).abs() < 4 * math.sqrt(500 * 0.2 * 0.8)
    ).all()  # four standard deviations of a fair draw


def test_training_is_torchs_adam_on_the_mean_squared_error(
    problem: Problem, points: tuple[Tensor, Tensor]
) -> None:
    held = pool.fill(problem, Rng(0), size=3, max_age=100)
    network = module(held.theta[1])
    optimiser = torch.optim.Adam(network.parameters(), lr=STEP_SIZE)
    for step in range(5):
        optimiser.zero_grad()
        errors = network(points[0]) - points[1]
        (errors.square().sum() / 2 / len(errors)).backward()
        optimiser.step()
        held = advance(held, 1, problem, points, step)
        theirs = nn.utils.parameters_to_vector(network.parameters()).detach()
        assert (held.theta[1] - theirs).abs().max() < 1e-12
    assert held.moments.steps.flatten().tolist() == [0.0, 5.0, 0.0]


@pytest.mark.parametrize("method", [VBPC, LabelDistillationRidge])
def test_methods_train_their_pool_on_the_points_after_the_step(
    problem: Problem, method: type[VBPC] | type[LabelDistillationRidge]
) -> None:
    """By torch's Adam, with targets (and images) that the step moves far."""
    made = method(
        per_class=2, pool_size=1, pool_lr=STEP_SIZE, batch_size=9, label_lr=0.5, weighting="ones"
    )
    state = made.init(problem, Rng(4))
    after, _ = made.step(problem, state, Rng(4)("step"))
    assert (after.learned.y - state.learned.y).abs().max() > 0.4
    x = after.learned.x if method is VBPC else problem.batch(state.indices)[0]
    network = module(state.pool.theta[0])
    errors = network(x) - after.learned.y
    (errors.square().sum() / 2 / len(errors)).backward()
    torch.optim.Adam(network.parameters(), lr=STEP_SIZE).step()
    theirs = nn.utils.parameters_to_vector(network.parameters()).detach()
    torch.testing.assert_close(after.pool.theta[0], theirs, rtol=0, atol=1e-9)


def test_only_the_picked_network_changes(problem: Problem, points: tuple[Tensor, Tensor]) -> None:
    before = pool.fill(problem, Rng(0), size=4, max_age=100)
    after = advance(before, 2, problem, points)
    others = [0, 1, 3]
    for old, new in (
        (before.theta, after.theta),
        *zip(before.moments, after.moments, strict=True),
        (before.age, after.age),
    ):
        assert torch.equal(old[others], new[others])
        assert not torch.equal(old[2], new[2])
    assert after.age[2] == before.age[2] + 1


def test_the_old_are_replaced_by_the_fresh(problem: Problem, points: tuple[Tensor, Tensor]) -> None:
    held = pool.fill(problem, Rng(0), size=2, max_age=4)  # ages 0 and 2
    once = advance(held, 1, problem, points, step=0, max_age=4)
    twice = advance(once, 1, problem, points, step=1, max_age=4)
    assert (once.age.tolist(), twice.age.tolist()) == ([0, 3], [0, 0])
    assert (once.theta[1] - held.theta[1]).abs().max() < 10 * STEP_SIZE
    fresh = twice.theta[1]
    assert (fresh - once.theta[1]).abs().max() > 10 * STEP_SIZE
    assert not any((fresh == row).any() for row in held.theta)
    first_layer, head = fresh[: 7 * WIDTH], fresh[7 * WIDTH :]
    assert first_layer.abs().max() <= 1 / math.sqrt(6)
    assert head.abs().max() <= 1 / math.sqrt(WIDTH)
    assert all((part[1] == 0).all() for part in twice.moments)


def test_two_fresh_networks_differ(problem: Problem, points: tuple[Tensor, Tensor]) -> None:
    held = pool.fill(problem, Rng(0), size=2, max_age=1)
    for step, place in enumerate((0, 1)):
        held = advance(held, place, problem, points, step, max_age=1)
    assert not torch.equal(held.theta[0], held.theta[1])


def test_the_pool_always_holds_all_ages(make_problem: MakeProblem) -> None:
    problem = make_problem()
    points = problem.batch(torch.arange(3))[0], torch.zeros(3, 3, dtype=torch.float64)
    size, max_age = 10, 20
    held = pool.fill(problem, Rng(0), size=size, max_age=max_age)
    ranges, young = [], []
    for step in range(600):
        held = advance(held, int(pool.pick(held, Rng(0)(step))), problem, points, step, max_age)
        assert held.age.min() >= 0
        assert held.age.max() < max_age
        ranges.append(float(held.age.max() - held.age.min()))
        young.append(float((held.age < max_age / 2).double().mean()))
    assert min(ranges) >= max_age / 3
    assert abs(sum(young) / len(young) - 0.5) < 0.1


def test_squared_error_is_summed_over_classes_and_averaged_over_weighted_points() -> None:
    logits, y, weight = (
        torch.tensor([[1.0, 2.0], [0.0, 3.0]]),
        torch.tensor([[0.0, 0.0], [0.0, 1.0]]),
        torch.tensor([3.0, 1.0]),
    )
    assert float(mean_squared_error(logits, y)) == pytest.approx((2.5 + 2.0) / 2)
    assert float(mean_squared_error(logits, y, weight)) == pytest.approx((3 * 2.5 + 2.0) / 4)
