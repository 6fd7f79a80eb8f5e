"""Kernels in closed form against networks of finite width drawn at random, and ridge regression
against numpy.
"""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from pseudocore.core.rng import Rng
from pseudocore.objectives import kernel_regression as regression
from pseudocore.objectives.network_kernels import DenseKernel, inner_products

DIM, WIDTH, NUM_NETWORKS = 5, 300, 40
WEIGHT, BIAS = 1.7, 0.3  # not the defaults, and far enough from them to be noticed


def points(num: int = 4) -> Tensor:
    x = Rng(0)("points").normal(num, DIM, dtype=torch.float64)
    x[1] = -0.5 * x[0]  # opposite, and of another length
    return x


def network(theta: list[tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
    """Output of a network whose variances stand before the parameters and not in them."""
    for number, (weight, bias) in enumerate(theta):
        inputs = x if number == 0 else x.relu()
        x = math.sqrt(WEIGHT / weight.shape[1]) * weight @ inputs + math.sqrt(BIAS) * bias
    return x[0]


def parameters(depth: int, rng: Rng) -> list[tuple[Tensor, Tensor]]:
    sizes = [DIM, *[WIDTH] * depth, 1]
    return [
        (
            rng("weight", layer).normal(after, before, dtype=torch.float64),
            rng("bias", layer).normal(after, dtype=torch.float64),
        )
        for layer, (before, after) in enumerate(itertools.pairwise(sizes))
    ]


def drawn_nngp(depth: int, x: Tensor, rng: Rng) -> Tensor:
    """Covariance of the output over the last layer, given the layers below."""
    hidden = x.mT
    for number, (weight, bias) in enumerate(parameters(depth, rng)[:-1]):
        inputs = hidden if number == 0 else hidden.relu()
        hidden = math.sqrt(WEIGHT / weight.shape[1]) * weight @ inputs + math.sqrt(
            BIAS
        ) * bias.unsqueeze(1)
    active = hidden.relu()
    return WEIGHT / WIDTH * active.mT @ active + BIAS


def drawn_ntk(depth: int, x: Tensor, rng: Rng) -> Tensor:
    """Inner products of the output's gradients in all parameters."""
    jacobian = vmap(jacrev(network), in_dims=(None, 0))(parameters(depth, rng), x)
    rows = torch.cat([part.flatten(1) for layer in jacobian for part in layer], 1)
    return rows @ rows.mT


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(("kind", "draw"), [("nngp", drawn_nngp), ("ntk", drawn_ntk)])
def test_the_closed_forms_are_means_over_wide_networks(kind: Any, draw: Any, depth: int) -> None:
    """|z| < 4 in every entry; the bias of a finite width, of order 1 / WIDTH, is a fraction of a
    standard error here.
    """
    x = points()
    draws = torch.stack([draw(depth, x, Rng(1)(number)) for number in range(NUM_NETWORKS)])
    error = draws.std(0) / math.sqrt(NUM_NETWORKS)
    assert (error / draws.mean(0).abs()).max() < 0.1  # or z would show nothing
    z = (draws.mean(0) - DenseKernel(kind, depth, WEIGHT, BIAS).gram(x)) / error
    assert z.abs().max() < 4, z


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
def test_gram_cross_and_diagonal_agree(kind: Any) -> None:
    kernel, x = DenseKernel(kind, 3, WEIGHT, BIAS), points(6)
    whole = kernel.gram(x)
    torch.testing.assert_close(kernel.cross(x[:2], x[2:]), whole[:2, 2:], rtol=1e-12, atol=0)
    torch.testing.assert_close(kernel.diagonal(x), whole.diagonal(), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        kernel.cross(x, x), whole, rtol=1e-6, atol=0
    )  # near the diagonal the formula loses half the digits
    assert torch.linalg.eigvalsh(whole).min() > 0
    images = x.view(6, 1, 5, 1)
    torch.testing.assert_close(kernel.gram(images), whole, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["nngp", "ntk"])
def test_the_gradient_is_finite_at_the_diagonal_at_twins_and_at_the_origin(
    kind: Any, dtype: torch.dtype
) -> None:
    x = points().to(dtype)
    x = torch.cat([x, x[:1], torch.zeros_like(x[:1])])  # a twin, and a point without direction
    kernel = DenseKernel(kind, 2)
    weights = Rng(0)("weights").normal(len(x), len(x), dtype=dtype)
    pulled = grad(
        lambda x: (
            (weights * kernel.gram(x)).sum()
            + (weights * kernel.cross(points(6).to(dtype), x)).sum()
        )
    )(x)
    assert pulled.isfinite().all()
    assert (pulled.flatten(1).norm(dim=1) > 0).all()


def test_the_diagonal_passes_its_own_gradient() -> None:
    """tr Θ(x, x) = Σ (a ‖x‖² + b) has the gradient 2 a x; through the formula at c = 1 it would be
    lost.
    """
    x, kernel = points(), DenseKernel("ntk", 2)
    pulled = grad(lambda x: kernel.gram(x).diagonal().sum())(x)
    slope = (kernel.diagonal(2 * x[:1]) - kernel.diagonal(x[:1])) / (3 * x[0].square().sum())
    torch.testing.assert_close(pulled, 2 * slope * x, rtol=1e-12, atol=0)


def test_inner_products_are_over_the_number_of_features() -> None:
    x, other = points(3), points(6)[4:]
    gram, cross = inner_products(x, other)
    np.testing.assert_allclose(gram.numpy(), np.einsum("ih,jh->ij", x, x) / DIM, rtol=1e-14)
    np.testing.assert_allclose(cross.numpy(), np.einsum("ih,jh->ij", other, x) / DIM, rtol=1e-14)


def test_regression_is_that_of_numpy() -> None:
    rng = Rng(2)
    features, others, y = (
        rng(name).normal(*shape, dtype=torch.float64)
        for name, shape in {"f": (4, 9), "o": (3, 9), "y": (4, 2)}.items()
    )
    gram, cross = inner_products(features, others)
    ours = regression.regress(gram, cross, y, ridge=0.05)
    phi = features.numpy() / 3
    ridge = 0.05 * (phi**2).sum() / 4
    weights = np.linalg.solve(phi.T @ phi + ridge * np.eye(9), phi.T @ y.numpy())  # the h × h way
    np.testing.assert_allclose(ours.numpy(), others.numpy() / 3 @ weights, rtol=1e-10)


def test_weighted_regression_is_that_of_numpy() -> None:
    """By least squares with every error weighed, as if points came more than once."""
    features, others, y = (Rng(2)(name).normal(4, 9, dtype=torch.float64) for name in "foy")
    weight = torch.tensor([0.25, 0.5, 1.25, 2.0], dtype=torch.float64)
    gram, cross = inner_products(features, others)
    ours = regression.regress(gram, cross, y, ridge=0.05, weight=weight)
    phi, w = features.numpy() / 3, weight.numpy()
    ridge = 0.05 * (w * (phi**2).sum(1)).sum() / 4
    weights = np.linalg.solve((phi.T * w) @ phi + ridge * np.eye(9), (phi.T * w) @ y.numpy())
    np.testing.assert_allclose(ours.numpy(), others.numpy() / 3 @ weights, rtol=1e-10)


def test_a_matrix_that_is_not_positive_gives_no_predictions() -> None:
    gram = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    assert regression.regress(gram, gram, torch.eye(2), ridge=1e-9).isnan().all()
    assert regression.regress(gram, gram, torch.eye(2), ridge=2.0).isfinite().all()


def test_the_loss_is_squared_error_and_the_scale_moves_nothing_else() -> None:
    mean = Rng(3).normal(5, 3, dtype=torch.float64)
    y, log_scale = torch.tensor([0, 1, 2, 0, 1]), torch.tensor(0.7, dtype=torch.float64)

    def squared_error(mean: Tensor) -> Tensor:
        return 0.5 * (mean - (torch.eye(3, dtype=torch.float64)[y] - 1 / 3)).square().sum(1).mean()

    value, log_probs = regression.loss(mean, y, log_scale)
    nll = torch.nn.functional.cross_entropy(log_scale.exp() * mean, y)
    torch.testing.assert_close(value, squared_error(mean) + nll)
    torch.testing.assert_close(log_probs, (log_scale.exp() * mean).log_softmax(1))
    torch.testing.assert_close(
        grad(lambda mean: regression.loss(mean, y, log_scale)[0])(mean), grad(squared_error)(mean)
    )
    by_scale = grad(lambda log_scale: regression.loss(mean, y, log_scale)[0])(log_scale)
    torch.testing.assert_close(
        by_scale, grad(lambda s: torch.nn.functional.cross_entropy(s.exp() * mean, y))(log_scale)
    )
