r"""The Gaussian posterior of a last layer in closed form, in the smaller of two spaces.

With features $\Phi \in \mathbb R^{M\times h}$ of the coreset, real-valued targets $\hat Y \in
\mathbb R^{M\times k}$, prior $\mathcal N(0, \rho^{-1} I_h)$ on each column of the last layer, and
$r = \rho\beta_S/\gamma$ (the paper's $1/c$):

$$ m_j = \Phi^\top A^{-1} \hat y_j, \quad V = \rho^{-1}\left(I_h - \Phi^\top A^{-1} \Phi\right),
\quad A = \Phi\Phi^\top + r I_M \tag{VBPC 21, 48} $$
$$ m_j = B^{-1} \Phi^\top \hat y_j, \quad V = \rho^{-1} r B^{-1}, \quad B = \Phi^\top\Phi + r I_h $$

are equal; M points are solved in A when they are at most h, and in B otherwise, so that nothing
larger than min(M, h)² is factored. The variance at x and the divergence from the prior are

$$ \Sigma(x) = \phi^\top V \phi, \qquad
KL_j = \tfrac12\left[\rho\lVert m_j\rVert^2 - (n - r\operatorname{tr}F^{-1}) + \log\det(F /
r)\right], \quad F \in \{A, B\} \text{ of size } n $$

Point weights $w$ multiply the likelihood, that is, scale the rows of $\Phi$ and $\hat Y$ by $\sqrt
w$: r is the noise of a point of weight 1. A point left out with all its weight leaves, with its
leverage $h_i = w_i r^{-1} \rho\,\phi_i^\top V \phi_i$,

$$ f_{-i}(x_i) = \frac{m^\top\phi_i - h_i \hat y_i}{1 - h_i}, \qquad
   \Sigma_{-i}(x_i) = \frac{\Sigma(x_i)}{1 - h_i} $$

A draw corrects one from the prior, $W_0$, by its errors on the coreset, with noise $E$ of the
likelihood's own variance $r/\rho$ (Matheron's rule), or is made with a root of $V$:

$$ W = m + W_0 - \Phi^\top A^{-1}(\Phi W_0 + E), \qquad W = m + \sqrt{r/\rho}\, B^{-1/2} E' $$

An intercept is one more feature of constant size: `intercept` times the typical feature norm, hence
with a prior standard deviation `intercept` times that of an output at a typical point.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.rng import Rng


class LastLayer(NamedTuple):
    """A Gaussian over last-layer weights: one mean per class, one covariance for all."""

    mean: Tensor  # m (h, classes)
    features: Tensor  # Φ (M, h), rows scaled by sqrt(weight); (0, h) where B was factored
    factor: Tensor  # R with RᵀR the inverse of A or B
    ridge: Tensor  # r
    precision: Tensor  # ρ
    constant: Tensor  # (1,), the intercept's feature, or (0,)


def typical_norm(features: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean squared feature norm k̄ = tr(ΦΦᵀ)/Σw."""
    typical: Tensor = (weight * features.square().sum(1)).sum() / weight.sum()
    return typical


def fit(
    features: Tensor,
    y: Tensor,
    *,
    ridge: Tensor | float,
    prior_variance: Tensor | float,
    weight: Tensor | None = None,
    intercept: float = 0.0,
) -> LastLayer:
    """The posterior given coreset features (M, h) and targets (M, classes).

    Both hyper-parameters are relative to the weighted mean squared feature norm k̄: r = `ridge` · k̄,
    and ρ = k̄ / `prior_variance`, the prior variance of an output at a typical point. `weight`
    defaults to ones.
    """
    rows, y, typical, constant = _scaled(features, y, weight, intercept)
    r = ridge * typical
    gram = _smaller_gram(rows)
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    cholesky, _ = torch.linalg.cholesky_ex(gram + r * identity)
    # Inverted once: on a GPU a triangular solve costs many times a product of this size.
    factor = torch.linalg.solve_triangular(cholesky, identity, upper=False)
    return _posterior(rows, y, factor, r, typical / prior_variance, constant)


