"""DD and LD: whole steps against plain autograd through the written-out training, closed forms on
linear models, and least squares.

Gradients are read where the step leaves them: Adam's first moment after a first step is (1 − β₁)
times it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.data import DSA, digits
from pseudocore.data import preprocessing as whiten
from pseudocore.methods.condense.dd import DatasetDistillation
from pseudocore.methods.condense.ld import LabelDistillation, LabelDistillationRidge
from pseudocore.models.convnet import ConvNet
from pseudocore.models.dense import MLP, Linear
from pseudocore.runtime.loop import run

MakeProblem = Callable[..., Problem]

RNG = Rng(4)("step", 0)
FEW: dict[str, Any] = {
    "per_class": 1,
    "num_steps": 10,
    "batch_size": 20,
    "num_inner_steps": 4,
    "num_students": 2,
    "inner_lr": 0.3,
}


@pytest.fixture(params=["mlp", "instance", "batch"])
def problem(request: pytest.FixtureRequest, make_problem: MakeProblem) -> Problem:
    if request.param == "mlp":
        return make_problem(MLP(width=5))
    data = digits()
    model = ConvNet(width=3, depth=2, norm=request.param).build(data.shape, data.num_classes)
    return Problem(
        data, model, whiten.make("standard", data, dtype=torch.float64), dtype=torch.float64
    )


def written_out(problem: Problem, method: Any, x: Tensor, y: Tensor, log_lr: Tensor) -> Tensor:
    """Loss of the students on the batch that the step's streams decide on, with its whole graph;
    the point of each class weighs as its class.
    """
    weight = problem.data.class_counts.double() / problem.num_train
    real, labels = problem.batch(RNG("batch").integers(problem.num_train, method.batch_size))
    losses = []
    for student in range(method.num_students):
        stream = RNG("student", student)
        theta = problem.model.init(stream("theta"), dtype=torch.float64).requires_grad_()
        for step in range(method.num_inner_steps):
            images = (
                x if problem.augment is None else problem.augment(x, stream("inner")("view", step))
            )
            each = cross_entropy(problem.model.logits(theta, images), y, reduction="none")
            loss = (weight * each).sum()
            theta = theta - log_lr.exp() * torch.autograd.grad(loss, theta, create_graph=True)[0]
        statistics = problem.model.statistics(theta, x.detach()) or None
        losses.append(cross_entropy(problem.model.logits(theta, real, statistics), labels))
    return torch.stack(losses).mean()


def same(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.abs().max() > 1e-8
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8 * float(theirs.abs().max()))


@pytest.mark.parametrize("recompute", [True, False])
def test_dd_is_plain_autograd_through_training(problem: Problem, recompute: bool) -> None:
    method = DatasetDistillation(**FEW, recompute=recompute)
    state = method.init(problem, RNG("init"))
    after, info = method.step(problem, state, RNG)
    log_lr, x = (part.clone().requires_grad_() for part in state.learned)
    value = written_out(problem, method, x, state.y, log_lr)
    by_lr, by_x = torch.autograd.grad(value, (log_lr, x))
    same(info.loss, value.detach())
    same(after.moments.x.first / (1 - 0.9), by_x)
    same(after.moments.log_inner_lr.first / (1 - 0.9), by_lr)


def test_dd_trains_its_students_on_augmented_images() -> None:
    data = digits()
    model = ConvNet(width=3, depth=1).build(data.shape, data.num_classes)
    standard = whiten.make("standard", data, dtype=torch.float64)
    problem = Problem(data, model, standard, DSA(strategy="crop_scale_rotate"), dtype=torch.float64)
    method = DatasetDistillation(**FEW)
    state = method.init(problem, RNG("init"))
    _, info = method.step(problem, state, RNG)
    log_lr, x = state.learned
    same(info.loss, written_out(problem, method, x, state.y, log_lr).detach())


@pytest.mark.parametrize("recompute", [True, False])
def test_ld_is_plain_autograd_through_training(problem: Problem, recompute: bool) -> None:
    method = LabelDistillation(**FEW, recompute=recompute)
    state = method.init(problem, RNG("init"))
    after, info = method.step(problem, state, RNG)
    x, _ = problem.batch(state.indices)
    log_lr, log_y = (part.clone().requires_grad_() for part in (state.log_inner_lr, state.log_y))
    value = written_out(problem, method, x, log_y.softmax(1), log_lr)
    by_lr, by_y = torch.autograd.grad(value, (log_lr, log_y))
    same(info.loss, value.detach())
    same(after.moments.first / (1 - 0.9), by_y)
    same(after.lr_moments.first / (1 - 0.9), by_lr)


def test_ld_on_logistic_regression_by_hand(make_problem: MakeProblem) -> None:
    """After one step W = W₀ − (η/M) Σ (p − ỹ) xᵀ, so that dJ/dỹ_m = (η/M)(∂J/∂W x_m + ∂J/∂b), and
    the softmax follows.
    """
    problem = make_problem(Linear())
    method = LabelDistillation(**{**FEW, "num_inner_steps": 1, "num_students": 1, "per_class": 2})
    state = method.init(problem, RNG("init"))
    after, _ = method.step(problem, state, RNG)
    theta = problem.model.init(RNG("student", 0)("theta"), dtype=torch.float64).numpy()
    W, b = theta[:18].reshape(3, 6), theta[18:]
    real, labels = (
        part.numpy()
        for part in problem.batch(RNG("batch").integers(problem.num_train, method.batch_size))
    )
    x, y = problem.batch(state.indices)[0].numpy(), softmax(state.log_y.numpy())
    slope = softmax(x @ W.T + b) - y
    W, b = W - 0.3 / len(x) * slope.T @ x, b - 0.3 / len(x) * slope.sum(0)
    miss = (softmax(real @ W.T + b) - np.eye(3)[labels]) / len(real)
    by_y = 0.3 / len(x) * (x @ (miss.T @ real).T + miss.sum(0))
    by_log_y = y * (by_y - (y * by_y).sum(1, keepdims=True))
    np.testing.assert_allclose(
        (after.moments.first / (1 - 0.9)).numpy(), by_log_y, rtol=1e-9, atol=1e-12
    )


def softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


@pytest.mark.parametrize("per_class", [1, 2])
def test_ld_rr_on_a_linear_model_finds_the_least_squares_labels(
    make_problem: MakeProblem, per_class: int
) -> None:
    """The features are the inputs whatever the network, so predictions are A Ŷ and the best Ŷ on a
    batch is known.
    """
    problem = make_problem(Linear())
    method = LabelDistillationRidge(
        per_class=per_class,
        num_steps=400,
        batch_size=40,
        label_lr=0.05,
        pool_size=2,
        max_age=3,
        ridge=0.1,
    )
    state = method.init(problem, RNG("init"))
    x, real = (
        problem.batch(index)[0].numpy()
        for index in (state.indices, RNG("batch").integers(problem.num_train, 40))
    )
    gram = x @ x.T
    A = real @ x.T @ np.linalg.inv(gram + 0.1 * np.trace(gram) / len(x) * np.eye(len(x)))
    labels = problem.batch(RNG("batch").integers(problem.num_train, 40))[1].numpy()
    best = np.linalg.lstsq(A, np.eye(3)[labels] - 1 / 3, rcond=None)[0]
    at_best = state._replace(learned=state.learned._replace(y=torch.from_numpy(best)))
    assert float(method.step(problem, at_best, RNG)[0].moments.y.first.abs().max()) < 1e-12
    assert float(method.step(problem, state, RNG)[0].moments.y.first.abs().max()) > 1e-4
    for _ in range(method.num_steps):  # the same batch every time, as the stream is the same
        state, _ = method.step(problem, state, RNG)
    np.testing.assert_allclose(state.learned.y.numpy(), best, atol=2e-3)


@pytest.mark.parametrize(
    "method",
    [
        LabelDistillation(**FEW),
        LabelDistillationRidge(per_class=2, num_steps=5, batch_size=20, pool_size=2),
    ],
)
def test_ld_keeps_the_images_as_they_are(method: Any, make_problem: MakeProblem) -> None:
    problem = make_problem(MLP(width=5))
    start = state = method.init(problem, RNG("init"))
    for number in range(3):
        state, _ = method.step(problem, state, RNG(number))
    before, coreset = method.coreset(problem, start), method.coreset(problem, state)
    assert coreset.indices is not None
    assert torch.equal(coreset.x, problem.data.train.x[coreset.indices])
    assert torch.equal(coreset.labels, problem.data.train.y[coreset.indices])
    assert not torch.allclose(coreset.y, before.y)
    if isinstance(method, LabelDistillation):
        assert torch.equal(coreset.targets, coreset.y)  # distributions as they are
        torch.testing.assert_close(
            before.y.amax(1), torch.full((3,), 0.9 + 0.1 / 3, dtype=torch.float64)
        )


@pytest.mark.parametrize("make", [DatasetDistillation, LabelDistillation])
@pytest.mark.parametrize("inner_lr_lr", [0.0, 5.0])
def test_the_inner_step_size_stays_positive_and_can_be_kept(
    make: Any, inner_lr_lr: float, make_problem: MakeProblem
) -> None:
    problem, method = make_problem(Linear()), make(**FEW, inner_lr_lr=inner_lr_lr)
    state = method.init(problem, RNG("init"))
    sizes = []
    for number in range(4):
        state, info = method.step(problem, state, RNG(number))
        sizes.append(float(info.inner_lr))
    assert all(0 < size < float("inf") for size in sizes)
    assert (max(abs(size - 0.3) for size in sizes) < 1e-12) == (inner_lr_lr == 0)


@pytest.mark.parametrize(
    "method",
    [
        DatasetDistillation(**{**FEW, "inner_lr": 1e30}),
        LabelDistillation(**{**FEW, "inner_lr": 1e30}),
    ],
)
def test_training_that_explodes_ends_the_run_with_a_reason(
    method: Any, make_problem: MakeProblem
) -> None:
    outcome = run(method, replace(make_problem(MLP(width=5)), dtype=torch.float32), seed=0)
    assert outcome.status == "diverged"
    assert "log_inner_lr became NaN or infinite by step 1; kept step 0" in outcome.reason
    assert outcome.coreset.x.isfinite().all()
