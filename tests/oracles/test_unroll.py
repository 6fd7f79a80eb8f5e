"""Unrolled training against plain autograd through the written-out loop, closed forms, and what
memory it takes.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.data import DSA, digits
from pseudocore.data import preprocessing as whiten
from pseudocore.methods.bayes.bpc_rkl import reverse_kl
from pseudocore.models.convnet import ConvNet
from pseudocore.models.dense import MLP
from pseudocore.objectives import trajectory, unroll
from pseudocore.objectives.contrast import contrast
from pseudocore.objectives.image_sgd import ImagesState
from pseudocore.runtime import autodiff
from pseudocore.runtime.steps import StepRunner

MakeProblem = Callable[..., Problem]

STEPS = 7


class Case:
    """A problem, points on it, a start, a step size and somewhere to arrive at."""

    def __init__(self, problem: Problem, num: int) -> None:
        rng = Rng(3)
        self.problem = problem
        self.x, self.y = problem.batch(torch.arange(num))
        self.theta = problem.model.init(rng("theta"), dtype=torch.float64)
        self.target = self.theta + 0.05 * rng("target").normal(len(self.theta), dtype=torch.float64)
        self.step_size = torch.tensor(0.3, dtype=torch.float64)
        self.rng = rng("inner")

    @property
    def parts(self) -> tuple[unroll.Energy, unroll.View]:
        return trajectory.MeanLoss(self.problem, self.y), trajectory.view_of(self.problem)

    def written_out(self, x: Tensor, step_size: Tensor) -> list[Tensor]:
        """The path by autograd alone, with its graph."""
        theta, thetas = self.theta.clone().requires_grad_(), []
        thetas.append(theta)
        for step in range(STEPS):
            images = (
                x
                if self.problem.augment is None
                else self.problem.augment(x, self.rng("view", step))
            )
            loss = cross_entropy(self.problem.model.logits(theta, images), self.y)
            theta = theta - step_size * torch.autograd.grad(loss, theta, create_graph=True)[0]
            thetas.append(theta)
        return thetas


def images(norm: Any) -> Problem:
    """Digits under a small convolutional network, augmented anew at every step."""
    data = digits()
    model = ConvNet(width=3, depth=2, norm=norm).build(data.shape, data.num_classes)
    augment = DSA(strategy="color_crop_cutout_flip_scale_rotate")
    return Problem(
        data,
        model,
        whiten.make("standard", data, dtype=torch.float64),
        augment,
        dtype=torch.float64,
    )


@pytest.fixture(params=["mlp", "instance", "batch", "none"])
def case(request: pytest.FixtureRequest, make_problem: MakeProblem) -> Case:
    return (
        Case(make_problem(MLP(width=5)), 6)
        if request.param == "mlp"
        else Case(images(request.param), 4)
    )


def test_descending_is_the_written_out_loop(case: Case) -> None:
    end = unroll.descend(*case.parts, case.theta, case.x, case.rng, num_steps=STEPS, step_size=0.3)
    torch.testing.assert_close(
        end, case.written_out(case.x, case.step_size)[-1].detach(), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("whole", [False, True])
def test_the_gradient_is_that_of_plain_autograd(case: Case, whole: bool, recompute: bool) -> None:
    def objective(thetas: Sequence[Tensor]) -> Tensor:
        away = (thetas[-1] - case.target).square().sum()
        return (
            away
            + sum(
                ((place + 1) * theta.sin().sum() for place, theta in enumerate(thetas[:-1])),
                torch.zeros(()),
            )
            if whole
            else away
        )

    pulled = unroll.differentiate(
        objective,
        *case.parts,
        case.theta,
        case.x,
        case.step_size,
        case.rng,
        num_steps=STEPS,
        whole=whole,
        recompute=recompute,
    )
    x, step_size = case.x.clone().requires_grad_(), case.step_size.clone().requires_grad_()
    value = objective(case.written_out(x, step_size))
    in_x, in_size = torch.autograd.grad(value, (x, step_size))
    assert in_x.abs().max() > 1e-6
    torch.testing.assert_close(pulled.x, in_x, rtol=0, atol=1e-8 * float(in_x.abs().max()))
    torch.testing.assert_close(pulled.step_size, in_size, rtol=1e-8, atol=0)
    torch.testing.assert_close(pulled.value, value.detach(), rtol=1e-12, atol=0)


def test_a_quadratic_path_is_known_in_closed_form() -> None:
    """With E = ½ mean ‖u − θ‖² the path contracts towards the mean of u: θ_L = ū + (1 − η)^L (θ₀ −
    ū).
    """
    rng, eta, num = Rng(1), torch.tensor(0.2, dtype=torch.float64), 9
    u, start, target = (
        rng(name).normal(*shape, dtype=torch.float64)
        for name, shape in {"u": (4, 3), "s": (3,), "t": (3,)}.items()
    )
    pulled = unroll.differentiate(
        lambda thetas: (thetas[-1] - target).square().sum(),
        lambda theta, u: 0.5 * (u - theta).square().sum(1).mean(),
        lambda u, _: u,
        start,
        u,
        eta,
        rng,
        num_steps=num,
    )
    centre = u.mean(0)
    end = centre + (1 - eta) ** num * (start - centre)
    in_end = 2 * (end - target)
    torch.testing.assert_close(
        pulled.x, ((1 - (1 - eta) ** num) / 4 * in_end).expand(4, 3), rtol=1e-12, atol=0
    )
    torch.testing.assert_close(
        pulled.step_size,
        in_end @ (-num * (1 - eta) ** (num - 1) * (start - centre)),
        rtol=1e-12,
        atol=0,
    )


def test_compiled_in_pieces_the_way_back_is_one_of_them_and_draws_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, pieces = Case(images("instance"), 4), []

    def note(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        pieces.append(function)
        return lambda *arguments: function(*arguments)

    def step(_: Problem, state: ImagesState, rng: Rng) -> tuple[ImagesState, Tensor]:
        pulled = unroll.differentiate(
            lambda thetas: (thetas[-1] - case.target).square().sum(),
            *case.parts, case.theta, state.x, case.step_size, rng("inner"), num_steps=STEPS,
        )  # fmt: skip
        images, pull = unroll.augment_vjp(case.parts[1], state.x, rng("view"))
        return state._replace(x=pulled.x, velocity=pull(images)), pulled.value

    monkeypatch.setattr(torch, "compile", note)
    start = ImagesState(case.x, case.y, torch.zeros_like(case.x))
    eager, _ = StepRunner(step, case.problem, "off", repeats_passes=True)(start, Rng(1))
    assert pieces == []
    compiled, _ = StepRunner(step, case.problem, "on", repeats_passes=True)(start, Rng(1))
    assert autodiff._pull in pieces
    torch.testing.assert_close(
        compiled, eager, rtol=1e-11, atol=1e-13
    )  # gradients by torch.func.grad, and by torch.autograd.grad


def test_noisy_steps_have_the_moments_of_their_autoregression() -> None:
    """20,000 chains in one vector; Langevin steps on a quadratic are an AR(1) process."""
    curvature, centre, start, alpha, num, chains = 2.0, 1.0, -1.0, 0.3, 6, 20_000
    end = unroll.descend(
        lambda theta, _: 0.5 * curvature * (theta - centre).square().sum(),
        lambda x, _: x,
        torch.full((chains,), start, dtype=torch.float64),
        torch.zeros(1),
        Rng(0),
        num_steps=num,
        step_size=alpha / 2,
        noise=alpha**0.5,
    )
    keep = 1 - alpha * curvature / 2
    mean = centre + keep**num * (start - centre)
    variance = alpha * sum(keep ** (2 * step) for step in range(num))
    assert abs(float(end.mean()) - mean) < 4 * (variance / chains) ** 0.5
    assert abs(float(end.var()) - variance) < 4 * variance * (2 / chains) ** 0.5


@pytest.mark.parametrize("recompute", [True, False])
def test_memory_does_not_grow_with_the_steps_when_they_are_recomputed(recompute: bool) -> None:
    case = Case(images("instance"), 40)

    def peak(num_steps: int) -> float:
        def along() -> None:
            unroll.differentiate(
                lambda thetas: (thetas[-1] - case.target).square().sum(),
                *case.parts,
                case.theta,
                case.x,
                case.step_size,
                case.rng,
                num_steps=num_steps,
                recompute=recompute,
            )  # fmt: skip

        return peak_bytes(along)

    short, long = peak(2), peak(10)
    parameters = 8 * 8 * len(case.theta)  # bytes of what eight more steps must keep
    assert (long <= 1.05 * short + 2 * parameters) == recompute, (short, long)


@pytest.mark.parametrize("divergence", ["contrast", "reverse-kl"])
def test_memory_does_not_grow_with_the_draws(divergence: str) -> None:
    case = Case(images("instance"), 40)
    energy, problem, labels = case.parts[0], case.problem, case.y

    def draws(name: str, num: int) -> Iterator[Tensor]:
        return trajectory.near(case.theta, 0.01, Rng(0)(name), num=num)

    def peak(num: int) -> float:
        def along() -> None:
            if divergence == "contrast":
                contrast(
                    energy, case.x, zip(draws("positive", num), draws("negative", num), strict=True)
                )
            else:
                reverse_kl(
                    lambda theta, x: problem.log_likelihood(theta, x, labels),
                    lambda theta: problem.log_likelihood(theta, case.x, labels).mean(),
                    case.x,
                    lambda: draws("student", num),
                )

        return peak_bytes(along)

    assert peak(30) <= 1.02 * peak(3)


def peak_bytes(call: Callable[[], None]) -> float:
    """The most that was allocated at once, from the profiler's record of every allocation and
    release.
    """
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profiler:
        call()
    record: Any = profiler.profiler
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in record.kineto_results.events()
        if event.name() == "[memory]"
    )
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most