def fit_each(
    features: Tensor,
    y: Tensor,
    *,
    ridges: Iterable[float],
    prior_variance: float,
    weight: Tensor,
    intercept: float = 0.0,
) -> Iterator[LastLayer]:
    """As `fit` for several ridges, by one eigendecomposition."""
    rows, y, typical, constant = _scaled(features, y, weight, intercept)
    values, vectors = torch.linalg.eigh(_smaller_gram(rows))
    for ridge in ridges:
        r = ridge * typical
        factor = (values.clamp_min(0) + r).rsqrt().unsqueeze(1) * vectors.mT
        yield _posterior(rows, y, factor, r, typical / prior_variance, constant)


def predict(posterior: LastLayer, features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (n, classes) and variance (n,) of the linear predictor at features (n, h)."""
    features = with_constant(posterior, features)
    mean = features @ posterior.mean
    if len(posterior.features) == 0:
        inside = (features @ posterior.factor.mT).square().sum(1)  # φᵀ B⁻¹ φ
        return mean, posterior.ridge * inside / posterior.precision
    cross = features @ posterior.features.mT  # k_x (n, M)
    explained = (cross @ posterior.factor.mT).square().sum(1)  # k_xᵀ A⁻¹ k_x
    return mean, (features.square().sum(1) - explained).clamp_min(0) / posterior.precision


def with_constant(posterior: LastLayer, features: Tensor) -> Tensor:
    """Features (n, h) with the intercept's, where the posterior has one: what `mean` multiplies."""
    return _append(features, posterior.constant)


def draw(posterior: LastLayer, num: int, rng: Rng) -> Tensor:
    """Draws of the last layer's weights, (num, h, classes)."""
    features, factor = posterior.features, posterior.factor
    (width, classes), points = posterior.mean.shape, len(features)
    like: Any = {"device": factor.device, "dtype": factor.dtype}
    scale = posterior.precision.rsqrt()
    prior = rng("prior").normal(num, width, classes, **like)
    if points == 0:
        return posterior.mean + posterior.ridge.sqrt() * scale * (factor.mT @ prior)
    noise = scale * posterior.ridge.sqrt() * rng("noise").normal(num, points, classes, **like)
    error = factor.mT @ (factor @ (features @ (scale * prior) + noise))
    return posterior.mean + scale * prior - features.mT @ error


def leave_one_out(
    posterior: LastLayer, features: Tensor, y: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance at each point the posterior was fitted to, as if it had not been."""
    mean, variance = predict(posterior, features)
    leverage = (weight * variance * posterior.precision / posterior.ridge).clamp_max(1 - 1e-12)
    remaining = 1 - leverage
    return (mean - leverage[:, None] * y) / remaining[:, None], variance / remaining


def kl(posterior: LastLayer) -> Tensor:
    """KL[q_j || prior] of each class's weight vector, (classes,). The factor must be a triangle, as
    that of `fit`.
    """
    num = len(posterior.factor)
    trace_g = posterior.ridge * posterior.factor.square().sum()
    log_det = -2 * posterior.factor.diagonal().log().sum() - num * posterior.ridge.log()
    mean_norms = posterior.mean.square().sum(0)
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


def _scaled(
    features: Tensor, y: Tensor, weight: Tensor | None, intercept: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features and targets with rows scaled by the root of their weight, k̄ and the constant."""
    weight = features.new_ones(len(features)) if weight is None else weight
    typical = typical_norm(features, weight)
    constant = (intercept * typical.sqrt()).view(1)[: 1 if intercept else 0]
    root = weight.sqrt().unsqueeze(1)
    return _append(features, constant) * root, y * root, typical, constant


def _append(features: Tensor, constant: Tensor) -> Tensor:
    if len(constant) == 0:
        return features
    return torch.cat([features, constant.expand(len(features), 1)], 1)


def _smaller_gram(rows: Tensor) -> Tensor:
    num, size = rows.shape
    return rows @ rows.mT if num <= size else rows.mT @ rows


def _posterior(
    rows: Tensor, y: Tensor, factor: Tensor, ridge: Tensor, precision: Tensor, constant: Tensor
) -> LastLayer:
    if len(rows) <= rows.shape[1]:
        mean = rows.mT @ (factor.mT @ (factor @ y))
    else:
        mean, rows = factor.mT @ (factor @ (rows.mT @ y)), rows[:0]
    return LastLayer(mean, rows, factor, ridge, precision, constant)
