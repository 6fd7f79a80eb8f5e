r"""Per-example gradients and Hessian diagonals of the last layer under softmax cross-entropy.

With features $\phi$, extended by a constant 1 for the bias to $\tilde\phi$, probabilities $p$ and
one-hot labels $y$,

$$ g = (p - y)\,\tilde\phi^\top, \qquad \lambda_{cd} = p_c (1 - p_c)\,\tilde\phi_d^2, \qquad
   \langle g_i, g_j \rangle
   = \langle p_i - y_i,\, p_j - y_j \rangle\,(\langle \phi_i, \phi_j \rangle + 1) . $$

Neither $g$ nor $\lambda$, of k·(h+1) numbers per example, is ever formed. Distances come from inner
products, and of $\lambda$ only the few dimensions that vary most over the data are computed.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.core.errors import DataError

DIVERGED = (
    "the network behind the selection gives NaN or infinite values, so it diverged in "
    "pre-training; a smaller --pretrain-step-size usually helps"
)

ROWS = 2**13
"""Examples per block when moments are accumulated in double precision."""

BLOCK = 2**18
"""Numbers per block when absolute differences are formed."""


class LastLayer(NamedTuple):
    """Inputs and outputs of the last layer for some examples."""

    features: Tensor  # (n, h)
    log_probs: Tensor  # (n, classes)
    y: Tensor  # (n,)
    scale: Tensor | None = None  # factor of each example's loss (n,); None for 1

    def at(self, index: Tensor | slice) -> "LastLayer":
        if isinstance(index, Tensor):
            index = index.to(self.y.device)
        parts = self.features[index], self.log_probs[index], self.y[index]
        return LastLayer(*parts, None if self.scale is None else self.scale[index])

    @property
    def residual(self) -> Tensor:
        """p - y, times the scale, (n, classes)."""
        classes = torch.arange(self.log_probs.shape[1], device=self.y.device)
        return self._scaled(
            self.log_probs.exp() - (self.y.unsqueeze(1) == classes).to(self.log_probs.dtype)
        )

    @property
    def spread(self) -> Tensor:
        """p (1 - p), times the scale, (n, classes)."""
        p = self.log_probs.exp()
        return self._scaled(p * (1 - p))

    def _scaled(self, values: Tensor) -> Tensor:
        return values if self.scale is None else values * self.scale.unsqueeze(1)

    def checked(self) -> "LastLayer":
        """Itself; refuses the values of a diverged network."""
        if not (self.features.isfinite().all() and self.log_probs.isfinite().all()):
            raise DataError(DIVERGED, code="pretraining-diverged")
        return self


def along(layer: LastLayer, direction: Tensor) -> Tensor:
    """<g_i, direction> for a direction (classes, h + 1), (n,)."""
    logits = torch.addmm(direction[:, -1], layer.features, direction[:, :-1].T)  # (n, classes)
    return (layer.residual * logits).sum(1)


def norms(layer: LastLayer) -> Tensor:
    """‖g‖, (n,)."""
    return (layer.residual.square().sum(1) * (layer.features.square().sum(1) + 1)).sqrt()


def mean_gradient(layer: LastLayer) -> Tensor:
    """The mean of g over the examples, (classes, h + 1) with the bias last."""
    return _mean_product(layer.residual, layer.features)


def gradient_variance(layer: LastLayer) -> Tensor:
    """The variance of g over the examples, by n − 1 (0 for a single one), (classes, h + 1)."""
    n = len(layer.y)
    squares = _mean_product(layer.residual.square(), layer.features.square())
    return (squares - mean_gradient(layer).square()) * (n / max(n - 1, 1))


def mean_curvature(layer: LastLayer) -> Tensor:
    """The mean of λ over the examples, (classes, h + 1) with the bias last."""
    return _mean_product(layer.spread, layer.features.square())


def largest_variance(layer: LastLayer, num: int) -> Tensor:
    """The `num` dimensions of λ of largest variance, in order, as places in (classes, h + 1)."""
    first = second = torch.zeros((), dtype=torch.float64, device=layer.y.device)
    for start in range(0, len(layer.y), ROWS):
        part = layer.at(slice(start, start + ROWS))
        spread, squares = part.spread.double(), part.features.double().square()
        share = len(part.y) / len(layer.y)
        first = first + share * _mean_product(spread, squares)
        second = second + share * _mean_product(spread.square(), squares.square())
    variance = second - first.square()
    return variance.flatten().topk(min(num, variance.numel())).indices


def curvature(layer: LastLayer, dimensions: Tensor) -> Tensor:
    """λ at some dimensions, (n, dimensions)."""
    width = layer.features.shape[1] + 1
    place = dimensions % width
    squares = layer.features[:, place.clamp_max(width - 2)].square()
    return layer.spread[:, dimensions // width] * squares.masked_fill(place == width - 1, 1)


class GradientMetric:
    r"""Distances $\lVert A \circ (g_i - g_j) \rVert_2 + \lVert \beta\lambda_i - \beta\lambda_j
    \rVert_1$ between examples of one layer.

    `scale` is $A$, (classes, h + 1), and defaults to ones; `curved` is $\beta\lambda$ at some
    dimensions, (n, dimensions), and defaults to none. `farthest` bounds all distances: twice the
    largest one to an example without gradient and curvature.
    """

    def __init__(
        self, layer: LastLayer, *, scale: Tensor | None = None, curved: Tensor | None = None
    ) -> None:
        self._residual = layer.residual
        self._features = torch.cat([layer.features, torch.ones_like(layer.features[:, :1])], 1)
        self._scale = None if scale is None else scale.square()
        self._curved = curved
        residual, features = self._residual.square(), self._features.square()
        if self._scale is None:
            self._squares = residual.sum(1) * features.sum(1)
        else:
            self._squares = (residual @ self._scale * features).sum(1)
        size = self._squares.sqrt() + (0 if curved is None else curved.abs().sum(1))
        self.farthest = 2 * float(size.max())

    def __call__(self, i: Tensor, j: Tensor | slice) -> Tensor:
        """Distances (a, b) between examples (a,) and (b,), or a slice of them all."""
        squares = self._inner(i, j).mul_(-2).add_(self._squares[i].unsqueeze(1))
        distance = squares.add_(self._squares[j]).clamp_min_(0).sqrt_()
        if self._curved is None:
            return distance
        return distance.add_(_absolute(self._curved[i], self._curved[j]))

    def _inner(self, i: Tensor, j: Tensor | slice) -> Tensor:
        """<A g_i, A g_j>, (a, b)."""
        residual, other_residual = self._residual[i], self._residual[j]
        features, other_features = self._features[i], self._features[j]
        if self._scale is None:
            return (residual @ other_residual.T).mul_(features @ other_features.T)
        total = features.new_zeros(len(features), len(other_features))
        for label, scale in enumerate(self._scale):
            own = residual[:, label, None] * features * scale
            total.addmm_(own, (other_residual[:, label, None] * other_features).T)
        return total


def _mean_product(one: Tensor, other: Tensor) -> Tensor:
    """The mean over rows of one ⊗ (other, 1), (a, b + 1)."""
    return torch.cat([one.T @ other, one.sum(0).unsqueeze(1)], 1) / len(one)


def _absolute(one: Tensor, other: Tensor) -> Tensor:
    """‖one_i − other_j‖₁, (a, b)."""
    if one.is_cuda:
        return torch.cdist(one, other, p=1)
    result = one.new_empty(len(one), len(other))
    rows = max(1, BLOCK // max(1, one.shape[1]))
    buffer = torch.empty_like(other[:rows])  # fits a core's cache: 3× as fast as torch.cdist here
    for part, columns in zip(torch.split(other, rows), torch.split(result, rows, 1), strict=True):
        for point, row in zip(one, columns, strict=True):
            torch.sum(torch.sub(part, point, out=buffer[: len(part)]).abs_(), 1, out=row)
    return result
