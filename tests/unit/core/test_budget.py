"""core/budget.py: how a total is split over classes, and what points weigh, against brute force."""

import re
from itertools import product

import pytest
import torch

from pseudocore.core.budget import Budget, evenly, mass, proportionally, with_budget
from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.testing import small_problem


def random_sizes(number: int) -> list[int]:
    rng = Rng(number)
    return (1 + rng("sizes").integers(9, 2 + number % 3)).tolist()


@pytest.mark.parametrize("number", range(12))
def test_totals_are_split_as_nearly_as_whole_numbers_allow(number: int) -> None:
    """Against every split that gives each class at least one point and at most what it has."""
    sizes = random_sizes(number)
    splits = list(product(*(range(1, size + 1) for size in sizes)))
    for total in range(len(sizes), sum(sizes) + 1):
        possible = [split for split in splits if sum(split) == total]
        wanted = [total * size / sum(sizes) for size in sizes]
        equal = [total / len(sizes)] * len(sizes)
        for found, target in (
            (proportionally(total, sizes), wanted),
            (evenly(total, sizes), equal),
        ):
            best = min(distance(split, target) for split in possible)
            assert tuple(found) in possible
            assert distance(found, target) == pytest.approx(best)


def distance(split: tuple[int, ...] | list[int], target: list[float]) -> float:
    return sum((own - one) ** 2 for own, one in zip(split, target, strict=True))


def test_budgets() -> None:
    problem = small_problem(imbalanced=True)  # 3 to 12 of a class, 75 in all
    assert Budget().counts(problem) == [3, 4, 5, 6, 7, 8, 9, 10, 10, 10]
    assert Budget(per_class=2).counts(problem) == [2] * 10
    assert Budget(points=25).counts(problem) == [1, 1, 2, 2, 2, 3, 3, 3, 4, 4]
    assert Budget(points=25, allocate="equal").counts(problem) == [2] * 5 + [3] * 5
    assert Budget(points=55, allocate="equal").counts(problem) == [3, 4, 5, 6, 6, 6, 6, 6, 6, 7]
    assert sum(Budget(fraction=0.5).counts(problem)) == 38
    assert Budget(per_class=4, allocate="proportional").counts(problem) == Budget(points=40).counts(
        problem
    )
    assert Budget(points=1000).counts(problem) == problem.data.class_counts.tolist()


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        (Budget(per_class=3), None),
        (Budget(points=75), None),
        (Budget(), "10 points per class .* class 0 of 'few-digits' has only 3: .* 6 other classes"),
        (Budget(points=76), "76 points were asked for and 'few-digits' gives 75"),
    ],
)
def test_says_where_the_training_set_is_too_small(budget: Budget, sentence: str | None) -> None:
    said = budget.shortfall(small_problem(imbalanced=True))
    assert said is None if sentence is None else re.match(sentence, str(said))


def test_two_budgets_are_refused() -> None:
    with pytest.raises(ConfigError, match="fraction and points exclude each other") as caught:
        Budget(points=3, fraction=0.1)
    assert caught.value.code == "two-budgets"
    with pytest.raises(ConfigError, match="9 is less than one point for each of the 10") as caught:
        Budget(points=9).counts(small_problem())
    assert caught.value.code == "fewer-points-than-classes"


def test_one_budget_replaces_another() -> None:
    preset = {"per_class": 10, "num_steps": 3}
    assert with_budget(preset, {"points": 25}) == {"num_steps": 3, "points": 25}
    assert with_budget(preset, {"allocate": "equal"}) == {**preset, "allocate": "equal"}


def test_mass() -> None:
    counts = torch.tensor([6, 3, 1])
    assert mass(torch.tensor([0, 0, 1, 2]), counts).tolist() == [3, 3, 3, 1]
    without = mass(torch.tensor([0, 0, 1]), counts)  # the third class's example goes to all
    assert without.tolist() == pytest.approx([10 / 3] * 3)
    whole = torch.arange(3).repeat_interleave(counts)
    assert mass(whole, counts).tolist() == [1.0] * 10
