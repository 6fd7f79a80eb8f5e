"""Every matching method makes better teachers than real images chosen by chance: the digits at 1
and 10 per class, mean of 5 seeds.

All start from real images, a class-balanced random choice: what `uniform` is. The comparison is
with that very choice, which takes its luck out. Settings were chosen on training images.
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.data import digits
from pseudocore.data import preprocessing as whiten
from pseudocore.inference.sgd import SGD
from pseudocore.methods.condense.cafe import CAFE
from pseudocore.methods.condense.dc import DC, DSA
from pseudocore.methods.condense.dm import DM
from pseudocore.methods.condense.lcmat_c import LCMatC
from pseudocore.models.convnet import ConvNet
from pseudocore.runtime.loop import run

pytestmark = pytest.mark.slow

SEEDS = range(5)
MARGIN = {1: 0.1, 10: 0.005}
"""By which the mean accuracy on test images must exceed that of the images begun with, by images
per class.
"""
STEPS = {1: 12, 10: 20}
"""Of gradient matching, by images per class."""
GRADIENTS: dict[str, Any] = {
    "batch_size": 32,
    "image_lr": 0.3,
    "max_age": 5,
    "num_inner_steps": 5,
    "inner_lr": 0.05,
}
FEATURES: dict[str, Any] = {"num_steps": 40, "batch_size": 64}
METHODS = {
    "dc": (DC, GRADIENTS),
    "dsa": (DSA, {**GRADIENTS, "strategy": "crop_scale_rotate"}),
    "lcmat-c": (LCMatC, GRADIENTS),
    "dm": (DM, {**FEATURES, "image_lr": 3.0}),
    "cafe": (CAFE, {**FEATURES, "image_lr": 0.3, "max_age": 5, "num_inner_steps": 5}),
}


@pytest.fixture(scope="module")
def problem() -> Problem:
    data = digits()
    return Problem(
        data,
        ConvNet(width=8, depth=2).build(data.shape, data.num_classes),
        whiten.make("standard", data),
    )


@pytest.fixture(scope="module")
def uniform(problem: Problem) -> Callable[[int], float]:
    """Mean accuracy of what a method starts from, which is the same for all methods."""

    @functools.cache
    def of(per_class: int) -> float:
        method = DM(per_class=per_class)
        starts = [
            method.coreset(problem, method.init(problem, Rng(seed)("init"))) for seed in SEEDS
        ]
        assert all(
            (problem.data.train.x / 255 - point).abs().flatten(1).amax(1).min() < 1e-5
            for point in starts[0].x
        )  # real images
        return sum(
            accuracy(problem, start, seed) for seed, start in zip(SEEDS, starts, strict=True)
        ) / len(SEEDS)

    return of


def accuracy(problem: Problem, coreset: Coreset, seed: int) -> float:
    """Of a network trained on the coreset, on the test images."""
    log_probs = SGD(num_steps=100, step_size=0.1).fit(problem, coreset, Rng(seed))(
        problem.data.test.x
    )
    return float((log_probs.argmax(1) == problem.data.test.y).double().mean())


@pytest.mark.parametrize("per_class", MARGIN)
@pytest.mark.parametrize("name", METHODS)
def test_it_beats_uniform(
    problem: Problem, uniform: Callable[[int], float], name: str, per_class: int
) -> None:
    make, options = METHODS[name]
    method, reached = (
        make(**{"num_steps": STEPS[per_class], **options}, per_class=per_class, initial="real"),
        [],
    )
    for seed in SEEDS:
        outcome = run(method, problem, seed=seed)
        assert outcome.status == "finished"
        reached.append(accuracy(problem, outcome.coreset, seed))
    assert sum(reached) / len(reached) > uniform(per_class) + MARGIN[per_class]
