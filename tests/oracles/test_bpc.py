"""The trajectory methods against finite differences of their written-out objectives, and against
each other.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, multi_margin_loss

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.methods.bayes.bpc_cd import BPCContrastiveDivergence
from pseudocore.methods.bayes.bpc_fkl import BPCForwardKL
from pseudocore.methods.bayes.bpc_rkl import BPCReverseKL
from pseudocore.methods.bayes.bpc_w import MTT, BPCWasserstein
from pseudocore.models.flat import FlatModel
from pseudocore.objectives.initial import initial_inputs
from pseudocore.runtime.loop import run

MakeProblem = Callable[..., Problem]
Differentiate = Callable[[Callable[[Tensor], float], Tensor], Tensor]

STEPS, ETA = 5, 0.2
SMALL: dict[str, Any] = {"per_class": 2, "max_start": 2, "num_inner_steps": STEPS}
STEP = Rng(11)("step", 7)  # draws expert 2 and start 1


class Kept:
    """Experts as one tensor (experts, epochs + 1, P)."""

    def __init__(self, theta: Tensor) -> None:
        self.theta, self.num_experts, self.num_epochs = theta, len(theta), theta.shape[1] - 1

    def at(self, expert: Tensor, epoch: Tensor) -> Tensor:
        return self.theta[expert, epoch]


class Smooth:
    """One hidden layer without kinks, which finite differences would stumble over."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        return FlatModel(nn.Sequential(nn.Linear(math.prod(shape), 5), nn.Tanh()), 5, num_classes)


@pytest.fixture
def problem(make_problem: MakeProblem) -> Problem:
    """Three classes of six features under a small network, with three experts that wander for four
    epochs.
    """
    bare = make_problem(Smooth())
    starts = bare.model.init(Rng(5)("theta"), num=3, dtype=torch.float64)
    steps = 0.1 * Rng(5)("steps").normal(3, 4, starts.shape[1], dtype=torch.float64)
    walk = torch.cat([torch.zeros(3, 1, starts.shape[1], dtype=torch.float64), steps.cumsum(1)], 1)
    return replace(bare, experts=Kept(starts[:, None] + walk))


def drawn(problem: Problem, method: Any) -> tuple[Tensor, Tensor]:
    """The path of the expert that STEP draws, (epochs, P), and its start."""
    assert isinstance(problem.experts, Kept)
    expert, start = (
        int(STEP("expert").integers(3, 1)),
        int(STEP("start").integers(method.max_start, 1)),
    )
    assert (expert, start) == (2, 1), "with 0 a step that reads no index would pass"
    return problem.experts.theta[expert, start:], problem.experts.theta[expert, start]


def trained(
    problem: Problem,
    theta: Tensor,
    x: Tensor,
    y: Tensor,
    loss: Any = cross_entropy,
    eta: float = ETA,
    noise: float = 0.0,
) -> Tensor:
    """The written-out inner loop, by autograd."""
    for step in range(STEPS):
        theta = theta.detach().requires_grad_()
        slope = torch.autograd.grad(loss(problem.model.logits(theta, x), y), theta)[0]
        theta = (
            theta
            - eta * slope
            + noise * STEP("inner")("noise", step).normal(len(theta), dtype=torch.float64)
        )
    return theta.detach()


def around(theta: Tensor, sd: float, name: str, num: int) -> list[Tensor]:
    return [
        theta + sd * STEP(name)(draw).normal(len(theta), dtype=torch.float64) for draw in range(num)
    ]


def focal_loss(logits: Tensor, y: Tensor) -> Tensor:
    probability = logits.softmax(1)[torch.arange(len(y)), y]
    return (-((1 - probability) ** 2) * probability.log()).mean()


# --- finite differences of the written-out objectives


