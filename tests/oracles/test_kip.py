"""KIP: a whole step against its objective recomputed in numpy, and its gradient by differences.

The gradient is read where the step leaves it: Adam's first moment after a first step is (1 − β₁)
times it.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.methods.condense.kip import KIP, KIPState
from pseudocore.models.dense import MLP
from pseudocore.objectives.image_regression import RegressionPoints

MakeProblem = Callable[..., Problem]
Differentiate = Callable[[Callable[[Tensor], float], Tensor], Tensor]
Array = NDArray[np.float64]

RNG = Rng(5)("step", 0)
KERNELS = ("features", "ntk", "nngp")
WIDTH = 7
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def method(**changes: Any) -> KIP:
    few = {
        "per_class": 2,
        "num_steps": 10,
        "batch_size": 12,
        "kernel_depth": 2,
        "bias_variance": 0.2,
        "num_networks": 2,
        "ridge": 0.05,
    }
    return KIP(**{**few, "logit_scale": 3.0, **changes})


@pytest.fixture
def problem(make_problem: MakeProblem) -> Problem:
    return make_problem(MLP(width=WIDTH, depth=1))


def begin(kip: KIP, problem: Problem) -> KIPState:
    """A state that has moved off its start: no gradient vanishes by symmetry, no point is one of
    the batch, where the NTK has a cusp.
    """
    state = kip.init(problem, RNG("init"))
    x, y = (
        part + 0.1 * RNG(name).normal(*part.shape, dtype=torch.float64)
        for name, part in zip("xy", state.learned, strict=False)
    )
    return state._replace(learned=state.learned._replace(x=x, y=y))


def numpy_kernel(kip: KIP, problem: Problem, x: Array, other: Array) -> Array:
    if kip.kernel == "features":
        one = [
            numpy_features(theta, x) @ numpy_features(theta, other).T / WIDTH
            for theta in thetas(kip, problem)
        ]
        return np.array(np.mean(one, 0))
    pair = [[2 * np.sum(a * b) / x.shape[1] + 0.2 for b in other] for a in x]
    K, tangent = np.array(pair), np.array(pair)
    rows, columns = (2 * (points**2).sum(1) / x.shape[1] + 0.2 for points in (x, other))
    for _ in range(kip.kernel_depth):
        norm = np.sqrt(np.outer(rows, columns))
        angle = np.arccos(np.clip(K / norm, -1, 1))
        K = norm * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi + 0.2
        tangent = K + tangent * (1 - angle / np.pi)
        rows, columns = rows + 0.2, columns + 0.2
    return tangent if kip.kernel == "ntk" else K


def thetas(kip: KIP, problem: Problem) -> list[Array]:
    return [
        problem.model.init(RNG("network", number), dtype=torch.float64).numpy()
        for number in range(kip.num_networks)
    ]


def numpy_features(theta: Array, x: Array) -> Array:
    weight, bias = theta[: 6 * WIDTH].reshape(WIDTH, 6), theta[6 * WIDTH : 7 * WIDTH]
    return np.maximum(x @ weight.T + bias, 0)


def numpy_losses(kip: KIP, problem: Problem, learned: RegressionPoints) -> tuple[float, float]:
    """Squared error, and cross-entropy under the logit scale."""
    real, labels = problem.batch(RNG("batch").integers(problem.num_train, kip.batch_size))
    u = learned.x.numpy()
    gram = numpy_kernel(kip, problem, u, u)
    if (
        kip.kernel != "features"
    ):  # arccos(1) by rounding is not 0, and its error is the root of the rounding
        np.fill_diagonal(gram, numpy_diagonal(kip, u))
    gram += kip.ridge * np.trace(gram) / len(gram) * np.eye(len(gram))
    mean = numpy_kernel(kip, problem, real.numpy(), u) @ np.linalg.inv(gram) @ learned.y.numpy()
    one_hot = np.eye(3)[labels.numpy()]
    logits = math.exp(learned.log_scale) * mean
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return float(0.5 * ((mean - one_hot + 1 / 3) ** 2).sum(1).mean()), float(
        -(one_hot * log_probs).sum(1).mean()
    )


def numpy_diagonal(kip: KIP, u: Array) -> Array:
    """With weight variance 2 every layer adds the bias variance; the tangent kernel adds all layers
    up.
    """
    layers = np.array(
        [
            2 * (u**2).sum(1) / u.shape[1] + 0.2 * (1 + layer)
            for layer in range(kip.kernel_depth + 1)
        ]
    )
    total: Array = layers.sum(0) if kip.kernel == "ntk" else layers[-1]
    return total


@every_kernel
def test_the_loss_is_that_of_numpy(kernel: Any, problem: Problem) -> None:
    kip = method(kernel=kernel)
    state = begin(kip, problem)
    _, info = kip.step(problem, state, RNG)
    assert float(info.loss) == pytest.approx(
        sum(numpy_losses(kip, problem, state.learned)), rel=1e-9
    )


@every_kernel
def test_the_gradient_is_that_of_differences(
    kernel: Any, problem: Problem, differentiate: Differentiate
) -> None:
    kip = method(kernel=kernel)
    state = begin(kip, problem)
    after, _ = kip.step(problem, state, RNG)
    learned = state.learned
    for name, which in (("x", 0), ("y", 0), ("log_scale", 1)):
        ours = getattr(after.moments, name).first / (1 - 0.9)
        by = differentiate(
            lambda value: numpy_losses(kip, problem, learned._replace(**{name: value}))[which],
            getattr(learned, name),
        )
        assert by.norm() > 1e-3
        assert float((ours - by).norm() / by.norm()) < 1e-6, name


@every_kernel
def test_it_learns_to_predict_the_data(kernel: Any, problem: Problem) -> None:
    kip = method(kernel=kernel, num_steps=60, image_lr=0.05, label_lr=0.05, batch_size=45)
    state = kip.init(problem, RNG("init"))
    losses = []
    for number in range(kip.num_steps):
        state, info = kip.step(problem, state, RNG(number))
        losses.append(float(info.loss))
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_label_lr_zero_keeps_the_targets(problem: Problem) -> None:
    kip = method(label_lr=0.0)
    state = kip.init(problem, RNG("init"))
    after, _ = kip.step(problem, state, RNG)
    assert torch.equal(
        after.learned.y, torch.eye(3, dtype=torch.float64).repeat_interleave(2, 0) - 1 / 3
    )
    assert not torch.equal(after.learned.x, state.learned.x)


def test_augmentation_acts_on_the_real_batch_alone(problem: Problem) -> None:
    kip = method(kernel="ntk")
    state = begin(kip, problem)
    shifted = replace(problem, augment=lambda x, rng: x + rng.uniform(1, dtype=x.dtype))
    _, info = kip.step(shifted, state, RNG)
    by = float(RNG("augment").uniform(1, dtype=torch.float64))
    moved = replace(problem, preprocess=Shifted(problem.preprocess, by))
    assert float(info.loss) == pytest.approx(sum(numpy_losses(kip, moved, state.learned)), rel=1e-9)


class Shifted:
    """A preprocessing whose outputs are moved."""

    def __init__(self, inner: Any, by: float) -> None:
        self.inner, self.by = inner, by

    def apply(self, x: Tensor) -> Tensor:
        moved: Tensor = self.inner.apply(x) + self.by
        return moved

    def invert(self, x: Tensor) -> Tensor:
        back: Tensor = self.inner.invert(x - self.by)
        return back

    def describe(self) -> dict[str, Any]:
        return {}


def test_the_coreset_carries_scale_and_ridge(problem: Problem) -> None:
    kip = method()
    state, _ = kip.step(problem, begin(kip, problem), RNG)
    coreset = kip.coreset(problem, state)
    assert coreset.learned == {
        "logit_scale": pytest.approx(math.exp(state.learned.log_scale)),
        "ridge": pytest.approx(0.05 * problem.num_train / len(coreset)),
    }
    torch.testing.assert_close(problem.inputs(coreset.x), state.learned.x)
    assert torch.equal(coreset.y, state.learned.y)
