r"""Kernel ridge regression on a few points, and what real data lose under it.

$$ \hat f(x) = k_{xS}\left(K_{SS} + r I\right)^{-1} \hat Y, \qquad
   \mathcal L = \tfrac1{2|B|} \sum_{(x, y) \in B} \lVert \hat f(x) - \bar y \rVert^2 $$

with $\bar y$ the centred one-hot label and $r$ relative to the mean of the diagonal of $K_{SS}$, so
that it means the same for every kernel.
"""

import torch
from torch import Tensor

from pseudocore.core.problem import label_log_likelihood
from pseudocore.objectives.pool import mean_squared_error


def centred(y: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """One-hot labels less their mean over classes, (n, classes)."""
    classes = torch.arange(num_classes, device=y.device)
    return (y.unsqueeze(1) == classes).to(dtype) - 1 / num_classes


def regress(gram: Tensor, cross: Tensor, y: Tensor, *, ridge: float) -> Tensor:
    """Predictions (n, classes) from kernels (M, M) and (n, M) and targets (M, classes); NaN where
    rounding leaves no positive matrix.
    """
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    cholesky, failed = torch.linalg.cholesky_ex(gram + ridge * gram.diagonal().mean() * identity)
    cholesky = torch.where(
        failed == 0, cholesky, torch.nan
    )  # what is left of a failed factor may look like one
    factor = torch.linalg.solve_triangular(cholesky, identity, upper=False)
    predictions: Tensor = cross @ (factor.mT @ (factor @ y))
    return predictions


def loss(mean: Tensor, y: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Squared error of predictions (n, classes) at labels (n,), and their log-probabilities under
    the logit scale.

    The scale is fitted to the labels beside it and moves nothing else: it makes predictions
    probabilities.
    """
    log_probs = (log_scale.exp() * mean.detach()).log_softmax(1)
    squared_error = mean_squared_error(mean, centred(y, mean.shape[1], mean.dtype))
    return squared_error - label_log_likelihood(log_probs, y).mean(), log_probs
