"""selection/facility.py against the greedy rule carried out literally and against all subsets."""

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.rng import Rng
from pseudocore.selection import facility
from pseudocore.selection.facility import (
    Rows,
    coverage,
    facility_location,
    from_distance,
    from_matrix,
    objective,
)

Array = npt.NDArray[np.float64]


def points(n: int, d: int, seed: int = 0) -> Tensor:
    """Whole numbers, whose distances along the axes are exact: a tie is a tie, however sums are
    ordered.
    """
    return Rng(seed)("points").integers(50, n, d).double()


def between(x: Tensor) -> facility.Distance:
    return lambda i, j: torch.cdist(x[i], x[j], p=1)


def similarities(x: Tensor) -> Tensor:
    distance = torch.cdist(x, x, p=1)
    return distance.max() - distance


def value(s: Array, chosen: list[int]) -> float:
    return float(s[chosen].max(0).sum()) if chosen else 0.0


def literal(s: Array, num: int) -> list[int]:
    """Every candidate tried at every step; the first of the best."""
    chosen: list[int] = []
    while len(chosen) < num:
        left = [j for j in range(len(s)) if j not in chosen]
        chosen.append(max(left, key=lambda j: value(s, [*chosen, j])))
    return chosen


# --- the rule


@pytest.mark.parametrize(("n", "num"), [(10, 1), (10, 10), (23, 7), (40, 15), (60, 30)])
@pytest.mark.parametrize("d", [1, 3, 40])
@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_lazy_greedy_is_greedy(
    n: int, num: int, d: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facility, "GLANCE", {"cpu": at_once * n})
    s = similarities(points(n, d))
    assert facility_location(from_matrix(s), n, num).tolist() == literal(s.numpy(), num)


@pytest.mark.parametrize(("n", "num"), [(10, 3), (31, 12), (60, 20)])
def test_stochastic_greedy_with_a_full_sample_is_greedy(n: int, num: int) -> None:
    s = similarities(points(n, 3))
    chosen = facility_location(from_matrix(s), n, num, epsilon=float(np.exp(-num)), rng=Rng(0))
    assert chosen.tolist() == literal(s.numpy(), num)


@pytest.mark.parametrize(("n", "num"), [(10, 3), (31, 12), (60, 20)])
@pytest.mark.parametrize("entries", [0, 10**6])
def test_blocks_of_distances_are_as_good_as_a_matrix(
    n: int, num: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facility, "ENTRIES", entries)
    monkeypatch.setattr(facility, "BLOCK", {"cpu": 3 * n})
    x = points(n, 3)
    s = similarities(x)
    rows = from_distance(between(x), n, float(s.max()))
    assert facility_location(rows, n, num).tolist() == literal(s.numpy(), num)
    assert objective(rows, torch.tensor(literal(s.numpy(), num))) == pytest.approx(
        value(s.numpy(), literal(s.numpy(), num)), rel=1e-9
    )


def test_no_block_is_as_large_as_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facility, "ENTRIES", 0)
    monkeypatch.setattr(facility, "BLOCK", {"cpu": 400})
    x, sizes = points(100, 3), list[int]()

    def distance(i: Tensor, j: Tensor | slice) -> Tensor:
        sizes.append(len(i) * len(x[j]))
        return between(x)(i, j)

    facility_location(from_distance(distance, 100, 150.0), 100, 5)
    assert max(sizes) <= 400


@pytest.mark.parametrize("entries", [0, 10**6])
def test_references_are_all_that_is_covered(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facility, "ENTRIES", entries)
    monkeypatch.setattr(facility, "BLOCK", {"cpu": 30})
    x, references = points(40, 3), torch.tensor([3, 8, 9, 20, 31, 39])
    s = similarities(x)
    rows = from_distance(between(x), 40, float(s.max()), references=references)
    assert facility_location(rows, 40, 4).tolist() == literal(s.numpy()[:, references.numpy()], 4)


def test_a_random_part_of_the_candidates_is_what_a_choice_is_made_of() -> None:
    n, num, epsilon = 60, 6, 0.5
    s = similarities(points(n, 3))
    looked_at: list[set[int]] = []

    def take(index: Tensor) -> Tensor:
        looked_at.append(set(index.tolist()))
        return s.index_select(0, index)

    size = int(np.ceil(n / num * np.log(1 / epsilon)))
    facility_location(Rows(take, 600), n, 1, epsilon=0.9, rng=Rng(0))
    assert len(set().union(*looked_at) - {0}) <= int(np.ceil(n * np.log(1 / 0.9)))
    chosen = [
        facility_location(from_matrix(s), n, num, epsilon=epsilon, rng=Rng(seed))
        for seed in range(8)
    ]
    assert len({tuple(one.tolist()) for one in chosen}) > 1
    assert size < n
    assert (
        chosen[0].tolist()
        == facility_location(from_matrix(s), n, num, epsilon=epsilon, rng=Rng(0)).tolist()
    )


