"""The best moment of a training, as published evaluators report it: moments against each other, the
best against all of them.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.evaluation.metrics import in_batches
from pseudocore.evaluation.published_metrics import published_scores
from pseudocore.inference.draws_posterior import DrawsPosterior
from pseudocore.inference.sgd import SGD

MakeProblem = Callable[..., Problem]


@pytest.fixture
def problem(make_problem: MakeProblem) -> Problem:
    return make_problem()


def coreset(problem: Problem) -> Coreset:
    return problem.subset(torch.arange(9))


def only(predictive: DrawsPosterior) -> Tensor:
    return predictive.draws[0]


def test_moments_are_where_the_training_was(problem: Problem) -> None:
    points, way = coreset(problem), SGD(num_steps=12, num_moments=4, step_size=0.5)
    kept = way.fit(problem, points, Rng(0))
    assert len(kept.earlier) == 3
    assert torch.equal(
        only(kept), only(replace(way, num_moments=None).fit(problem, points, Rng(0)))
    )
    every = replace(way, num_moments=12).fit(problem, points, Rng(0))
    assert len(every.earlier) == 11
    for moment, step in zip(kept.earlier, (3, 6, 9), strict=True):
        assert torch.equal(only(moment), only(every.earlier[step - 1]))
    thetas = torch.stack([*(only(moment) for moment in every.earlier), only(every)])
    assert (thetas.diff(dim=0).norm(dim=1) > 0).all()


@pytest.mark.parametrize("num_moments", [1, 5, 50])
def test_no_moment_is_kept_twice(problem: Problem, num_moments: int) -> None:
    kept = SGD(num_steps=5, num_moments=num_moments).fit(problem, coreset(problem), Rng(0))
    assert len(kept.earlier) == min(num_moments, 5) - 1


def test_the_best_is_the_best_on_the_test_set(problem: Problem) -> None:
    predict = SGD(num_steps=40, num_moments=40, step_size=1.0).fit(
        problem, coreset(problem), Rng(1)
    )
    x, y = problem.data.test
    right = [
        float((moment(x).argmax(1) == y).double().mean()) for moment in (*predict.earlier, predict)
    ]
    assert len(set(right)) > 1
    assert published_scores(predict, in_batches(problem.data.test, 4))[
        "published_accuracy"
    ] == pytest.approx(max(right))


def test_nothing_is_said_of_moments_that_were_not_kept(problem: Problem) -> None:
    predict = SGD(num_steps=4).fit(problem, coreset(problem), Rng(0))
    assert "published_accuracy" not in published_scores(predict, in_batches(problem.data.test, 4))
