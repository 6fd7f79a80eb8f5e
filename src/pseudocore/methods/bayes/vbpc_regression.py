r"""VBPC for numbers: the evidence bound of all data under the last layer's exact posterior.

With $\mathcal N(m^*, V^*)$ the posterior of a linear regression on the coreset's features, weighted
points, under the problem's noise $\sigma$ and prior (`inference/regression_head.py`),

$$ \tfrac1{|B|}\sum_{(x, y) \in B} \left[\frac{(y - m^{*\top}\phi(x))^2 + \phi(x)^\top V^*\phi(x)}
   {2\sigma^2} + \log\sigma\right] + \frac1N KL\left[\mathcal N(m^*, V^*)\,\|\,\mathcal
   N(0, \sigma_0^2 I)\right] , $$

which is minus the evidence bound of all data over N: for a linear network it is least at their
exact posterior, which as many points as parameters can hold.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.inference import regression_head
from pseudocore.objectives import kernel_regression
from pseudocore.objectives import last_layer_gaussian as gaussian

if TYPE_CHECKING:
    from pseudocore.methods.bayes.vbpc import VBPC, VBPCLearned

OF_LABELS = ("kl_weight", "logit_scale", "prior_variance", "ridge", "learn_variance", "match")
"""Options without effect on numbers."""


class NumbersInfo(NamedTuple):
    loss: Tensor
    """The objective on the batch, before the step."""
    rmse: Tensor
    """Root mean squared error on the batch, in standard deviations of the targets."""


def check(method: "VBPC") -> None:
    """Refuse options that are of labels alone."""
    default = type(method)()
    given = [name for name in OF_LABELS if getattr(method, name) != getattr(default, name)]
    if given:
        raise ConfigError(
            f"{' and '.join(given)} of vbpc have no effect on a regression, whose noise and prior"
            " are the problem's (target_noise, prior_scale); leave them out",
            code="unused-option",
            options=given,
        )


def loss(
    method: "VBPC",
    problem: Problem,
    learned: "VBPCLearned",
    features: Tensor,
    real: Tensor,
    y: Tensor,
) -> tuple[Tensor, Tensor]:
    """The evidence bound, and predictions (n, 1) for the real examples."""
    share = method.relative(learned)
    weight = torch.ones_like(learned.log_weight) if share is None else share
    weight = weight * method.mean_weight(problem)
    head = regression_head.fit(problem, features, learned.y, weight)
    mean, spread = gaussian.predict(head, regression_head.with_one(real))
    noise = problem.gaussian.relative_noise
    error = (y - mean).square().sum(1) + spread
    divergence = gaussian.kl(head).sum() / problem.num_train
    return error.mean() / (2 * noise**2) + math.log(noise) + divergence, mean


def moved(
    objective: Callable[["VBPCLearned"], tuple[Tensor, Tensor]],
    learned: "VBPCLearned",
    moments: Any,
    rates: Sequence[Tensor],
    y: Tensor,
) -> tuple["VBPCLearned", Any, NumbersInfo]:
    """What is learned, its moments and the info after a step of Adam."""
    new, moments, value, mean = kernel_regression.moved(objective, learned, moments, rates)
    return new, moments, NumbersInfo(value, (mean - y).square().mean().sqrt())
