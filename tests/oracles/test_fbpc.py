"""FBPC's expectations against closed forms, and what its steps do to a regression's KL."""

import pytest
import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.methods.bayes.fbpc import FBPC, expected
from pseudocore.models.dense import MLP
from pseudocore.testing import small_problem


def whitened(num: int, size: int) -> Tensor:
    """Noise of mean 0 and covariance I exactly."""
    z = Rng(0)("noise").normal(num, size, dtype=torch.float64)
    z = z - z.mean(0)
    return z @ torch.linalg.inv(torch.linalg.cholesky(z.mT @ z / num)).mT


def test_functions_have_the_moments_of_the_networks() -> None:
    """Where the log-likelihood is a quadratic of the outputs, its mean is known."""
    problem = small_problem(model=MLP(width=4, depth=1), reference=True, dtype=torch.float64)
    thetas = problem.reference.thetas[:6]  # type: ignore[union-attr]
    x, y = problem.batch(torch.tensor([0, 30, 60]))
    weight = torch.tensor([2.0, 0.5, 3.0], dtype=torch.float64)

    class Quadratic:
        task = "classification"

        def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
            return -0.5 * (outputs - y.unsqueeze(-1)).square().sum(-1)

    object.__setattr__(problem, "likelihood", Quadratic())
    found = expected(problem, x, y, weight, thetas, whitened(40, 6))
    outputs = problem.logits(thetas, x)
    mean, variance = outputs.mean(0), outputs.var(0)
    exact = -0.5 * ((mean - y.unsqueeze(-1)).square() + variance).sum(-1) @ weight
    torch.testing.assert_close(found, exact)


def test_at_the_posterior_of_the_data_points_rest() -> None:
    """Networks that training on the points leaves where they are make no gradient on average."""
    problem = small_problem(model=MLP(width=4, depth=1), reference=True)
    still = FBPC(per_class=1, num_steps=1, inner_lr=1e-12, num_draws=2000)
    moved = FBPC(per_class=1, num_steps=1, inner_lr=0.3, num_draws=2000)
    gaps = []
    for method in (still, moved):
        state = method.init(problem, Rng(0))
        _, info = method.step(problem, state, Rng(1))
        gaps.append(float(info.gap))
    assert abs(gaps[0]) < 0.1 * gaps[1]


def test_without_a_reference_it_is_refused() -> None:
    problem = small_problem()
    with pytest.raises(ConfigError) as caught:
        FBPC().step(problem, FBPC().init(problem, Rng(0)), Rng(0))
    assert caught.value.code == "needs-reference"
