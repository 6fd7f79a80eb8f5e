"""Slices of a loss that is known everywhere: a quadratic in theta."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.evaluation.landscape import PLACES, Points, along

X = Rng(0)("x").normal(10, 3, dtype=torch.float64)
Y = Rng(0)("y").normal(10, dtype=torch.float64)
WEIGHT = 0.5 + Rng(0)("weight").uniform(10, dtype=torch.float64)


def log_likelihood(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return -0.5 * (y - x @ theta).square()


def batches(size: int) -> Points:
    def points() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for part in torch.arange(10).split(size):
            yield X[part], Y[part], WEIGHT[part]

    return points


@pytest.mark.parametrize("size", [3, 10])
def test_a_quadratic_slice_is_exact(size: int) -> None:
    """L(α) = L(0) + α L'(0) + ½ α² dᵀHd with H = Σ w x xᵀ / Σ w."""
    first, second = Rng(1).normal(2, 3, dtype=torch.float64)
    direction, share = second - first, WEIGHT / WEIGHT.sum()
    curvature = float((share * (X @ direction).square()).sum())
    slope = float(-(share * (Y - X @ first) * (X @ direction)).sum())
    start = float(0.5 * (share * (Y - X @ first).square()).sum())
    got = along(log_likelihood, first, second, {"data": batches(size)})
    assert got.at == PLACES
    assert got.at[5] == 0
    assert got.at[15] == 1
    expected = [start + at * slope + 0.5 * at**2 * curvature for at in PLACES]
    assert got.losses["data"] == pytest.approx(expected, rel=1e-12)


def test_sets_are_told_apart_and_places_can_be_given() -> None:
    first, second = Rng(1).normal(2, 3, dtype=torch.float64)
    got = along(
        log_likelihood, first, second, {"all": batches(10), "again": batches(4)}, at=(0.0, 2.0)
    )
    assert list(got.losses) == ["all", "again"]
    assert got.losses["all"] == pytest.approx(got.losses["again"], rel=1e-12)
    assert len(got.losses["all"]) == 2


def test_networks_of_two_sizes_have_no_line() -> None:
    with pytest.raises(ConfigError, match=r"not of \(3,\) and \(4,\) parameters"):
        along(log_likelihood, torch.zeros(3), torch.zeros(4), {})