def test_a_smaller_budget_is_a_beginning_of_a_larger_one() -> None:
    s = similarities(points(40, 4))
    assert (
        facility_location(from_matrix(s), 40, 25).tolist()[:9]
        == facility_location(from_matrix(s), 40, 9).tolist()
    )


# --- the promises


@pytest.mark.parametrize(("n", "num"), [(9, 2), (11, 3), (12, 4)])
def test_at_least_1_minus_1_over_e_of_the_optimum(n: int, num: int) -> None:
    for seed in range(6):
        s = (
            Rng(seed).uniform(n, n, dtype=torch.float64).pow(3)
        )  # no metric, not symmetric: the bound asks for neither
        best = max(value(s.numpy(), list(subset)) for subset in combinations(range(n), num))
        reached = value(s.numpy(), facility_location(from_matrix(s), n, num).tolist())
        assert (1 - 1 / np.e) * best <= reached <= best


def test_stochastic_greedy_loses_little() -> None:
    s = similarities(points(400, 3))
    rows = from_matrix(s)
    whole = objective(rows, facility_location(rows, 400, 20))
    part = np.mean(
        [
            objective(rows, facility_location(rows, 400, 20, epsilon=0.1, rng=Rng(seed)))
            for seed in range(5)
        ]
    )
    by_chance = np.mean([objective(rows, Rng(seed).permutation(400)[:20]) for seed in range(5)])
    assert part > 0.99 * whole
    assert part > by_chance


def test_references_lose_little() -> None:
    x = points(600, 4)
    s = similarities(x)
    exact = objective(from_matrix(s), facility_location(from_matrix(s), 600, 30))
    references = Rng(0).permutation(600)[:200]
    part = from_distance(between(x), 600, float(s.max()), references=references)
    assert objective(from_matrix(s), facility_location(part, 600, 30)) > 0.98 * exact


def test_everyone_belongs_to_the_nearest_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facility, "GLANCE", {"cpu": 120})
    s = similarities(points(60, 3))
    chosen = facility_location(from_matrix(s), 60, 9)
    best, place = coverage(from_matrix(s), chosen)
    assert torch.equal(best, s[chosen].max(0).values)
    assert place.tolist() == s.numpy()[chosen.numpy()].argmax(0).tolist()
    assert torch.bincount(place, minlength=9).sum() == 60


# --- corners


def test_all_of_them() -> None:
    assert sorted(
        facility_location(from_matrix(similarities(points(13, 3))), 13, 13).tolist()
    ) == list(range(13))


def test_one_point() -> None:
    assert facility_location(from_matrix(torch.ones(1, 1)), 1, 1).tolist() == [0]


def test_duplicates_are_taken_once_each_and_the_first_first() -> None:
    x = points(8, 3)
    chosen = facility_location(from_matrix(similarities(torch.cat([x, x]))), 16, 16).tolist()
    assert sorted(chosen) == list(range(16))
    assert sorted(chosen[:8]) == list(range(8))
    assert chosen[8:] == list(range(8, 16))  # nothing is gained any more, so in order


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_constant_features_are_distinct_points(epsilon: float) -> None:
    chosen = facility_location(
        from_matrix(torch.ones(9, 9)), 9, 9, epsilon=epsilon, rng=Rng(0)
    ).tolist()
    assert sorted(chosen) == list(range(9))
    assert epsilon > 0 or chosen == list(range(9))


def test_similarities_are_left_as_they_were() -> None:
    s = similarities(points(12, 3))
    before = s.clone()
    facility_location(from_matrix(s), 12, 5)
    assert torch.equal(s, before)


@pytest.mark.parametrize("num", [-1, 0, 6])
def test_impossible_numbers_are_refused(num: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"{num} of 5 points were asked for; the number must lie in 1\.\.5"
    ):
        facility_location(from_matrix(torch.ones(5, 5)), 5, num)


@pytest.mark.parametrize("epsilon", [-0.1, 1.0, 2.0])
def test_impossible_shares_are_refused(epsilon: float) -> None:
    with pytest.raises(ConfigError, match=r"epsilon = .* must lie in \[0, 1\)"):
        facility_location(from_matrix(torch.ones(5, 5)), 5, 2, epsilon=epsilon, rng=Rng(0))


def test_chance_needs_a_stream() -> None:
    with pytest.raises(ConfigError, match="needs an rng"):
        facility_location(from_matrix(torch.ones(5, 5)), 5, 2, epsilon=0.1)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_similarities_that_are_not_numbers_are_refused(bad: float) -> None:
    s = torch.ones(5, 5)
    s[3, 1] = bad
    with pytest.raises(DataError, match="NaN or infinite"):
        facility_location(from_matrix(s), 5, 2)


@pytest.mark.gpu
def test_the_same_answer_on_the_gpu() -> None:
    s = similarities(points(500, 16))
    chosen = facility_location(from_matrix(s.cuda()), 500, 100, device="cuda")
    assert chosen.is_cuda
    assert chosen.tolist() == facility_location(from_matrix(s), 500, 100).tolist()
