r"""Kernels on features, a block of rows at a time, and the two discrepancies they define.

$$ k(x, y) = e^{-\lVert x - y\rVert^2 / 2\ell^2}, \qquad
   c(x, y) = \bigl(1 + \lVert x - y\rVert^2 / \ell^2\bigr)^{-1/2} $$

With weights $w$ that sum to 1, the maximum mean discrepancy between points $(x, w)$ and data $(z, v)$
and the kernel Stein discrepancy between points and a density of score $s = \nabla \log p$ are

$$ \mathrm{MMD}^2 = w^\top K_{xx} w - 2 w^\top K_{xz} v + v^\top K_{zz} v, \qquad
   \mathrm{KSD}^2 = w^\top P w, $$

with the Langevin Stein kernel of $c$ (Gorham & Mackey 2017), in closed form,

$$ p(x, y) = \nabla_x \cdot \nabla_y c + s(x)^\top \nabla_y c + s(y)^\top \nabla_x c + s(x)^\top s(y)\, c .
$$
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

Kernel = Callable[[Tensor, Tensor], Tensor]
"""Places (m,) and (n,) of rows to a matrix (m, n)."""

Score = Callable[[Tensor], Tensor]
"""Rows (n, d) to the gradients (n, d) of a log-density."""

BLOCK = 256
NUM_MEDIAN = 1000
"""Rows between which the median distance is taken."""


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """(m, n) between rows; the mean is taken off first, as large offsets cost digits."""
    centre = y.mean(0)
    x, y = x - centre, y - centre
    squares = x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T
    return squares.clamp(min=0)


def median_distance(x: Tensor) -> float:
    """The median distance between distinct rows (n, d) of a thousand evenly spaced ones; 1 where
    all are equal.
    """
    some = x[torch.linspace(0, len(x) - 1, min(len(x), NUM_MEDIAN), device=x.device).long()]
    found = squared_distances(some, some).sqrt()
    place = torch.triu_indices(len(some), len(some), 1, device=x.device)
    distances = found[place[0], place[1]]
    return float(distances[distances > 0].median()) if (distances > 0).any() else 1.0


def gaussian(x: Tensor, y: Tensor, length: float) -> Tensor:
    """The squared-exponential kernel (m, n) between rows."""
    return (squared_distances(x, y) / (-2 * length**2)).exp()


def stein(x: Tensor, score_x: Tensor, y: Tensor, score_y: Tensor, length: float) -> Tensor:
    """The Stein kernel (m, n) of the inverse multiquadric, between rows and their scores."""
    dimension, scale = x.shape[1], 1 / length**2
    centre = y.mean(0)
    x, y = x - centre, y - centre
    squares = squared_distances(x, y)
    base = 1 + scale * squares
    # (x − y)·s(x) and (x − y)·s(y), (m, n)
    own = (x * score_x).sum(1)[:, None] - score_x @ y.T
    other = x @ score_y.T - (y * score_y).sum(1)
    first = base.pow(-1.5) * scale
    divergence = dimension * first - 3 * scale**2 * squares * base.pow(-2.5)
    return divergence + first * (own - other) + (score_x @ score_y.T) * base.pow(-0.5)


def mean_over(kernel: Kernel, num: int, references: Tensor, block: int = BLOCK) -> Tensor:
    """Mean of the kernel between each of `num` rows and the references, (num,), float64."""
    # one result for all: small ones between large temporary tensors would fragment the heap
    found = torch.empty(num, dtype=torch.float64)
    for part in torch.split(torch.arange(num), block):
        found[part] = kernel(part, references).mean(1, dtype=torch.float64)
    return found


def quadratic(kernel: Kernel, w: Tensor, v: Tensor, block: int = BLOCK) -> float:
    """$w^\\top K v$, a block of rows at a time."""
    total, every = 0.0, torch.arange(len(v))
    for part in torch.split(torch.arange(len(w)), block):
        total += float(w[part].double() @ (kernel(part, every).double() @ v.double()))
    return total


def mmd(
    x: Tensor, w: Tensor, z: Tensor, v: Tensor, between: Callable[[Tensor, Tensor], Tensor]
) -> float:
    """Between weighted rows (m, d) and (n, d) under a kernel between rows; weights sum to 1."""

    def part(a: Tensor, b: Tensor, p: Tensor, q: Tensor) -> float:
        return quadratic(lambda i, j: between(a[i], b[j]), p, q)

    return math.sqrt(max(0.0, part(x, x, w, w) - 2 * part(x, z, w, v) + part(z, z, v, v)))


def ksd(x: Tensor, score: Tensor, w: Tensor, length: float) -> float:
    """Between weighted rows (m, d) and the density of their scores; weights sum to 1."""
    kernel: Kernel = lambda i, j: stein(x[i], score[i], x[j], score[j], length)  # noqa: E731
    return math.sqrt(max(0.0, quadratic(kernel, w, w)))


def gaussian_score(x: Tensor, shrinkage: float = 1e-3) -> Score:
    """The score of the Gaussian with the moments of rows (n, d): $-\\Sigma^{-1}(x - \\mu)$, with a
    share of the mean variance added to all.
    """
    x = x.double()
    mean, d = x.mean(0), x.shape[1]
    covariance = (x - mean).T @ (x - mean) / len(x)
    ridge = shrinkage * float(covariance.trace()) / d
    eye = torch.eye(d, dtype=x.dtype, device=x.device)
    factor = torch.linalg.cholesky(covariance + max(ridge, 1e-12) * eye)

    def score(y: Tensor) -> Tensor:
        return -torch.cholesky_solve((y.double() - mean).T, factor).T.to(y)

    return score


def kde_score(x: Tensor, length: float) -> Score:
    """The score of a kernel density estimate: Gaussians of one width on all rows (n, d)."""

    def score(y: Tensor) -> Tensor:
        found = torch.empty_like(y)
        for part, into in zip(torch.split(y, BLOCK), torch.split(found, BLOCK), strict=True):
            share = (squared_distances(part, x) / (-2 * length**2)).softmax(1)
            into.copy_((share @ x - part) / length**2)
        return found

    return score
