"""selection/greedy.py against the rules carried out literally and what they promise."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.rng import Rng
from pseudocore.selection import greedy

Array = npt.NDArray[np.float64]
Choose = Callable[[torch.Tensor, int], torch.Tensor]

both = pytest.mark.parametrize("choose", [greedy.herding, greedy.k_center])
sizes = pytest.mark.parametrize(
    ("n", "dim"), [(10, 1), (10, 3), (17, 40), (33, 5), (60, 2), (60, 12)]
)


def points(n: int, dim: int, seed: int = 0) -> torch.Tensor:
    """Skewed and far from the origin, so that neither mean nor scale is special."""
    return Rng(seed)("points").normal(n, dim, dtype=torch.float64).exp() + 3


def literal_herding(x: Array, num: int, sign: int = 1) -> list[int]:
    """Every candidate's running mean, formed and compared; sign −1 takes the worst one, a mistake
    known from elsewhere.
    """
    chosen: list[int] = []
    while len(chosen) < num:
        means = (x + x[chosen].sum(0)) / (len(chosen) + 1)
        errors = sign * np.linalg.norm(means - x.mean(0), axis=1)
        errors[chosen] = np.inf
        chosen.append(int(errors.argmin()))
    return chosen


def literal_k_center(x: Array, num: int, first: int | None = None) -> list[int]:
    """From the whole matrix of distances."""
    distance = np.linalg.norm(x[:, None] - x[None], axis=2)
    chosen = [int(np.linalg.norm(x - x.mean(0), axis=1).argmin()) if first is None else first]
    while len(chosen) < num:
        gaps = {i: distance[i, chosen].min() for i in range(len(x)) if i not in chosen}
        chosen.append(max(gaps, key=gaps.__getitem__))
    return chosen


def mean_error(x: Array, chosen: list[int]) -> float:
    return float(np.linalg.norm(x[chosen].mean(0) - x.mean(0)))


def radius(x: Array, chosen: list[int]) -> float:
    return float(np.linalg.norm(x[:, None] - x[None, chosen], axis=2).min(1).max())


@pytest.fixture(params=[None, 7], ids=["one-block", "blocks"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with everything in one block, once with a row or a few in each."""
    if request.param is not None:
        monkeypatch.setattr(greedy, "BLOCK", request.param)


# --- the rules


