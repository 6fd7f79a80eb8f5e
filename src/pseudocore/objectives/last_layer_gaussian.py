r"""The Gaussian posterior of a last layer in closed form, without ever building anything h × h.

With features $\Phi \in \mathbb R^{M\times h}$ of the coreset, real-valued targets $\hat Y \in
\mathbb R^{M\times k}$, prior $\mathcal N(0, \rho^{-1} I_h)$ on each column of the last layer, and
$A = \Phi\Phi^\top + r I_M$ where $r = \rho\beta_S/\gamma$ (the paper's $1/c$):

$$ m_j = \Phi^\top A^{-1} \hat y_j, \qquad V = \rho^{-1}\left(I_h - \Phi^\top A^{-1} \Phi\right)
\tag{VBPC 21, 48} $$
$$ \Sigma(x) = \phi^\top V \phi = \rho^{-1}\left(\lVert\phi\rVert^2 - k_x^\top A^{-1} k_x\right),
\quad k_x = \Phi\phi(x) \tag{31} $$
$$ KL_j = \tfrac12\left[\rho\lVert m_j\rVert^2 - (M - r\operatorname{tr}A^{-1}) + \log\det(A /
r)\right] $$

A draw from the posterior corrects one from the prior, $W_0$, by its errors on the coreset, with
noise $E$ of the likelihood's own variance $r/\rho$ (Matheron's rule):

$$ W = m + W_0 - \Phi^\top A^{-1}(\Phi W_0 + E) $$

One Cholesky factor of the M × M matrix $A$ serves them all. Point weights $w$ multiply the
likelihood, that is, scale the rows of $\Phi$ and $\hat Y$ by $\sqrt w$.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.rng import Rng


class LastLayer(NamedTuple):
    """A Gaussian over last-layer weights: one mean per class, one covariance for all."""

    features: Tensor  # Φ (M, h), rows scaled by sqrt(weight)
    coefficients: Tensor  # A⁻¹ Ŷ (M, classes): m = Φᵀ coefficients
    factor: Tensor  # L⁻¹ (M, M) where L Lᵀ = A, so A⁻¹ = L⁻ᵀ L⁻¹
    ridge: Tensor  # r
    precision: Tensor  # ρ


def fit(
    features: Tensor,
    y: Tensor,
    *,
    ridge: Tensor | float,
    prior_variance: Tensor | float,
    weight: Tensor | None = None,
) -> LastLayer:
    """The posterior given coreset features (M, h) and targets (M, classes).

    Both hyper-parameters are relative to the weighted mean squared feature norm k̄ = tr(ΦΦᵀ)/Σw:
    r = `ridge` · k̄, and ρ = k̄ / `prior_variance`, the prior variance of an output at a typical
    point. `weight` defaults to ones.
    """
    weight = features.new_ones(len(features)) if weight is None else weight
    typical: Tensor = (weight * features.square().sum(1)).sum() / weight.sum()
    r, rho = ridge * typical, typical / prior_variance
    features, y = features * weight.sqrt().unsqueeze(1), y * weight.sqrt().unsqueeze(1)
    identity = torch.eye(len(features), dtype=features.dtype, device=features.device)
    cholesky, _ = torch.linalg.cholesky_ex(features @ features.mT + r * identity)
    # Inverted once: on a GPU a triangular solve costs many times a product of this size.
    factor = torch.linalg.solve_triangular(cholesky, identity, upper=False)
    return LastLayer(features, factor.mT @ (factor @ y), factor, r, rho)


def predict(posterior: LastLayer, features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (n, classes) and variance (n,) of the linear predictor at features (n, h)."""
    cross = features @ posterior.features.mT  # k_x (n, M)
    mean = cross @ posterior.coefficients
    explained = (cross @ posterior.factor.mT).square().sum(1)  # k_xᵀ A⁻¹ k_x
    return mean, (features.square().sum(1) - explained).clamp_min(0) / posterior.precision


def draw(posterior: LastLayer, num: int, rng: Rng) -> Tensor:
    """Draws of the last layer's weights, (num, h, classes)."""
    features, factor = posterior.features, posterior.factor
    (points, width), classes = features.shape, posterior.coefficients.shape[1]
    like: Any = {"device": features.device, "dtype": features.dtype}
    scale = posterior.precision.rsqrt()
    prior = scale * rng("prior").normal(num, width, classes, **like)
    noise = scale * posterior.ridge.sqrt() * rng("noise").normal(num, points, classes, **like)
    error = factor.mT @ (factor @ (features @ prior + noise))
    return prior + features.mT @ (posterior.coefficients - error)


def kl(posterior: LastLayer) -> Tensor:
    """KL[q_j || prior] of each class's weight vector, (classes,)."""
    num = len(posterior.factor)
    trace_g = posterior.ridge * posterior.factor.square().sum()
    log_det = -2 * posterior.factor.diagonal().log().sum() - num * posterior.ridge.log()
    mean_norms = (posterior.features.mT @ posterior.coefficients).square().sum(0)
    divergence: Tensor = 0.5 * (posterior.precision * mean_norms - (num - trace_g) + log_det)
    return divergence


def log_probs(mean: Tensor, variance: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """Class log-probabilities (n, classes): softmax(s μ / √(1 + π/8 s² σ²)) (VBPC Eq. 27)."""
    # scale * scale, as a huge float squared by ** would raise
    shrink: Tensor = (1 + math.pi / 8 * (scale * scale) * variance).rsqrt()
    logits: Tensor = scale * mean * shrink.unsqueeze(1)
    return logits.log_softmax(1)


def mean_squared_error(outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """½‖f(x) − y‖² summed over classes, averaged over (weighted) points: the loss that features are
    trained by, a Gaussian likelihood on the mean scale.
    """
    errors = 0.5 * (outputs - y).square().sum(1)
    return errors.mean() if weight is None else (weight * errors).sum() / weight.sum()
