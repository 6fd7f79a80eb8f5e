r"""Per-example gradients and Hessian diagonals of the last layer under softmax cross-entropy, in
closed form.

With features $\phi$, extended by a constant 1 for the bias to $\tilde\phi$, probabilities $p$ and
one-hot labels $y$,

$$ g = (p - y)\,\tilde\phi^\top, \qquad \lambda_{cd} = p_c (1 - p_c)\,\tilde\phi_d^2, \qquad
   \langle g_i, g_j \rangle = \langle p_i - y_i,\, p_j - y_j \rangle\,(\langle \phi_i, \phi_j \rangle + 1) . $$

Neither $g$ nor $\lambda$, k·(h+1) numbers per example, is ever formed: distances come from inner
products, and of $\lambda$ only the few dimensions that vary most over the data.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.core.errors import DataError

DIVERGED = (
    "the network that selection looks through gives NaN or infinite values, so it diverged in pre-training; "
    "a smaller --pretrain-step-size usually helps"
)

ROWS = 2**13
"""Examples in flight at once where moments are summed up."""

BLOCK = 2**18
"""Numbers in flight at once where differences are formed."""


class LastLayer(NamedTuple):
    """What the last layer sees and says of some examples."""

    features: Tensor  # (n, h)
    log_probs: Tensor  # (n, classes)
    y: Tensor  # (n,)

    def at(self, index: Tensor) -> "LastLayer":
        index = index.to(self.y.device)
        return LastLayer(self.features[index], self.log_probs[index], self.y[index])

    @property
    def residual(self) -> Tensor:
        """p - y, (n, classes)."""
        classes = torch.arange(self.log_probs.shape[1], device=self.y.device)
        return self.log_probs.exp() - (self.y.unsqueeze(1) == classes).to(self.log_probs.dtype)

    @property
    def spread(self) -> Tensor:
        """p (1 - p), (n, classes)."""
        p = self.log_probs.exp()
        return p * (1 - p)

    def checked(self) -> "LastLayer":
        """Refuse what a diverged network gives."""
        if not (self.features.isfinite().all() and self.log_probs.isfinite().all()):
            raise DataError(DIVERGED)
        return self


def inner(one: LastLayer, other: LastLayer) -> Tensor:
    """<g_i, g_j>, (n, m)."""
    products: Tensor = (one.residual @ other.residual.T) * (one.features @ other.features.T + 1)
    return products


def along(layer: LastLayer, direction: Tensor) -> Tensor:
    """<g_i, direction> for a direction (classes, h + 1), (n,)."""
    seen = torch.addmm(direction[:, -1], layer.features, direction[:, :-1].T)  # (n, classes)
    return (layer.residual * seen).sum(1)


def norms(layer: LastLayer) -> Tensor:
    """‖g‖, (n,)."""
    return (layer.residual.square().sum(1) * (layer.features.square().sum(1) + 1)).sqrt()


def mean_gradient(layer: LastLayer) -> Tensor:
    """(classes, h + 1): the mean of g, the bias last."""
    return _mean_product(layer.residual, layer.features)


def gradient_variance(layer: LastLayer) -> Tensor:
    """(classes, h + 1): the variance of g over the examples, by n − 1; 0 for a single one.
    Differentiable in what the layer holds.
    """
    n = len(layer.y)
    squares = _mean_product(layer.residual.square(), layer.features.square())
    return (squares - mean_gradient(layer).square()) * (n / max(n - 1, 1))


def mean_curvature(layer: LastLayer) -> Tensor:
    """(classes, h + 1): the mean of λ, the bias last."""
    return _mean_product(layer.spread, layer.features.square())


def largest_variance(layer: LastLayer, num: int) -> Tensor:
    """The `num` dimensions of λ that vary most over the examples, as places in (classes, h + 1)
    flattened; the largest first.
    """
    first = second = torch.zeros((), dtype=torch.float64, device=layer.y.device)
    for start in range(0, len(layer.y), ROWS):  # in parts, as double precision takes room
        part = LastLayer(*(values[start : start + ROWS] for values in layer))
        spread, squares, share = (
            part.spread.double(),
            part.features.double().square(),
            len(part.y) / len(layer.y),
        )
        first = first + share * _mean_product(spread, squares)
        second = second + share * _mean_product(spread.square(), squares.square())
    variance = second - first.square()
    return variance.flatten().topk(min(num, variance.numel())).indices


def curvature(layer: LastLayer, dimensions: Tensor) -> Tensor:
    """λ at some dimensions, (n, dimensions)."""
    width = layer.features.shape[1] + 1
    place = dimensions % width
    squares = (
        layer.features[:, place.clamp_max(width - 2)].square().masked_fill(place == width - 1, 1)
    )
    return layer.spread[:, dimensions // width] * squares


class GradientMetric:
    r"""Distances $\lVert A \circ (g_i - g_j) \rVert_2 + \lVert \beta\lambda_i - \beta\lambda_j
    \rVert_1$ between examples of one layer.

    `scale` is $A$, (classes, h + 1), all ones unless told; `curved` is $\beta\lambda$ at the
    dimensions that count, (n, dimensions), none unless told. `farthest` is no less than any
    distance: twice the largest one to an example without gradient and curvature.
    """

    def __init__(
        self, layer: LastLayer, *, scale: Tensor | None = None, curved: Tensor | None = None
    ) -> None:
        self._residual, self._features = layer.residual, _extended(layer.features)
        self._scale = None if scale is None else scale.square()
        self._curved = curved
        every = self._residual.square(), self._features.square()
        self._squares = (
            every[0].sum(1) * every[1].sum(1)
            if self._scale is None
            else (every[0] @ self._scale * every[1]).sum(1)
        )
        size = self._squares.sqrt() + (0 if curved is None else curved.abs().sum(1))
        self.farthest = 2 * float(size.max())

    def __call__(self, i: Tensor, j: Tensor | slice) -> Tensor:
        """Distances (a, b) between examples (a,) and (b,), or a slice of them all."""
        squares = (
            self._inner(i, j).mul_(-2).add_(self._squares[i].unsqueeze(1)).add_(self._squares[j])
        )
        distance = squares.clamp_min_(0).sqrt_()
        return (
            distance
            if self._curved is None
            else distance.add_(_absolute(self._curved[i], self._curved[j]))
        )

    def _inner(self, i: Tensor, j: Tensor | slice) -> Tensor:
        """<A g_i, A g_j>, (a, b)."""
        residual, features = (
            (self._residual[i], self._residual[j]),
            (self._features[i], self._features[j]),
        )
        if self._scale is None:
            return (residual[0] @ residual[1].T).mul_(features[0] @ features[1].T)
        total = features[0].new_zeros(len(features[0]), len(features[1]))
        for label, scale in enumerate(self._scale):
            total.addmm_(
                residual[0][:, label, None] * features[0] * scale,
                (residual[1][:, label, None] * features[1]).T,
            )
        return total


def _mean_product(one: Tensor, other: Tensor) -> Tensor:
    """The mean over rows of one ⊗ (other, 1), (a, b + 1)."""
    return torch.cat([one.T @ other, one.sum(0).unsqueeze(1)], 1) / len(one)


def _extended(features: Tensor) -> Tensor:
    """With a constant 1 at the end, for the bias."""
    return torch.cat([features, torch.ones_like(features[:, :1])], 1)


def _absolute(one: Tensor, other: Tensor) -> Tensor:
    """‖one_i − other_j‖₁, (a, b)."""
    if one.is_cuda:
        return torch.cdist(one, other, p=1)
    result = one.new_empty(len(one), len(other))
    rows = max(1, BLOCK // max(1, one.shape[1]))
    buffer = torch.empty_like(
        other[:rows]
    )  # stays in a core's cache: three times as fast as torch.cdist here
    for part, columns in zip(torch.split(other, rows), torch.split(result, rows, 1), strict=True):
        for point, row in zip(one, columns, strict=True):
            torch.sum(torch.sub(part, point, out=buffer[: len(part)]).abs_(), 1, out=row)
    return result
