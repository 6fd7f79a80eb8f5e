"""Black-box coreset VI: its gradient beside psvi's, and draws weighted by importance."""

import torch
from torch import Tensor

from pseudocore.assembly import Setup, build
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.data.toys import GaussianLocation
from pseudocore.methods.bayes import psvi
from pseudocore.methods.bayes.black_box_vi import BBVIPoints, BBVIState, BlackBoxVI, gradient
from pseudocore.methods.select.hilbert import GIGA
from pseudocore.objectives.point_likelihoods import point_model
from pseudocore.objectives.small_models import Gaussian, Location, draw, kl, posterior


def test_the_gradient_is_that_of_psvi() -> None:
    """Over the same draws, all of which count the same."""
    toy = GaussianLocation(dim=3, num_points=30)
    x, model = toy.points(0), Location()
    u, weight = x[:4] + 0.3, torch.tensor([3.0, 8.0, 1.0, 6.0]).double()
    thetas = draw(Gaussian(*toy.posterior(u, weight)), 50, Rng(1))
    data = Examples(x, torch.zeros(30, dtype=torch.int64))
    points = psvi.Points(u, torch.zeros(4, dtype=torch.int64), weight)
    q = Gaussian(*toy.posterior(u, weight))
    theirs, _ = psvi.gradient(model, points, data, 1.0, q, thetas)

    def likelihood(points: BBVIPoints) -> Tensor:
        return model.log_likelihood(thetas, points.x, data.y[:4]) @ points.weight.exp()

    start = BBVIPoints(u, weight.log())
    rest = model.log_likelihood(thetas, x, data.y).sum(1) - likelihood(start)
    found, _ = gradient(likelihood, start, rest, torch.full((50,), 1 / 50, dtype=torch.float64))
    shrunk = 49 / 50  # psvi divides by draws - 1
    torch.testing.assert_close(found.x, shrunk * theirs.x)
    torch.testing.assert_close(found.weight, shrunk * theirs.weight * weight)


def test_importance_weights_turn_draws_of_q_into_draws_of_the_posterior() -> None:
    toy = GaussianLocation(dim=2, num_points=20)
    x, model = toy.points(3), Location()
    exact = Gaussian(*toy.posterior(x[:5], torch.full((5,), 4.0).double()))
    noise = Rng(0).normal(40_000, 2, dtype=torch.float64)
    thetas = exact.mean + 0.1 + 2 * exact.covariance.diagonal().sqrt() * noise
    own = model.log_likelihood(thetas, x[:5], x[:5]).sum(1) * 4
    ratio = own - 0.5 * thetas.square().sum(1) + 0.5 * noise.square().sum(1)
    share = ratio.softmax(0)
    torch.testing.assert_close(share @ thetas, exact.mean, atol=0.01, rtol=0)


def test_steps_bring_the_exact_posteriors_together() -> None:
    """Linear regression, whose posteriors are known."""
    rng = Rng(4)
    x = rng("x").normal(50, 2)
    y = x @ torch.tensor([[1.0], [-2.0]]) + 0.5 + rng("y").normal(50, 1)
    data = Dataset("line", Examples(x[:40], y[:40]), Examples(x[40:], y[40:]), 1, task="regression")
    setup = Setup(model="linear", preprocess="none", task="regression", target_noise=1.0)
    problem = build(setup, data, device="cpu")
    points = point_model(problem, GIGA(), Rng(0), name="giga")

    def divergence(state: BBVIState) -> float:
        u, weight = state.points.x.double(), state.points.weight.exp().double()
        own = posterior(points.model, u, state.y.double(), weight, num_newton=1)
        return float(kl(own, points.of_all()))

    method = BlackBoxVI(
        points=4, num_steps=150, num_warmup=100, num_inner_steps=2, image_lr=0.05, weight_lr=0.05,
        inner_lr=0.05,
    )  # fmt: skip
    state = method.init(problem, Rng(0))
    before = divergence(state)
    for number in range(150):
        state, info = method.step(problem, state, Rng(1)("step", number))
    assert float(info.ess) > 0.3
    assert divergence(state) < 0.2 * before
