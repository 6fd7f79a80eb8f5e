r"""Laplace's approximation of softmax regression on few points, without a p × p matrix of its own.

M points touch kM directions of θ, $z_{mc} = e_c \otimes \tilde x_m$ for class c and inputs with a 1
appended; everywhere else the posterior is the prior $\mathcal N(0, \sigma_0^2)$. With $Z = (z_{mc})$,
class probabilities $p_m$, $L_m = \sqrt{w_m}(\operatorname{diag}\sqrt{p_m} - p_m\sqrt{p_m}^\top)$ and
the block diagonal L of these,

$$ \Sigma = \sigma_0^2 (I - Z \Omega Z^\top), \qquad
   \Omega = L\left(\sigma_0^{-2} I + L^\top Z^\top Z L\right)^{-1} L^\top . $$

The covariance of a step of PSVI (`methods/bayes/psvi.py`) needs $\Sigma P \Sigma$ between the $z_{mc}$
alone, where $P = D - Z L L^\top Z^\top$ and D is the curvature of the data. With $K = Z^\top Z$,
$H = Z^\top D Z$ and $\Sigma Z = Z A$,

$$ \Sigma P \Sigma Z = \sigma_0^2 D Z A - Z X, \qquad A = \sigma_0^2(I - \Omega K), \qquad
   X = \sigma_0^2 \Omega H A + A L L^\top K A . $$

Cost: the product $DZ$, $2p^2M$, and some of $kM \times kM$; the same numbers as from p × p covariances,
whose products cost $4p^3$.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from pseudocore.objectives.small_models import (
    NUM_HALVINGS,
    Quadratic,
    Softmax,
    cholesky,
    slope_of,
    with_one,
)


class FactoredGaussian(NamedTuple):
    """Σ = σ₀²(1 − Z Ω Zᵀ) around a mean."""

    mean: Tensor  # (p,)
    inputs: Tensor  # with a 1 appended (M, h)
    roots: Tensor  # L (M, k, k)
    omega: Tensor  # Ω (M k, M k)
    variance: float  # σ₀²

    def times(self, vector: Tensor) -> Tensor:
        """Σ times a vector (p,)."""
        along = (self.inputs @ vector.view(-1, self.inputs.shape[1]).mT).flatten()  # Zᵀ v
        within = (self.omega @ along).view(len(self.inputs), -1)
        return self.variance * (vector - (within.mT @ self.inputs).flatten())


def posterior(
    model: Softmax,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    *,
    start: Tensor | None = None,
    num_newton: int,
) -> FactoredGaussian:
    """As `small_models.posterior`, which it equals but for rounding."""
    theta = x.new_zeros(model.num_parameters(x.shape[1])) if start is None else start
    inputs, variance = with_one(x), model.prior**2
    sizes = 0.5 ** torch.arange(NUM_HALVINGS, dtype=x.dtype, device=x.device)

    def at(theta: Tensor) -> FactoredGaussian:
        p = (inputs @ theta.view(model.num_classes, -1).mT).softmax(1)
        root = p.sqrt()
        roots = weight.sqrt()[:, None, None] * (root.diag_embed() - p[:, :, None] * root[:, None])
        gram = torch.einsum("nm,nca,mcb->namb", inputs @ inputs.mT, roots, roots)
        size = p.numel()
        identity = torch.eye(size, dtype=x.dtype, device=x.device)
        inner = torch.cholesky_inverse(cholesky(gram.reshape(size, size) + identity / variance))
        inner = _blocks(roots, inner)
        return FactoredGaussian(theta, inputs, roots, _blocks(roots, inner.mT), variance)

    q = at(theta)
    for _ in range(num_newton):
        slope = slope_of(model, x, y, weight, theta) - theta / variance
        tried = theta + sizes[:, None] * q.times(slope)
        heights = model.log_likelihood(tried, x, y) @ weight
        heights = heights - 0.5 * tried.square().sum(1) / variance
        theta = tried.index_select(0, heights.argmax(0, keepdim=True))[0]
        q = at(theta)
    return q


Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Inputs (M, d), labels and weights to a number."""


