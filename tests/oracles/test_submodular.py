"""Submodular objectives by their definitions, greedy against all subsets, and `pseudocore.select`."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch

import pseudocore as pc
from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.rng import Rng
from pseudocore.selection import kernels
from pseudocore.selection.arrays import OBJECTIVES
from pseudocore.selection.submodular import (
    FacilityLocation,
    FeatureBased,
    GraphCut,
    LogDet,
    Objective,
    maximise,
)

N, NOISE, DIVERSITY = 9, 0.3, 0.4
X = Rng(0)("x").normal(N, 2, dtype=torch.float64)
S = kernels.gaussian(X, X, 1.0)
PHI = X - X.min(0).values


def facility(chosen: list[int]) -> float:
    return float(S[:, chosen].max(1).values.sum())


def graph_cut(chosen: list[int]) -> float:
    return float(S[:, chosen].sum() - DIVERSITY * S[chosen][:, chosen].sum())


def log_det(chosen: list[int]) -> float:
    inner = torch.eye(len(chosen), dtype=S.dtype) + S[chosen][:, chosen] / NOISE
    return float(torch.linalg.slogdet(inner)[1])


def of_features(chosen: list[int]) -> float:
    return float(PHI[chosen].sum(0).sqrt().sum())


def by_logs(chosen: list[int]) -> float:
    return float(PHI[chosen].sum(0).log1p().sum())


CASES: list[tuple[Callable[[], Objective], Callable[[list[int]], float]]] = [
    (lambda: FacilityLocation(S), facility),
    (lambda: GraphCut(S, DIVERSITY), graph_cut),
    (lambda: LogDet(S, NOISE), log_det),
    (lambda: FeatureBased(PHI, "sqrt"), of_features),
    (lambda: FeatureBased(PHI, "log"), by_logs),
]
every_objective = pytest.mark.parametrize(
    ("make", "value"), CASES, ids=["facility", "cut", "log-det", "sqrt", "log"]
)


@every_objective
def test_greedy_is_the_best_next_point_and_within_its_bound_of_the_best_set(
    make: Callable[[], Objective], value: Callable[[list[int]], float]
) -> None:
    chosen, gains = maximise(make(), 4)
    taken: list[int] = []
    for index, gain in zip(chosen.tolist(), gains.tolist(), strict=True):
        before = value(taken) if taken else 0.0
        added = {j: value([*taken, j]) - before for j in range(N) if j not in taken}
        assert gain == pytest.approx(max(added.values()), rel=1e-9)
        assert added[index] == pytest.approx(gain, rel=1e-9)
        taken.append(index)
    assert gains.tolist() == sorted(gains.tolist(), reverse=True)
    best = max(value(list(subset)) for subset in combinations(range(N), 4))
    assert (1 - 1 / np.e) * best <= value(taken) <= best + 1e-9


@every_objective
def test_initial_points_count_and_are_not_taken_again(
    make: Callable[[], Objective], value: Callable[[list[int]], float]
) -> None:
    initial = [3, 7]
    chosen, gains = maximise(make(), 3, torch.tensor(initial))
    assert not set(chosen.tolist()) & set(initial)
    total = value([*initial, *chosen.tolist()]) - value(initial)
    assert float(gains.sum()) == pytest.approx(total, rel=1e-9)
    first = max((j for j in range(N) if j not in initial), key=lambda j: value([*initial, j]))
    assert chosen[0] == first
    whole = maximise(make(), N - 2, torch.tensor(initial)).indices
    assert sorted([*whole.tolist(), *initial]) == list(range(N))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_select_takes_arrays_and_gives_beginnings(objective: str) -> None:
    x = PHI.numpy()
    indices, gains = pc.select(x, 5, objective)
    assert indices.dtype == np.int64
    assert len(set(indices.tolist())) == 5
    assert np.array_equal(pc.select(torch.from_numpy(x), 3, objective).indices, indices[:3])
    assert (np.diff(gains) <= 1e-9).all()
    rest = pc.select(x, 3, objective, initial=indices[:2])
    assert np.array_equal(rest.indices, indices[2:])
    np.testing.assert_allclose(rest.gains, gains[2:])


def test_select_knows_similarities() -> None:
    near = pc.select(S.numpy(), 3, similarity="precomputed")
    same = pc.select(X.numpy(), 3, length=1.0)
    assert np.array_equal(near.indices, same.indices)
    angles = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [0.0, 9.0], [1.0, 1.0]])
    assert pc.select(angles, 1, similarity="cosine").indices.tolist() == [4]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"num": 0}, "num-out-of-range"),
        ({"num": 9, "initial": [1]}, "num-out-of-range"),
        ({"initial": [1, 1]}, "bad-initial"),
        ({"initial": [N]}, "bad-initial"),
        ({"objective": "graphcut"}, "unknown-objective"),
        ({"objective": "graph-cut", "diversity": 0.7}, "diversity-out-of-range"),
        ({"objective": "log-det", "noise": 0.0}, "no-noise"),
        ({"objective": "feature-based"}, "negative-features"),
        ({"similarity": "cosines"}, "unknown-similarity"),
        ({"similarity": "precomputed"}, "bad-similarities"),
        ({"x": np.full((3, 2), np.nan)}, "not-finite"),
        ({"x": np.array(["a", "b"])}, "bad-rows"),
    ],
)
def test_what_cannot_be_selected_is_refused(arguments: dict[str, object], code: str) -> None:
    given: dict[str, object] = {"x": X.numpy(), "num": 2, **arguments}
    with pytest.raises((ConfigError, DataError)) as caught:
        pc.select(**given)  # type: ignore[arg-type]
    assert caught.value.code == code
