r"""The posterior of a last layer under the categorical likelihood, by Böhning's bound.

The bound on the log-normaliser (Böhning 1992), with $\psi_m$ any point and $g = \operatorname{softmax}$,

$$ \log\sum_c e^{f_c} \le \log\sum_c e^{\psi_c} + g(\psi)^\top(f - \psi) + \tfrac12 (f - \psi)^\top
   \tfrac12\left(I - \tfrac1k 11^\top\right)(f - \psi) , $$

makes the likelihood of each point Gaussian in its outputs $f = W^\top\phi$ with one curvature for
all. The best Gaussian under it then has one covariance for all classes, that of
`last_layer_gaussian` with noise 2 at the prior's own scale,

$$ V = \left(\rho I + \tfrac12 \Phi^\top \operatorname{diag}(w) \Phi\right)^{-1}, $$

and, once $\psi$ has settled at its own mean, the mean is the mode of the log-posterior,

$$ m = \arg\max_W \sum_m w_m \log\operatorname{softmax}_{y_m}(W^\top\phi_m) -
   \tfrac\rho2\lVert W\rVert^2 , $$

penalised logistic regression, which is convex and found by L-BFGS in coordinates in which V is the
identity: there the curvature is at most 1.
"""

from typing import Any

import torch
from torch import Tensor

from pseudocore.objectives import last_layer_gaussian as gaussian
from pseudocore.objectives.last_layer_gaussian import LastLayer

MAX_ITERATIONS = 500


def fit(
    features: Tensor,
    targets: Tensor,
    *,
    prior_variance: float,
    weight: Tensor,
    intercept: float = 0.0,
    start: LastLayer | None = None,
    tolerance: float = 1e-5,
) -> LastLayer:
    """The posterior given coreset features (M, h) and class probabilities (M, classes).

    Args:
        features: Features, in float64: the mode is found to many digits.
        targets: Class probabilities of each point.
        prior_variance: Prior variance of an output at a typical point.
        weight: Weights of the points.
        intercept: As in `gaussian.fit`.
        start: A posterior of the same features at another prior, to start from.
        tolerance: Largest entry of the gradient at the mode, in units of the posterior's own
            standard deviations.
    """
    posterior = gaussian.fit(
        features,
        targets,
        ridge=2 / prior_variance,
        prior_variance=prior_variance,
        weight=weight,
        intercept=intercept,
    )
    ones = posterior.constant.expand(len(features), len(posterior.constant))
    rows = torch.cat([features, ones], 1)
    span = _span(rows)
    mean = _mode(
        rows @ span,
        targets,
        weight,
        float(posterior.precision),
        None if start is None else span.mT @ start.mean,
        tolerance,
    )
    return posterior._replace(mean=span @ mean)


def _span(rows: Tensor) -> Tensor:
    """Orthonormal columns that span the rows, or everything where there are more rows than that."""
    if len(rows) >= rows.shape[1]:
        return torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    span: Tensor = torch.linalg.qr(rows.mT)[0]
    return span


@torch.enable_grad()
def _mode(
    rows: Tensor,
    targets: Tensor,
    weight: Tensor,
    precision: float,
    start: Tensor | None,
    tolerance: float,
) -> Tensor:
    identity = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    root = torch.linalg.cholesky(0.5 * (rows.mT * weight) @ rows + precision * identity).mT
    inner = rows.new_zeros(rows.shape[1], targets.shape[1]) if start is None else root @ start
    inner = inner.requires_grad_()
    to_outer = torch.linalg.solve_triangular(root, identity, upper=True)
    search: Any = torch.optim.LBFGS(
        [inner],
        max_iter=MAX_ITERATIONS,
        tolerance_grad=tolerance,
        tolerance_change=1e-14,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def loss() -> float:
        search.zero_grad()
        outer = to_outer @ inner
        log_likelihood = (weight * (targets * (rows @ outer).log_softmax(1)).sum(1)).sum()
        value = precision / 2 * outer.square().sum() - log_likelihood
        torch.autograd.backward(value)
        return float(value.detach())

    search.step(loss)
    mode: Tensor = (to_outer @ inner).detach()
    return mode
