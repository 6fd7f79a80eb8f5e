"""selection/matching.py against the rule carried out literally with scipy's non-negative least
squares.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.rng import Rng
from pseudocore.selection.matching import matching_pursuit

Array = npt.NDArray[np.float64]


def atoms(n: int, d: int, seed: int = 0, shift: float = 0.3) -> Tensor:
    return Rng(seed)("atoms").normal(n, d, dtype=torch.float64) + shift


def pursue(g: Tensor, b: Tensor, num: int, ridge: float) -> tuple[list[int], Array]:
    index, weight = matching_pursuit(lambda i: g @ g[i[0]], g @ b, num, ridge=ridge)
    return index.tolist(), weight.numpy()


def solved(g: Array, b: Array, ridge: float) -> Array:
    """min ‖b − wg‖² + ridge ‖w‖², w ≥ 0."""
    stacked = np.concatenate([g.T, np.sqrt(ridge) * np.eye(len(g))])
    weight: Array = nnls(stacked, np.concatenate([b, np.zeros(len(g))]))[0]
    return weight


def literal(g: Array, b: Array, num: int, ridge: float) -> tuple[list[int], Array]:
    chosen, weight = list[int](), np.zeros(0)
    while len(chosen) < num:
        correlation = g @ (b - weight @ g[chosen])
        correlation[chosen] = -np.inf
        chosen.append(int(correlation.argmax()))
        weight = solved(g[chosen], b, ridge)
    return chosen, weight


@pytest.mark.parametrize(("n", "d", "num"), [(12, 30, 12), (40, 60, 25), (60, 20, 15), (30, 8, 6)])
@pytest.mark.parametrize("ridge", [0.0, 0.1, 5.0])
@pytest.mark.parametrize("shift", [0.0, 0.3, 2.0])
def test_it_is_the_rule(n: int, d: int, num: int, ridge: float, shift: float) -> None:
    for seed in range(3):
        g = atoms(n, d, seed, shift)
        b = g.sum(0)
        chosen, weight = pursue(g, b, num, ridge)
        expected, of_expected = literal(g.numpy(), b.numpy(), num, ridge)
        assert chosen == expected
        np.testing.assert_allclose(weight, of_expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_weights_solve_the_dense_problem_where_some_are_zero(ridge: float) -> None:
    """All atoms are taken and many are useless: opposite ones, more than dimensions."""
    for seed in range(5):
        g = torch.cat([atoms(12, 9, seed, 0.0), -atoms(8, 9, seed + 50, 0.0)])
        b = atoms(1, 9, seed + 100)[0]
        chosen, weight = pursue(g, b, 20, ridge)
        assert sorted(chosen) == list(range(20))
        assert (weight == 0).any()
        best = solved(g.numpy()[chosen], b.numpy(), ridge)
        assert _loss(g.numpy()[chosen], b.numpy(), weight, ridge) == pytest.approx(
            _loss(g.numpy()[chosen], b.numpy(), best, ridge), rel=1e-9, abs=1e-12
        )
        if ridge > 0:  # without, the solution need not be the only one
            np.testing.assert_allclose(weight, best, rtol=1e-7, atol=1e-9)


def test_the_more_atoms_the_nearer() -> None:
    g = atoms(50, 30)
    b = g.sum(0)
    losses = [
        _loss(g.numpy()[chosen], b.numpy(), weight, 0.0)
        for chosen, weight in (pursue(g, b, num, 0.0) for num in range(1, 20))
    ]
    assert all(later < earlier for earlier, later in pairwise(losses))


def test_a_target_that_is_an_atom_needs_that_one() -> None:
    g = torch.nn.functional.normalize(atoms(20, 40, shift=0.0), dim=1)
    chosen, weight = pursue(g, 3 * g[7], 3, 0.0)
    assert chosen[0] == 7
    np.testing.assert_allclose(weight, [3, 0, 0], atol=1e-9)


def test_single_precision_is_near_double() -> None:
    g = atoms(80, 40)
    b = g.sum(0)
    _, weight = pursue(g, b, 10, 0.5)
    chosen, of_single = matching_pursuit(
        lambda i: g.float() @ g[i[0]].float(), (g @ b).float(), 10, ridge=0.5
    )
    assert chosen.tolist() == pursue(g, b, 10, 0.5)[0]
    np.testing.assert_allclose(of_single.numpy(), weight, rtol=1e-3)


# --- corners


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_duplicates_are_distinct_atoms(ridge: float) -> None:
    g = atoms(6, 10)
    chosen, weight = pursue(torch.cat([g, g]), g.sum(0), 12, ridge)
    assert sorted(chosen) == list(range(12))
    assert (weight >= 0).all()
    whole = torch.cat([g, g]).numpy()[chosen]
    best = _loss(whole, g.sum(0).numpy(), solved(whole, g.sum(0).numpy(), ridge), ridge)
    assert _loss(whole, g.sum(0).numpy(), weight, ridge) == pytest.approx(best, rel=1e-6, abs=1e-9)


def test_nothing_to_match() -> None:
    chosen, weight = pursue(
        torch.zeros(5, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64), 3, 0.0
    )
    assert chosen == [0, 1, 2]
    assert weight.tolist() == [0, 0, 0]


def test_a_target_on_the_other_side_gets_no_weight() -> None:
    g = atoms(5, 4, shift=0.0).abs()
    chosen, weight = pursue(g, -g.sum(0), 3, 0.1)
    assert len(set(chosen)) == 3
    assert weight.tolist() == [0, 0, 0]


@pytest.mark.parametrize("num", [-1, 0, 6])
def test_impossible_numbers_are_refused(num: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"{num} of 5 points were asked for; the number must lie in 1\.\.5"
    ):
        pursue(atoms(5, 2), atoms(5, 2)[0], num, 0.1)


@pytest.mark.parametrize("ridge", [-1.0, float("nan")])
def test_impossible_ridges_are_refused(ridge: float) -> None:
    with pytest.raises(ConfigError, match=r"ridge = .* must be at least 0"):
        pursue(atoms(5, 2), atoms(5, 2)[0], 2, ridge)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", ["atom", "target"])
def test_gradients_that_are_not_numbers_are_refused(bad: float, where: str) -> None:
    g, b = atoms(5, 2), atoms(5, 2)[0]
    (g[3] if where == "atom" else b)[1] = bad
    with pytest.raises(DataError, match="NaN or infinite"):
        pursue(g, b, 5, 0.1)


def _loss(g: Array, b: Array, weight: Array, ridge: float) -> float:
    return float(((b - weight @ g) ** 2).sum() + ridge * (weight**2).sum())
