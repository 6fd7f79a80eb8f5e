r"""Kernel ridge regression on a few points, its loss on real data, and one step that reduces it.

$$ \hat f(x) = k_{xS}\left(K_{SS} + r W^{-1}\right)^{-1} \hat Y, \qquad
   \mathcal L = \tfrac1{2|B|} \sum_{(x, y) \in B} \lVert \hat f(x) - \bar y \rVert^2 $$

with $\bar y$ the centred one-hot label, $W$ the points' weights over their mean, and $r$ relative to
the weighted mean of the diagonal of $K_{SS}$, which makes it comparable across kernels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from pseudocore.core.config import Count, NonNegative, Positive
from pseudocore.core.problem import label_log_likelihood
from pseudocore.objectives.initial import PointSettings
from pseudocore.objectives.last_layer_gaussian import mean_squared_error
from pseudocore.training.optimisers import adam, tree_map


@dataclass(frozen=True, kw_only=True)
class RegressionSettings(PointSettings):
    """Fields of the methods that regress on features or a kernel."""

    batch_size: Count = 512
    """Real examples per step."""
    label_lr: NonNegative = 0.01
    """Adam's step size on targets; 0 keeps the labels at centred one-hot."""
    ridge: Positive = 0.01
    """Observation noise, relative to the mean squared feature norm (the kernel's diagonal)."""
    logit_scale: Positive = 10.0
    """Initial factor from predictions to logits; learned."""


class RegressionInfo(NamedTuple):
    loss: Tensor
    """The objective on the batch, before the step."""
    accuracy: Tensor
    """Accuracy on the batch, before the step."""
    logit_scale: Tensor
    """Factor from predictions to logits, after the step."""


def centred(y: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """One-hot labels minus their mean over classes, (n, classes)."""
    classes = torch.arange(num_classes, device=y.device)
    return (y.unsqueeze(1) == classes).to(dtype) - 1 / num_classes


def regress(
    gram: Tensor, cross: Tensor, y: Tensor, *, ridge: float, weight: Tensor | None = None
) -> Tensor:
    """Predictions (n, classes) from kernels, targets and weights of mean 1; NaN where the Cholesky
    factor fails.
    """
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    if weight is None:
        noise = ridge * gram.diagonal().mean() * identity
    else:
        noise = ridge * (weight * gram.diagonal()).mean() * weight.reciprocal().diag()
    cholesky, failed = torch.linalg.cholesky_ex(gram + noise)
    cholesky = torch.where(failed == 0, cholesky, torch.nan)  # a failed factor may look like one
    factor = torch.linalg.solve_triangular(cholesky, identity, upper=False)
    predictions: Tensor = cross @ (factor.mT @ (factor @ y))
    return predictions


def loss(mean: Tensor, y: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Squared error of predictions (n, classes) at labels (n,), and their log-probabilities under
    the logit scale.

    The scale is fitted to the same labels by cross-entropy, which does not move the predictions.
    """
    log_probs = (log_scale.exp() * mean.detach()).log_softmax(1)
    squared_error = mean_squared_error(mean, centred(y, mean.shape[1], mean.dtype))
    return squared_error - label_log_likelihood(log_probs, y).mean(), log_probs


def moved(
    objective: Callable[[Any], tuple[Tensor, Tensor]],
    learned: Any,
    moments: Any,
    step_sizes: Sequence[Tensor],
) -> tuple[Any, Any, Tensor, Tensor]:
    """What is `learned` and its moments after a step of Adam, and both that the objective gives."""

    def with_value(learned: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        value, predictions = objective(learned)
        return value, (value.detach(), predictions.detach())

    gradient, (value, predictions) = grad(with_value, has_aux=True)(learned)
    change, moments = adam(gradient, moments, step_sizes)
    return tree_map(torch.sub, learned, change), moments, value, predictions


def step(
    objective: Callable[[Any], tuple[Tensor, Tensor]],
    learned: Any,
    moments: Any,
    step_sizes: Sequence[Tensor],
    y: Tensor,
) -> tuple[Any, Any, RegressionInfo]:
    """What is `learned`, a NamedTuple with a `log_scale`, and its moments after a step of Adam.

    `objective` gives the loss and the log-probabilities of the labels y.
    """
    new, moments, value, log_probs = moved(objective, learned, moments, step_sizes)
    accuracy = (log_probs.argmax(1) == y).to(value.dtype).mean()
    return new, moments, RegressionInfo(value, accuracy, new.log_scale.exp())
