r"""Prior scales by marginal likelihood, on the coreset alone.

**Gaussian likelihood** (`last-layer-vi`). With features $\Phi$ and targets $\hat Y$ (rows scaled by
$\sqrt w$), $K = \Phi\Phi^\top$, ridge r and prior precision ρ the k columns of $\hat Y$ are
$\mathcal N(0, \rho^{-1}(K + rI))$, so that exactly

$$ 2\log p(\hat Y) = Mk\log\rho - k\log\det(K + rI) - \rho\, s(r) - Mk\log 2\pi, \quad
   s(r) = \operatorname{tr}\hat Y^\top(K + rI)^{-1}\hat Y $$

whose maximum over ρ is at $\rho^* = Mk / s(r)$ in closed form; what is left, a function of r, is
searched on a grid through the eigenvalues of K.

**Categorical likelihood** (`laplace`). At the trained head $\hat\beta$, with $H = U^\top U + \delta
I$ of `laplace.py`, temperature T and the eigenvalues $\lambda_i$ of $UU^\top$, Laplace's
approximation depends on the prior precision δ through

$$ -\tfrac12 \Bigl[\sum_i \log(1 + \lambda_i / \delta)
   + \delta\lVert\hat\beta\rVert^2 / T\Bigr], \qquad
   \delta^* \lVert\hat\beta\rVert^2 / T = \sum_i \lambda_i / (\lambda_i + \delta^*) $$

(MacKay 1992): the right side falls with δ and the left one rises, so the optimum is unique, and
found by bisection.

Both hold the features fixed. They were trained on the same points, which fits them better than
fresh points would, so that the evidence leans towards little noise: a statement about the last
layer given its features, not about the network.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

RIDGES = tuple(10 ** (-4 + place / 40) for place in range(241))
"""Where the ridge is searched, relative to a typical squared feature norm: 1e-4 to 100 in steps of
6 %.
"""


class Relative(NamedTuple):
    """Hyper-parameters relative to the mean squared feature norm k̄."""

    ridge: float
    prior_variance: float


def log_evidence(features: Tensor, y: Tensor, at: Relative, weight: Tensor | None = None) -> float:
    """log p(Ŷ) of targets (M, classes) given features (M, h), in float64."""
    values, energy, typical, num_classes = _spectral(features, y, weight)
    rho, shifted = typical / at.prior_variance, values + at.ridge * typical
    num = len(values) * num_classes
    energies = float((energy / shifted).sum())
    return 0.5 * (
        num * math.log(rho / (2 * math.pi))
        - num_classes * float(shifted.log().sum())
        - rho * energies
    )


def best_gaussian(
    features: Tensor, y: Tensor, weight: Tensor | None = None, *, ridge: float | None = None
) -> Relative:
    """The maximum of `log_evidence`: the prior variance exactly, the ridge on a grid unless it is
    given.
    """
    values, energy, typical, num_classes = _spectral(features, y, weight)
    ridges = values.new_tensor(RIDGES if ridge is None else [ridge])
    shifted = values + ridges[:, None] * typical  # (ridges, M)
    num = len(values) * num_classes
    energies = (energy / shifted).sum(1)  # s(r)
    profile = -num * energies.log() - num_classes * shifted.log().sum(1)
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


def _spectral(
    features: Tensor, y: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor, float, int]:
    """Eigenvalues of K, squared size of the targets along each eigenvector, k̄ and the number of
    classes.
    """
    features, y = features.double(), y.double()
    weight = features.new_ones(len(features)) if weight is None else weight.double()
    features, y = features * weight.sqrt()[:, None], y * weight.sqrt()[:, None]
    values, vectors = torch.linalg.eigh(features @ features.mT)
    return (
        values.clamp_min(0),
        (vectors.mT @ y).square().sum(1),
        float(features.square().sum() / weight.sum()),
        y.shape[1],
    )
