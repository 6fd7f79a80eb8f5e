"""Laplace on the last layer against the dense Hessian of the log-posterior by autograd, and against
long chains.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian

from pseudocore.core.errors import RunError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.data import logistic
from pseudocore.data import preprocessing as whiten
from pseudocore.inference import density
from pseudocore.inference.hmc import HMC
from pseudocore.inference.laplace import Laplace, logit_covariance
from pseudocore.models.dense import MLP, Linear

M = 9


def make(model: Any, num: int = 60) -> tuple[Problem, Coreset]:
    data = logistic(num=num)
    problem = Problem(
        data,
        model.build((2,), 2),
        whiten.make("standard", data, dtype=torch.float64),
        dtype=torch.float64,
    )
    return problem, Coreset(
        data.train.x[:M].double(), data.train.y[:M], torch.linspace(0.3, 3, M, dtype=torch.float64)
    )


@pytest.mark.parametrize("model", [Linear(), MLP(width=4, depth=1)], ids=["linear", "mlp"])
@pytest.mark.parametrize("prior", ["isotropic", "fan-in"])
@pytest.mark.parametrize("soft", [False, True])
def test_the_covariance_is_that_of_the_dense_hessian(model: Any, prior: Any, soft: bool) -> None:
    problem, coreset = make(model)
    if soft:
        probabilities = torch.tensor([[0.2, 0.8], [0.9, 0.1]], dtype=torch.float64)[coreset.y]
        coreset = Coreset(coreset.x, probabilities, coreset.weight)
    posterior = Laplace(num_steps=20, prior=prior, prior_scale=0.8).posterior(
        problem, coreset, Rng(0)
    )
    log_density = density.exact(problem, coreset, density.log_prior(problem, prior, 0.8, M), Rng(0))
    num_head = 2 * (problem.model.num_features + 1)
    body = posterior.theta[:-num_head]

    def of_head(head: Tensor) -> Tensor:
        return log_density(torch.cat([body, head])[None], Rng(0))[0]

    dense = torch.linalg.inv(-hessian(of_head, posterior.theta[-num_head:]))
    x = problem.inputs(problem.data.test.x[:20])
    phi = problem.model.features(posterior.theta, x)
    jacobian = torch.zeros(20, 2, num_head, dtype=torch.float64)
    for label in range(2):  # weights row by row, then biases
        jacobian[:, label, label * phi.shape[1] : (label + 1) * phi.shape[1]] = phi
        jacobian[:, label, label - 2] = 1
    mean, covariance = logit_covariance(problem, posterior, x)
    assert (mean - problem.model.logits(posterior.theta, x)).abs().max() < 1e-12
    assert torch.allclose(
        covariance, jacobian @ dense @ jacobian.mT, rtol=1e-6, atol=1e-9
    )  # the model keeps its fan-in in float32


def test_training_finds_the_mode() -> None:
    problem, coreset = make(Linear())
    theta = (
        Laplace(num_steps=1500, step_size=0.05, prior_scale=0.8)
        .posterior(problem, coreset, Rng(0))
        .theta
    )
    log_density = density.exact(
        problem, coreset, density.log_prior(problem, "fan-in", 0.8, M), Rng(0)
    )
    gradient, _ = density.grad_log_density(log_density, theta[None], Rng(0))
    assert gradient.abs().max() < 1e-4


def test_temperature_scales_the_covariance_and_leaves_the_mode() -> None:
    """So that a hot posterior is less sure, and a frozen one predicts as its mode does."""
    problem, coreset = make(Linear())
    x = problem.data.test.x
    cold, plain, hot = (
        Laplace(prior_scale=0.8, num_steps=50, temperature=t).fit(problem, coreset, Rng(0))(x)
        for t in (1e-9, 1.0, 25.0)
    )
    theta = Laplace(prior_scale=0.8, num_steps=50).posterior(problem, coreset, Rng(0)).theta
    assert torch.allclose(
        cold, problem.model.logits(theta, problem.inputs(x)).log_softmax(1), atol=1e-6
    )
    assert (hot.max(1).values <= plain.max(1).values).all()
    assert (plain.max(1).values <= cold.max(1).values).all()


def test_mc_is_the_average_over_gaussian_logits() -> None:
    """For two classes an integral in one dimension: the logits' difference is N(m, v)."""
    problem, coreset = make(Linear())
    x = problem.data.test.x[:30]
    ours = (
        Laplace(prior_scale=0.8, num_steps=50, predictive="mc", num_draws=20_000, temperature=1.0)
        .fit(problem, coreset, Rng(0))(x)
        .exp()
    )
    mean, covariance = logit_covariance(
        problem,
        Laplace(prior_scale=0.8, num_steps=50).posterior(problem, coreset, Rng(0)),
        problem.inputs(x),
    )
    m, v = (
        mean[:, 1] - mean[:, 0],
        covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1],
    )
    grid = torch.linspace(-8, 8, 2001, dtype=torch.float64)
    weight = (-grid.square() / 2).softmax(0)
    exact = torch.sigmoid(m[:, None] + v.sqrt()[:, None] * grid) @ weight
    assert (ours[:, 1] - exact).abs().max() < 4 * 0.5 / math.sqrt(20_000)
    probit = (
        Laplace(prior_scale=0.8, num_steps=50, temperature=1.0)
        .fit(problem, coreset, Rng(0))(x)
        .exp()
    )
    assert (probit[:, 1] - exact).abs().max() < 0.05


def test_against_a_long_chain() -> None:
    """With many points and a tight prior the posterior is nearly Gaussian, and HMC and Laplace
    predict the same.
    """
    problem, _ = make(Linear(), num=200)
    x, y = problem.data.train
    coreset = Coreset(x.double(), y, torch.ones(len(x), dtype=torch.float64))
    common: dict[str, Any] = {"prior_scale": 0.6, "temperature": 1.0}
    test, way = (
        problem.data.test.x[:50],
        Laplace(num_steps=500, step_size=0.05, predictive="mc", num_draws=2000, **common),
    )
    hmc = HMC(num_draws=400, num_burn=60, num_chains=16, num_leapfrog=6, step_size=0.1, **common)
    chain = hmc.fit(problem, coreset, Rng(0))
    assert (way.fit(problem, coreset, Rng(0))(test).exp() - chain(test).exp()).abs().max() < 0.02
    drawn = torch.stack([log_probs[:, 1] - log_probs[:, 0] for log_probs in chain.each(test)])
    _, covariance = logit_covariance(
        problem, way.posterior(problem, coreset, Rng(0)), problem.inputs(test)
    )
    variance = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
    assert torch.allclose(variance, drawn.var(0), rtol=0.15)
    assert float((variance / drawn.var(0)).mean()) == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize(
    "options",
    [
        {"prior_scale": 1e-200},
        {"prior_scale": 1e200, "num_steps": 1},
        {"step_size": 1e200, "num_steps": 3},
    ],
)
def test_a_curvature_that_cannot_be_inverted_is_refused_with_a_sentence(
    options: dict[str, Any],
) -> None:
    problem, coreset = make(MLP(width=4, depth=1))
    with pytest.raises(
        RunError, match="laplace found no curvature it could invert: training may have diverged"
    ):
        Laplace(**{"num_steps": 5, **options}).posterior(problem, coreset, Rng(0))
