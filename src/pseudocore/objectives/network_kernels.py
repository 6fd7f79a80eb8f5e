r"""Kernels of networks: closed forms of infinitely wide fully-connected ReLU networks, and inner
products of features.

For hidden layers $l = 1 \dots L$ of a network whose weights have variance $\sigma_w^2$ over the
fan-in and whose biases have $\sigma_b^2$, with $c = K / \sqrt{K(x,x) K(x',x')}$ of the layer below
and the arc-cosine functions (Cho & Saul 2009)

$$ \kappa_0(c) = \tfrac1\pi(\pi - \arccos c), \qquad \kappa_1(c) = \tfrac1\pi\left(\sqrt{1 - c^2} +
(\pi - \arccos c)\, c\right), $$

the covariance of the outputs at initialisation (NNGP) and the inner product of their gradients in
the parameters (NTK, Jacot et al. 2018) are

$$ K^0 = \sigma_w^2 \tfrac{x^\top x'}{d} + \sigma_b^2, \qquad
   K^l = \tfrac{\sigma_w^2}2 \sqrt{K^{l-1}(x,x)\, K^{l-1}(x',x')}\; \kappa_1(c) + \sigma_b^2, $$
$$ \Theta^0 = K^0, \qquad \Theta^l = K^l + \Theta^{l-1}\, \tfrac{\sigma_w^2}2\, \kappa_0(c). $$

Where $x = x'$ both $\kappa$ are 1 and smooth in $x$, but the slope of $\kappa_0$ in $c$ is
infinite: a matrix of points with themselves has its diagonal from the exact recursion, and no
gradient passes through the formula there.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.problem import Problem

Kernel = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Points to their kernel with themselves (M, M), and that of a real batch with them (n, M)."""


class DenseKernel(NamedTuple):
    """The kernel of an infinitely wide fully-connected ReLU network, on flattened inputs."""

    kind: Literal["nngp", "ntk"]
    depth: int
    """Hidden layers L."""
    weight_variance: float = 2.0
    """σ_w²; 2 keeps the scale of activations."""
    bias_variance: float = 0.01
    """σ_b², above 0: a point at the origin has no direction otherwise."""

    def gram(self, x: Tensor) -> Tensor:
        """Points with themselves, (n, n)."""
        x = x.flatten(1)
        own = torch.eye(len(x), dtype=torch.bool, device=x.device)
        return torch.where(own, self.diagonal(x).unsqueeze(1), self._between(x, x, own))

    def cross(self, x: Tensor, other: Tensor) -> Tensor:
        """Points with other points, (n, m)."""
        return self._between(x.flatten(1), other.flatten(1), None)

    def diagonal(self, x: Tensor) -> Tensor:
        """Every point with itself, (n,)."""
        size = self._first(x.flatten(1).square().sum(1), x[0].numel())
        tangent = size
        for _ in range(self.depth):
            size = self.weight_variance / 2 * size + self.bias_variance
            tangent = size + self.weight_variance / 2 * tangent
        return tangent if self.kind == "ntk" else size

    def _between(self, x: Tensor, other: Tensor, own: Tensor | None) -> Tensor:
        """The recursion on x (n, d) and other (m, d), off the places of a point with itself."""
        half = self.weight_variance / 2
        # K(x, x), K(x', x')
        rows, columns = (self._first(points.square().sum(1), x.shape[1]) for points in (x, other))
        kernel = tangent = self._first(x @ other.mT, x.shape[1])
        for _ in range(self.depth):
            size = (rows.unsqueeze(1) * columns).sqrt()
            cosine = kernel / size if own is None else torch.where(own, 0.0, kernel / size)
            zeroth, first = _arc_cosines(cosine)
            kernel = half * size * first + self.bias_variance
            tangent = kernel + half * tangent * zeroth
            rows, columns = half * rows + self.bias_variance, half * columns + self.bias_variance
        return tangent if self.kind == "ntk" else kernel

    def _first(self, product: Tensor, dim: int) -> Tensor:
        return self.weight_variance * product / dim + self.bias_variance


def own_features(problem: Problem, theta: Tensor, x: Tensor) -> Tensor:
    """Last-layer features (M, h) of the points themselves."""
    with problem.fast():
        return problem.model.features(theta, x).to(x.dtype)


def real_features(problem: Problem, theta: Tensor, x: Tensor, real: Tensor) -> Tensor:
    """Last-layer features (n, h) of real inputs; batch norm has the statistics of x."""
    with problem.fast():
        statistics = problem.model.statistics(theta, x) or None
        return problem.model.features(theta, real, statistics).to(real.dtype)


def inner_products(x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Inner products of features with themselves (n, n), and of others with them (m, n), over h."""
    return x @ x.mT / x.shape[1], other @ x.mT / x.shape[1]


def feature_kernel(problem: Problem, thetas: Sequence[Tensor], x: Tensor, real: Tensor) -> Kernel:
    """The mean kernel of the features of several networks, for points like x.

    Features of the real batch are computed once, as no gradient passes through them.
    """
    fixed = [real_features(problem, theta, x, real) for theta in thetas]

    def kernel(x: Tensor) -> tuple[Tensor, Tensor]:
        products = [
            inner_products(own_features(problem, theta, x), other)
            for theta, other in zip(thetas, fixed, strict=True)
        ]
        grams, crosses = zip(*products, strict=True)
        return torch.stack(grams).mean(0), torch.stack(crosses).mean(0)

    return kernel


def _arc_cosines(cosine: Tensor) -> tuple[Tensor, Tensor]:
    """κ₀ and κ₁."""
    near = 1 - 4 * torch.finfo(cosine.dtype).eps  # at 1 itself the slope of the angle is infinite
    cosine = cosine.clamp(-near, near)
    away = math.pi - torch.arccos(cosine)
    return away / math.pi, ((1 - cosine.square()).sqrt() + away * cosine) / math.pi
