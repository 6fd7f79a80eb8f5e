"""The divergences as functions: against exact KL divergences of conjugate Gaussians, and Eq. (15)
by matrix square roots.
"""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from pseudocore.core.rng import Rng
from pseudocore.data.toys import GaussianLocation
from pseudocore.methods.bayes.bpc_fkl import contrast_by_draw
from pseudocore.methods.bayes.bpc_rkl import reverse_kl
from pseudocore.methods.bayes.bpc_w import relative_distance
from pseudocore.objectives.contrast import contrast

TOY = GaussianLocation(dim=4, num_points=30, noise=1.5, prior=2.0)


def toy() -> tuple[Tensor, Tensor]:
    """Data (30, 4) and pseudo-points (5, 4)."""
    return TOY.points(), Rng(2).normal(5, 4, dtype=torch.float64)


def posterior(x: Tensor) -> MultivariateNormal:
    return MultivariateNormal(*TOY.posterior(x, torch.ones(len(x), dtype=torch.float64)))


def log_likelihoods(theta: Tensor, x: Tensor) -> Tensor:
    """Of points (n, d) under thetas (..., d), but for a constant, (..., n)."""
    return -0.5 * (x - theta.unsqueeze(-2)).square().sum(-1) / TOY.noise**2


def sigma_points(x: Tensor) -> Tensor:
    """Equally weighted draws that have the posterior's mean, covariance and third moments exactly,
    (2 d, d).
    """
    law = posterior(x)
    columns = math.sqrt(TOY.dim) * law.scale_tril.mT
    return torch.cat([law.mean + columns, law.mean - columns])


def exact_gradient(divergence: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    u = u.clone().requires_grad_()
    return torch.autograd.grad(divergence(u), u)[0]


@pytest.mark.parametrize("batch", [1, 3])
def test_the_contrast_is_the_gradient_of_the_exact_forward_kl(batch: int) -> None:
    """Both expectations are linear in theta here, so exact means are enough."""
    x, u = toy()
    sides = [torch.split(sigma_points(points), batch) for points in (x, u)]
    pairs = zip(
        *([part[0] if batch == 1 else part for part in side] for side in sides), strict=True
    )
    gradient, _ = contrast(lambda theta, u: -log_likelihoods(theta, u).sum(-1).mean(), u, pairs)
    exact = exact_gradient(lambda u: kl_divergence(posterior(x), posterior(u)), u)
    torch.testing.assert_close(gradient, exact, rtol=0, atol=1e-12)
    assert kl_divergence(posterior(x), posterior(u - 0.1 * gradient)) < kl_divergence(
        posterior(x), posterior(u)
    )


def test_a_contrast_by_draw_has_a_view_for_every_pair() -> None:
    """Views that multiply by a random number a: the mean over pairs of a times the gradient at a·u."""
    x, u = toy()
    both = [sigma_points(points)[:4] for points in (x, u)]
    pairs = list(zip(*both, strict=True))
    factors = [1 + Rng(0)(number).uniform(1, dtype=torch.float64)[0] for number in range(4)]

    def energy(theta: Tensor, u: Tensor) -> Tensor:
        return -log_likelihoods(theta, u).square().sum(-1).mean()

    def view(u: Tensor, rng: Rng) -> Tensor:
        return (1 + rng.uniform(1, dtype=torch.float64)[0]) * u

    gradient, gap = contrast_by_draw(energy, view, u, pairs, Rng(0))
    parts = [contrast(energy, a * u, [pair]) for a, pair in zip(factors, pairs, strict=True)]
    torch.testing.assert_close(
        gradient, sum(a * g / 4 for a, (g, _) in zip(factors, parts, strict=False))
    )
    torch.testing.assert_close(gap, sum(value / 4 for _, value in parts))
    both = [torch.stack([one, other]) for one, other in (both[0][:2], both[1][:2])]
    batch = contrast_by_draw(energy, view, u, [(both[0], both[1])], Rng(0))
    same = contrast(energy, factors[0] * u, [(both[0], both[1])])
    torch.testing.assert_close(batch[0], factors[0] * same[0])


@pytest.mark.parametrize("batch", [1, 3])
def test_the_covariance_is_the_gradient_of_the_exact_reverse_kl(batch: int) -> None:
    x, u = toy()

    def draws() -> Iterator[Tensor]:
        return (part[0] if batch == 1 else part for part in torch.split(sigma_points(u), batch))

    gradient, _ = reverse_kl(
        log_likelihoods, lambda theta: log_likelihoods(theta, x).sum(-1), u, draws
    )
    exact = exact_gradient(lambda u: kl_divergence(posterior(u), posterior(x)), u)
    torch.testing.assert_close(gradient, exact, rtol=0, atol=1e-12)
    assert kl_divergence(posterior(u - 0.1 * gradient), posterior(x)) < kl_divergence(
        posterior(u), posterior(x)
    )


def test_the_distance_is_the_wasserstein_distance_of_diagonal_gaussians() -> None:
    """Eq. (15) by matrix square roots; a straight path of n pieces has standard deviation length /
    √12 whatever n.
    """
    rng = Rng(4)
    start, student, expert = (
        rng(name).normal(3, dtype=torch.float64) for name in ("start", "student", "expert")
    )
    paths = [
        torch.stack([start + share * (end - start) for share in torch.linspace(0, 1, num)])
        for end, num in ((student, 6), (expert, 3))
    ]
    covariances = [torch.diag((end - start).square() / 12) for end in (student, expert)]
    ours, theirs = covariances
    cross = root(root(ours) @ theirs @ root(ours))
    squared = (student - expert).square().sum() + torch.trace(theirs + ours - 2 * cross)
    relative = squared / (start - expert).square().sum()
    torch.testing.assert_close(
        relative_distance(list(paths[0]), paths[1], diagonal=True), relative, rtol=1e-6, atol=0
    )


def root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    result: Tensor = vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.mT
    return result