def test_forward_kl_is_the_gradient_of_equation_20(
    problem: Problem, differentiate: Differentiate
) -> None:
    method = BPCForwardKL(
        **SMALL, horizon=2, num_draws=3, inner_lr=ETA, noise=0.1, expert_noise=0.2
    )
    state = method.init(problem, Rng(0))
    path, start = drawn(problem, method)
    students = around(trained(problem, start, state.x, state.y), 0.1, "near-student", 3)
    experts = around(path[2], 0.2, "near-expert", 3)

    def objective(x: Tensor) -> float:
        def f(theta: Tensor) -> float:
            return -float(cross_entropy(problem.model.logits(theta, x), state.y))

        return (
            sum(f(student) - f(expert) for student, expert in zip(students, experts, strict=True))
            / 3
        )

    after, info = method.step(problem, state, STEP)
    torch.testing.assert_close(after.velocity, differentiate(objective, state.x), rtol=0, atol=1e-9)
    assert float(info.loss) == pytest.approx(objective(state.x), abs=1e-12)
    torch.testing.assert_close(after.x, state.x - 1000 * after.velocity)


@pytest.mark.parametrize(
    ("energy", "loss"),
    [("cross-entropy", cross_entropy), ("focal", focal_loss), ("multi-margin", multi_margin_loss)],
)
def test_contrastive_divergence_is_the_gradient_of_equation_11(
    problem: Problem, differentiate: Differentiate, energy: Any, loss: Any
) -> None:
    method = BPCContrastiveDivergence(
        **SMALL, energy=energy, langevin_step=2 * ETA, noise_scale=0.3
    )
    state = method.init(problem, Rng(0))
    path, start = drawn(problem, method)
    negative = trained(problem, start, state.x, state.y, loss, noise=0.3 * math.sqrt(2 * ETA))

    def objective(x: Tensor) -> float:
        return float(
            loss(problem.model.logits(path[1], x), state.y)
            - loss(problem.model.logits(negative, x), state.y)
        )

    after, _ = method.step(problem, state, STEP)
    torch.testing.assert_close(after.velocity, differentiate(objective, state.x), rtol=0, atol=1e-9)


def test_the_langevin_steps_sample_the_posterior_of_n_points() -> None:
    """A mean loss of ½(θ − u)², whose posterior from N points is N(u, 1/N), in 4,000 chains: by
    default; the paper's noise is that of one point, none that of a mode.
    """
    num, target = 50, torch.tensor([1.5], dtype=torch.float64)
    start = torch.zeros(4000, dtype=torch.float64)
    walk: dict[str, Any] = {"langevin_step": 0.2, "num_inner_steps": 150}
    discrete = 1 / (1 - walk["langevin_step"] / 4)  # the variance of a step this long, in units

    def ends(**options: Any) -> Tensor:
        method = BPCContrastiveDivergence(**walk, **options)
        return method.walk(
            lambda theta, x: 0.5 * (theta - x).square().sum(),
            lambda x, _: x,
            start,
            target,
            Rng(0),
            num,
        )

    error = 4 * math.sqrt(2 / len(start))
    for options, variance in (({}, 1 / num), ({"noise_scale": 1.0}, 1.0)):
        found = ends(**options)
        assert float(found.var()) == pytest.approx(discrete * variance, rel=error)
        assert float(found.mean()) == pytest.approx(1.5, abs=4 * math.sqrt(variance / len(start)))
    torch.testing.assert_close(ends(noise_scale=0.0), target.expand(4000))


def test_by_default_the_noise_is_that_of_the_problems_points(problem: Problem) -> None:
    """And nothing else differs: the drift and the two energies are as published."""
    by_default = BPCContrastiveDivergence(**SMALL)
    named = replace(by_default, noise_scale=1 / math.sqrt(problem.num_train))
    state = by_default.init(problem, Rng(0))
    one, other = (each.step(problem, state, STEP)[0].velocity for each in (by_default, named))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("covariance", ["common", "diagonal"])
