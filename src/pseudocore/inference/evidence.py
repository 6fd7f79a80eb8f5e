r"""Prior scales by marginal likelihood, on the coreset alone.

**Gaussian likelihood** (`last-layer-vi`). With features $\Phi$ and targets $\hat Y$ (rows scaled by
$\sqrt w$), $K = \Phi\Phi^\top$, ridge r and prior precision ρ the k columns of $\hat Y$ are
$\mathcal N(0, \rho^{-1}(K + rI))$, so that exactly

$$ 2\log p(\hat Y) = Mk\log\rho - k\log\det(K + rI) - \rho\, s(r) - Mk\log 2\pi, \quad
   s(r) = \operatorname{tr}\hat Y^\top(K + rI)^{-1}\hat Y $$

whose maximum over ρ is at $\rho^* = Mk / s(r)$ in closed form. What is left, a function of r, is
searched on a grid through the eigenvalues of K, or of $\Phi^\top\Phi$ where that is smaller.

**Categorical likelihood** (`laplace`). At the trained head $\hat\beta$, with $H = U^\top U + \delta
I$ of `laplace.py`, temperature T and the eigenvalues $\lambda_i$ of $UU^\top$, Laplace's
approximation depends on the prior precision δ through

$$ -\tfrac12 \Bigl[\sum_i \log(1 + \lambda_i / \delta)
   + \delta\lVert\hat\beta\rVert^2 / T\Bigr], \qquad
   \delta^* \lVert\hat\beta\rVert^2 / T = \sum_i \lambda_i / (\lambda_i + \delta^*) $$

(MacKay 1992): the right side falls with δ and the left one rises, so the optimum is unique, and
found by bisection.

Both hold the features fixed. They were trained on the same points, which fits them better than
fresh points would, so that the evidence leans towards little noise. It is a statement about the
last layer given its features, not about the network.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.objectives.last_layer_gaussian import typical_norm

RIDGES = tuple(10 ** (-4 + place / 40) for place in range(241))
"""Where the ridge is searched, relative to a typical squared feature norm: 1e-4 to 100 in steps of
6 %.
"""


class Relative(NamedTuple):
    """Hyper-parameters relative to the mean squared feature norm k̄."""

    ridge: float
    prior_variance: float


def log_evidence(
    features: Tensor,
    y: Tensor,
    at: Relative,
    weight: Tensor | None = None,
    *,
    intercept: float = 0.0,
) -> float:
    """log p(Ŷ) of targets (M, classes) given features (M, h), in float64; `intercept` as in
    `last_layer_gaussian.fit`.
    """
    values, energy, count, typical, num_classes = _spectral(features, y, weight, intercept)
    rho, shifted = typical / at.prior_variance, values + at.ridge * typical
    energies = float((energy / shifted).sum())
    return 0.5 * (
        float(count.sum()) * num_classes * math.log(rho / (2 * math.pi))
        - num_classes * float((count * shifted.log()).sum())
        - rho * energies
    )


def best_gaussian(
    features: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    *,
    ridge: float | None = None,
    intercept: float = 0.0,
) -> Relative:
    """The maximum of `log_evidence`: the prior variance exactly, the ridge on a grid unless it is
    given.
    """
    values, energy, count, typical, num_classes = _spectral(features, y, weight, intercept)
    ridges = values.new_tensor(RIDGES if ridge is None else [ridge])
    shifted = values + ridges[:, None] * typical  # (ridges, eigenvalues)
    num = float(count.sum()) * num_classes
    energies = (energy / shifted).sum(1)  # s(r)
    profile = -num * energies.log() - num_classes * (count * shifted.log()).sum(1)
    best = int(profile.argmax())
    return Relative(float(ridges[best]), typical * float(energies[best]) / num)


def best_precision(eigenvalues: Tensor, squared_norm: float, temperature: float) -> float:
    """δ* of a head of `squared_norm` whose curvature has these eigenvalues, between 1e-12 and 1e12
    times the largest.
    """
    values = eigenvalues.double().clamp_min(0)
    largest = max(float(values.max()), 1e-30)  # a network sure of every point has no curvature left
    low, high = math.log(largest) - 12 * math.log(10), math.log(largest) + 12 * math.log(10)
    for _ in range(100):
        middle = math.exp((low + high) / 2)
        explained = float((values / (values + middle)).sum())
        if middle * squared_norm / temperature < explained:
            low = math.log(middle)
        else:
            high = math.log(middle)
    return math.exp((low + high) / 2)


class _Spectral(NamedTuple):
    values: Tensor  # eigenvalues of K; where M > h the last stands for its null space
    energy: Tensor  # squared size of the targets along each eigenvector, or in the null space
    number: Tensor  # how many eigenvalues each stands for
    typical: float  # k̄
    num_classes: int


def _spectral(features: Tensor, y: Tensor, weight: Tensor | None, intercept: float) -> _Spectral:
    """The spectrum of K, of the smaller of ΦΦᵀ and ΦᵀΦ."""
    features, y = features.double(), y.double()
    weight = features.new_ones(len(features)) if weight is None else weight.double()
    typical = float(typical_norm(features, weight))
    if intercept:
        constant = features.new_full((len(features), 1), intercept * math.sqrt(typical))
        features = torch.cat([features, constant], 1)
    features, y = features * weight.sqrt()[:, None], y * weight.sqrt()[:, None]
    num, size = features.shape
    if num <= size:
        values, vectors = torch.linalg.eigh(features @ features.mT)
        energy = (vectors.mT @ y).square().sum(1)
        return _Spectral(values.clamp_min(0), energy, torch.ones_like(values), typical, y.shape[1])
    values, vectors = torch.linalg.eigh(features.mT @ features)
    left = features @ vectors / values.clamp_min(1e-12 * float(values.max())).sqrt()
    energy = (left.mT @ y).square().sum(1)
    rest = (y.square().sum() - energy.sum()).clamp_min(0)
    count = torch.cat([torch.ones_like(values), values.new_tensor([num - size])])
    values, energy = torch.cat([values, values.new_zeros(1)]), torch.cat([energy, rest.view(1)])
    return _Spectral(values.clamp_min(0), energy, count, typical, y.shape[1])
