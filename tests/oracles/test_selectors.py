"""The selectors against their rule carried out class by class in numpy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.data import preprocessing as whiten
from pseudocore.methods.select.herding import Herding
from pseudocore.methods.select.k_center import KCenter
from pseudocore.models.dense import MLP, Linear
from pseudocore.training.pretrain import Pretraining, last_layer, pretrain

Array = npt.NDArray[np.float64]
MakeProblem = Callable[..., Problem]

SELECTORS: dict[str, type[Herding | KCenter]] = {"herding": Herding, "k-center": KCenter}

both = pytest.mark.parametrize("name", SELECTORS)


def select(name: str, problem: Problem, seed: int = 0, **options: Any) -> Coreset:
    return SELECTORS[name](**options).select(problem, Rng(seed))


def next_one(name: str, x: Array, chosen: list[int]) -> int:
    """By the definition, with every candidate tried."""
    left = [i for i in range(len(x)) if i not in chosen]
    if name == "herding" or not chosen:
        return min(left, key=lambda i: float(np.linalg.norm(x[[*chosen, i]].mean(0) - x.mean(0))))
    return max(left, key=lambda i: float(np.linalg.norm(x[chosen] - x[i], axis=1).min()))


def by_class(name: str, features: Array, y: Array, per_class: int) -> list[int]:
    """Training indices, ordered by class."""
    result = []
    for label in np.unique(y):
        members, chosen = np.flatnonzero(y == label), list[int]()
        while len(chosen) < per_class:
            chosen.append(next_one(name, features[members], chosen))
        result += members[chosen].tolist()
    return result


@both
@pytest.mark.parametrize("per_class", [1, 4, 15])
def test_on_inputs(name: str, per_class: int, make_problem: MakeProblem) -> None:
    problem = make_problem()
    coreset = select(name, problem, per_class=per_class)
    assert coreset.indices is not None
    expected = by_class(
        name, problem.batch(torch.arange(45))[0].numpy(), problem.data.train.y.numpy(), per_class
    )
    assert coreset.indices.tolist() == expected
    assert torch.equal(coreset.x, problem.data.train.x[expected])
    assert torch.equal(coreset.y, problem.data.train.y[expected])
    assert coreset.weight.tolist() == [problem.num_train / len(coreset)] * 3 * per_class


@both
def test_of_all_classes_together(name: str, make_problem: MakeProblem) -> None:
    problem = make_problem()
    coreset = select(name, problem, per_class=4, balanced=False)
    assert coreset.indices is not None
    assert coreset.indices.tolist() == by_class(
        name, problem.batch(torch.arange(45))[0].numpy(), np.zeros(45), 12
    )


@both
def test_on_features_of_a_network(name: str, make_problem: MakeProblem) -> None:
    problem = make_problem(MLP(width=16, depth=1))
    coreset = select(name, problem, per_class=4, space="network", pretrain_epochs=7)
    assert coreset.indices is not None
    theta = pretrain(problem, Pretraining(pretrain_epochs=7), Rng(0)("pretrain")).theta
    features = last_layer(problem, theta, Rng(0)("statistics")).features
    assert coreset.indices.tolist() == by_class(
        name, features.numpy(), problem.data.train.y.numpy(), 4
    )
    assert coreset.indices.tolist() != by_class(
        name, problem.batch(torch.arange(45))[0].numpy(), problem.data.train.y.numpy(), 4
    )


@both
def test_the_seed_matters_where_a_network_is_trained(name: str, make_problem: MakeProblem) -> None:
    problem = make_problem(MLP(width=16, depth=1))
    runs = [
        select(name, problem, seed, per_class=4, space="network", pretrain_epochs=5).indices
        for seed in (0, 0, 1)
    ]
    assert [
        run.tolist() == runs[0].tolist() for run in runs if run is not None and runs[0] is not None
    ] == [True, True, False]


@both
def test_a_class_with_one_example_gives_it(name: str) -> None:
    x, y = Rng(0).normal(7, 2), torch.tensor([0, 0, 0, 1, 0, 0, 0])
    data = Dataset("lonely", Examples(x, y), Examples(x, y), 2)
    coreset = select(
        name, Problem(data, Linear().build((2,), 2), whiten.make("none", data)), per_class=1
    )
    assert coreset.indices is not None
    assert coreset.indices[1] == 3
    assert coreset.y.tolist() == [0, 1]


@both
def test_preprocessing_counts(name: str) -> None:
    """A feature in other units moves raw distances but not standardised ones."""
    x, y = Rng(1).normal(40, 3), torch.arange(2).repeat(20)
    chosen: dict[tuple[str, float], list[int]] = {}
    for kind in ("none", "standard"):
        for unit in (1.0, 100.0):
            scaled = x * torch.tensor([1, 1, unit])
            data = Dataset("units", Examples(scaled, y), Examples(scaled, y), 2)
            coreset = select(
                name, Problem(data, Linear().build((3,), 2), whiten.make(kind, data)), per_class=5
            )
            assert coreset.indices is not None
            chosen[kind, unit] = coreset.indices.tolist()
    assert chosen["standard", 1.0] == chosen["standard", 100.0]
    assert chosen["none", 1.0] != chosen["none", 100.0]