def covariance(
    model: Softmax, x: Tensor, y: Tensor, weight: Tensor, data: Quadratic, q: FactoredGaussian
) -> tuple[Objective, Tensor]:
    """Cov[Σ w f(u, θ), P(θ)] from moments, as a function with the right gradient at these points;
    and the variance of P.
    """
    theta, inputs, variance = q.mean, q.inputs, q.variance
    (num, width), k = inputs.shape, model.num_classes
    size, gram = num * k, inputs @ inputs.mT

    def times_gram(columns: Tensor) -> Tensor:  # K = (x̃x̃ᵀ) ⊗ 1
        return (gram @ columns.reshape(num, -1)).view(size, -1)

    # rows (m, c) of (D Z)ᵀ, (M k, k, h)
    touched = torch.einsum("cibj,mj->mbci", data.curvature.view(k, width, k, width), inputs)
    touched = touched.reshape(size, k, width)
    h = (touched @ inputs.mT).permute(2, 1, 0).reshape(size, size)
    own = q.roots @ q.roots.mT  # w S, (M, k, k)
    identity = torch.eye(size, dtype=x.dtype, device=x.device)
    a = variance * (identity - times_gram(q.omega).mT)
    spanned, bent = times_gram(a), h @ a
    remainder = variance * q.omega @ bent + a @ _blocks(own, spanned)  # X
    between = variance * bent - times_gram(remainder)
    places = torch.arange(num, device=x.device)
    between = between.view(num, k, num, k)[places, :, places]  # zᵀ Σ P Σ z of one point, (M, k, k)
    # ΣPΣz of each point, contracted with w S: the gradient of the trace in x̃
    weighed = variance * torch.einsum("rmb,mba->mra", a.view(size, num, k), own)
    pull = weighed.reshape(num, -1) @ touched.reshape(-1, width)
    within = torch.einsum("namb,mba->mn", remainder.view(num, k, num, k), own)
    pull = pull - within @ inputs

    def trace(x: Tensor, weight: Tensor, theta: Tensor) -> Tensor:
        """Half of tr(∇²F ΣPΣ), with x̃ᵀ ΣPΣ x̃ held fixed."""
        p = (with_one(x) @ theta.view(k, -1).mT).softmax(1)
        mean = torch.einsum("ma,mab->mb", p, between)
        each = (p * between.diagonal(dim1=1, dim2=2)).sum(1) - (p * mean).sum(1)
        return 0.5 * weight @ each

    slope = data.slope_at(theta) - slope_of(model, x, y, weight, theta)  # of P
    bend: Tensor = grad(lambda theta: trace(x, weight, theta))(theta)
    direction = q.times(slope + bend)

    def objective(at: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        moved = ((at - x) * pull[:, :-1]).sum()
        return (
            slope_of(model, at, y, weights, theta) @ direction + trace(at, weights, theta) + moved
        )

    along = slope @ q.times(slope)
    crossed = q.omega @ h
    flat = touched.flatten(1)
    squares = data.curvature.square().sum() - 2 * (q.omega * (flat @ flat.mT)).sum()
    squares = variance**2 * (squares + (crossed * crossed.mT).sum())  # tr DΣDΣ
    shared = (
        own * torch.einsum("rma,rmb->mab", a.view(size, num, k), bent.view(size, num, k))
    ).sum()
    return objective, along + 0.5 * (squares - shared - (own * between).sum())


def _blocks(blocks: Tensor, columns: Tensor) -> Tensor:
    """A block-diagonal matrix (M, k, k) times columns (M k, n)."""
    num, k, _ = blocks.shape
    return (blocks @ columns.reshape(num, k, -1)).view(num * k, -1)