@pytest.mark.parametrize("recompute", [True, False])
def test_wasserstein_is_the_gradient_through_the_inner_loop(
    problem: Problem, differentiate: Differentiate, covariance: Any, recompute: bool
) -> None:
    method = BPCWasserstein(
        **SMALL, inner_lr=ETA, inner_lr_lr=1e-3, covariance=covariance, recompute=recompute
    )
    state = method.init(problem, Rng(0))
    path, start = drawn(problem, method)

    def objective(x: Tensor, eta: float = ETA) -> float:
        thetas = [start]
        for _ in range(STEPS):
            theta = thetas[-1].detach().requires_grad_()
            slope = torch.autograd.grad(
                cross_entropy(problem.model.logits(theta, x), state.images.y), theta
            )[0]
            thetas.append((theta - eta * slope).detach())
        squared = (thetas[-1] - path[2]).square().sum()
        if covariance == "diagonal":
            squared = squared + (sd_along(thetas) - sd_along(list(path[:3]))).square().sum()
        return float(squared / (start - path[2]).square().sum())

    after, info = method.step(problem, state, STEP)
    torch.testing.assert_close(
        after.images.velocity, differentiate(objective, state.images.x), rtol=0, atol=1e-8
    )
    in_eta = differentiate(
        lambda eta: objective(state.images.x, float(eta)), torch.tensor(ETA, dtype=torch.float64)
    )
    torch.testing.assert_close(after.inner_lr_velocity, in_eta, rtol=1e-7, atol=1e-9)
    assert float(info.loss) == pytest.approx(objective(state.images.x), rel=1e-9)
    assert float(after.inner_lr) == pytest.approx(ETA - 1e-3 * float(in_eta), abs=1e-5)


def sd_along(path: list[Tensor]) -> Tensor:
    """Standard deviations over a path walked at even speed, by Gauss-Legendre quadrature: two
    places on each piece, exact for squares.
    """
    places = [(1 - 3**-0.5) / 2, (1 + 3**-0.5) / 2]
    return torch.stack(
        [a + place * (b - a) for a, b in itertools.pairwise(path) for place in places]
    ).std(0, correction=0)


def test_reverse_kl_is_algorithm_4_written_out(problem: Problem) -> None:
    """Every point's gradient on its own, both sides centred."""
    method = BPCReverseKL(**SMALL, num_draws=4, inner_lr=ETA, noise=0.3, batch_size=17)
    state = method.init(problem, Rng(0))
    _, start = drawn(problem, method)
    draws = around(trained(problem, start, state.x, state.y), 0.3, "near-student", 4)
    real, labels = problem.batch(STEP("batch").integers(problem.num_train, 17))

    def f(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return -cross_entropy(problem.model.logits(theta, x), y, reduction="none")

    g = torch.stack([f(theta, real, labels) for theta in draws])  # (S, B)
    own = torch.stack([f(theta, state.x, state.y) for theta in draws])  # (S, M)
    g, own = g - g.mean(0), own - own.mean(0)
    expected = torch.zeros_like(state.x)
    for m in range(len(state.x)):
        slopes = []
        for theta in draws:
            point = state.x[m : m + 1].clone().requires_grad_()
            slopes.append(
                torch.autograd.grad(f(theta, point, state.y[m : m + 1]).sum(), point)[0][0]
            )
        h = torch.stack(slopes) - torch.stack(slopes).mean(0)  # (S, d)
        expected[m] = -(h * (g.mean(1) - own.mean(1))[:, None]).mean(0)
    after, _ = method.step(problem, state, STEP)
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(after.velocity, expected, rtol=0, atol=1e-12)


# --- each other


def test_without_noise_contrastive_divergence_is_forward_kl(problem: Problem) -> None:
    """One draw of no variance, and half the Langevin step: bit for bit, for as long as they run."""
    cd = BPCContrastiveDivergence(
        **SMALL, num_steps=4, initial="real", langevin_step=2 * ETA, noise_scale=0, image_lr=5
    )
    fkl = BPCForwardKL(
        **SMALL, num_steps=4, num_draws=1, inner_lr=ETA, noise=0, expert_noise=0, image_lr=5
    )
    ours, theirs = (run(method, problem, seed=0).coreset.x for method in (cd, fkl))
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, run(replace(cd, noise_scale=1.0), problem, seed=0).coreset.x)


@pytest.mark.parametrize(
    "method", [BPCForwardKL(**SMALL, num_draws=5), BPCReverseKL(**SMALL, num_draws=5, batch_size=9)]
)
def test_draws_are_the_same_however_many_pass_at_once(problem: Problem, method: Any) -> None:
    state = method.init(problem, Rng(0))
    one, _ = method.step(problem, state, STEP)
    several, _ = replace(method, draw_batch=2).step(problem, state, STEP)
    torch.testing.assert_close(several.velocity, one.velocity, rtol=1e-10, atol=1e-13)