@sizes
@pytest.mark.usefixtures("block")
def test_herding_is_the_literal_rule(n: int, dim: int) -> None:
    for seed in range(3):
        x = points(n, dim, seed)
        assert greedy.herding(x, n // 2).tolist() == literal_herding(x.numpy(), n // 2)


@sizes
@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("first", [None, 0, 7])
def test_k_center_is_the_literal_rule(n: int, dim: int, first: int | None) -> None:
    for seed in range(3):
        x = points(n, dim, seed)
        assert greedy.k_center(x, n // 2, first).tolist() == literal_k_center(
            x.numpy(), n // 2, first
        )


def test_by_hand() -> None:
    x = torch.tensor(
        [[0.0], [1.0], [2.0], [9.0]]
    )  # mean 3: 2 alone; with 1, 0, 9 the mean is 1.5, 1, 5.5; then 4 with 9 or 1 with 0
    assert greedy.herding(x, 3).tolist() == [2, 1, 3]
    assert greedy.k_center(x, 3).tolist() == [2, 3, 0]
    assert greedy.k_center(x, 4, first=1).tolist() == [1, 3, 0, 2]


@both
def test_a_smaller_budget_is_a_beginning_of_a_larger_one(choose: Choose) -> None:
    x = points(40, 4)
    assert choose(x, 9).tolist() == choose(x, 25).tolist()[:9]


# --- the promises


def test_herding_follows_the_mean_far_closer_than_chance() -> None:
    """50 of 2,000; with the argmax instead it would be worse than chance."""
    for seed in range(3):
        x = Rng(seed)("cloud").normal(2000, 8, dtype=torch.float64)
        by_chance = np.mean(
            [
                mean_error(x.numpy(), Rng(seed)(draw).permutation(2000)[:50].tolist())
                for draw in range(20)
            ]
        )
        assert mean_error(x.numpy(), greedy.herding(x, 50).tolist()) <= 0.2 * by_chance
        assert mean_error(x.numpy(), literal_herding(x.numpy(), 50, sign=-1)) > by_chance


@pytest.mark.parametrize(("n", "num"), [(9, 1), (10, 2), (11, 3), (12, 4)])
def test_k_center_covers_within_twice_the_optimum(n: int, num: int) -> None:
    for seed in range(5):
        x = points(n, 2, seed)
        best = min(radius(x.numpy(), list(subset)) for subset in combinations(range(n), num))
        assert best <= radius(x.numpy(), greedy.k_center(x, num).tolist()) <= 2 * best


# --- corners


@both
def test_all_of_them(choose: Choose) -> None:
    assert sorted(choose(points(13, 3), 13).tolist()) == list(range(13))


@both
def test_one_row(choose: Choose) -> None:
    assert choose(points(1, 3), 1).tolist() == [0]


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_features_are_taken_in_order(choose: Choose, dtype: torch.dtype) -> None:
    assert choose(torch.full((9, 5), 0.5, dtype=dtype), 9).tolist() == list(range(9))


@both
@pytest.mark.usefixtures("block")
def test_duplicates_are_taken_once_each_and_the_first_first(choose: Choose) -> None:
    x = points(8, 3)
    chosen = choose(torch.cat([x, x]), 16).tolist()
    assert sorted(chosen) == list(range(16))
    assert all(chosen.index(row) < chosen.index(row + 8) for row in range(8))


def test_k_center_takes_every_distinct_row_before_a_duplicate() -> None:
    x = points(6, 3)
    assert sorted(greedy.k_center(torch.cat([x, x, x]), 6).tolist()) == list(range(6))


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.uint8])
def test_other_types_are_judged_in_single_precision(choose: Choose, dtype: torch.dtype) -> None:
    x = (200 * Rng(0).uniform(30, 600)).to(dtype)  # squared norms above what float16 can hold
    assert choose(x, 6).tolist() == choose(x.double(), 6).tolist()


@both
def test_features_are_left_as_they_were(choose: Choose) -> None:
    x = points(12, 3)
    before = x.clone()
    choose(x, 5)
    assert torch.equal(x, before)


@both
def test_strides_and_gradients_do_not_matter(choose: Choose) -> None:
    x = points(12, 3)
    assert choose(x.t().contiguous().t().requires_grad_(), 5).tolist() == choose(x, 5).tolist()


@both
@pytest.mark.parametrize("num", [-1, 0, 6])
def test_impossible_numbers_are_refused(choose: Choose, num: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"{num} of 5 points were asked for; the number must lie in 1\.\.5"
    ):
        choose(points(5, 2), num)


@both
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_features_that_are_not_numbers_are_refused(choose: Choose, bad: float) -> None:
    x = points(5, 2)
    x[3, 1] = bad
    with pytest.raises(DataError, match="NaN or infinite"):
        choose(x, 2)


@both
@pytest.mark.parametrize("shape", [(5,), (5, 2, 2), (5, 0)])
def test_features_that_are_no_matrix_are_refused(choose: Choose, shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"must be a matrix \(n, d\)"):
        choose(torch.zeros(shape), 2)


@pytest.mark.parametrize("first", [-1, 5])
def test_a_first_row_that_does_not_exist_is_refused(first: int) -> None:
    with pytest.raises(ConfigError, match=f"row {first}"):
        greedy.k_center(points(5, 2), 2, first)


@pytest.mark.gpu
@both
def test_the_same_answer_on_the_gpu(choose: Choose) -> None:
    x = points(500, 16)
    chosen = choose(x.cuda(), 100)
    assert chosen.is_cuda
    assert chosen.tolist() == choose(x, 100).tolist()