def test_mtt_is_bpc_w(problem: Problem) -> None:
    ours, theirs = (
        run(method(**SMALL, num_steps=2), problem, seed=0).coreset.x
        for method in (BPCWasserstein, MTT)
    )
    assert torch.equal(ours, theirs)


# --- inputs


def test_mixes_lie_between_two_images_of_a_class(problem: Problem) -> None:
    x, y = initial_inputs(problem, [4] * problem.num_classes, "mix", Rng(0))
    for point, label in zip(x, y.tolist(), strict=True):
        real, _ = problem.batch(problem.class_indices[label])
        a, b = (real[index] for index in torch.combinations(torch.arange(len(real))).T)
        share = ((point - b) * (a - b)).sum(1) / (a - b).square().sum(1)
        missed = (share[:, None] * a + (1 - share[:, None]) * b - point).norm(dim=1)
        assert ((missed < 1e-9) & (share > 0) & (share < 1)).sum() == 1


@pytest.mark.parametrize(
    ("method", "needed"),
    [
        (BPCForwardKL(max_start=20), 20),
        (BPCWasserstein(max_start=20, horizon=2), 21),
        (BPCContrastiveDivergence(max_start=3, horizon=3), 5),
        (BPCReverseKL(max_start=20), 19),
    ],
)
def test_experts_that_stop_too_early_are_refused(
    problem: Problem, method: Any, needed: int
) -> None:
    assert method.expert_epochs == needed
    with pytest.raises(
        ConfigError,
        match=rf"experts up to epoch {needed}, but these were kept for 4; .*--epochs {needed} ",
    ):
        method.init(problem, Rng(0))


def test_no_experts_are_refused(problem: Problem) -> None:
    with pytest.raises(
        ConfigError,
        match=r"bpc-w learns from experts and was given none; .* `pseudocore experts gaussians",
    ):
        BPCWasserstein().init(replace(problem, experts=None), Rng(0))


def test_momentum_keeps_a_share_of_the_last_change(problem: Problem) -> None:
    """Of the images and of the inner step size: the same state with and without a velocity."""
    method = BPCWasserstein(
        **SMALL, inner_lr=ETA, inner_lr_lr=1e-3, image_lr=0.1, image_momentum=0.7
    )
    still = method.init(problem, Rng(0))
    velocity = torch.full_like(still.images.x, 0.3)
    moving = still._replace(
        images=still.images._replace(velocity=velocity),
        inner_lr_velocity=torch.full_like(still.inner_lr, 2.0),
    )
    first, second = (method.step(problem, state, STEP)[0] for state in (still, moving))
    expected = first.images.velocity + 0.7 * velocity
    torch.testing.assert_close(second.images.velocity, expected)
    torch.testing.assert_close(second.images.x, still.images.x - 0.1 * expected)
    slope = first.inner_lr_velocity + 0.7 * 2
    torch.testing.assert_close(second.inner_lr_velocity, slope)
    torch.testing.assert_close(second.inner_lr, ETA * torch.exp(-1e-3 * slope / ETA))


def test_the_inner_step_size_stays_positive_where_sgd_would_not(problem: Problem) -> None:
    """Eta is far too large here, so its gradient is positive; a rate at which plain SGD would step
    to minus eta.
    """
    method = BPCWasserstein(**SMALL, inner_lr=2.0, inner_lr_lr=1.0)
    state = method.init(problem, Rng(0))
    slope = float(method.step(problem, state, STEP)[0].inner_lr_velocity)
    assert slope > 0
    after, _ = replace(method, inner_lr_lr=2 * 2.0 / slope).step(problem, state, STEP)
    assert float(after.inner_lr) == pytest.approx(2 * math.exp(-2))


@pytest.mark.parametrize("inner_lr", [0.001, 1.0])
def test_an_inner_step_size_that_diverges_is_a_status(problem: Problem, inner_lr: float) -> None:
    """Out of the range of floats, downwards or upwards."""
    method = BPCWasserstein(**SMALL, inner_lr=inner_lr, inner_lr_lr=1e6, num_steps=5)
    outcome = run(method, problem, seed=0)
    assert outcome.status == "diverged"
    assert outcome.reason.startswith("inner_lr became NaN or infinite")
    assert outcome.coreset.x.isfinite().all()
