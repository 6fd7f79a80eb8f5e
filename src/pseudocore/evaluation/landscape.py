r"""Do a coreset and the data it stands for agree about more than one network? Their losses along a
line (after LCMat, Fig. 1b).

$$ L_D(\alpha) = -\frac{1}{\sum_i w_i} \sum_{i \in D} w_i \log p\bigl(y_i \mid x_i, (1 -
\alpha)\,\theta_S + \alpha\,\theta_T\bigr) $$

for D the coreset S and the training set T, where $\theta_S$ and $\theta_T$ were trained on the one
and on the other from one initialisation. A coreset that carries the data's loss surface has its
minimum where theirs is and rises as they do. One that only fits at $\theta_S$ shows a well of its
own there. Shin et al. draw a plane of random, filter-normalised directions (Li et al. 2018) around
one network; the line between two networks needs no normalisation, as its own length is the scale.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError

PLACES = tuple(round(-0.5 + 0.1 * place, 1) for place in range(21))
"""Where a slice is taken by default: from half a length before the first network to half a length
beyond the second.
"""

Points = Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]]
"""A set of points, as batches of network inputs, labels and weights."""

LogLikelihood = Callable[[Tensor, Tensor, Tensor], Tensor]
"""theta, inputs and labels to log p(y | x, theta) per example: `Problem.log_likelihood`."""


class Slice(NamedTuple):
    at: tuple[float, ...]
    """α: 0 is the first network, 1 the second."""
    losses: dict[str, tuple[float, ...]]
    """Mean loss at every place, by the name of the set."""


@torch.no_grad()
def along(
    log_likelihood: LogLikelihood,
    first: Tensor,
    second: Tensor,
    sets: Mapping[str, Points],
    at: Sequence[float] = PLACES,
) -> Slice:
    """Weighted mean loss of each set on the line through two networks."""
    if first.shape != second.shape or first.ndim != 1:
        raise ConfigError(
            f"a line goes through two networks of one size, not of {tuple(first.shape)} and {tuple(second.shape)} parameters"
        )
    thetas = [torch.lerp(first, second, place) for place in at]
    losses = {
        name: tuple(_loss(log_likelihood, theta, points) for theta in thetas)
        for name, points in sets.items()
    }
    return Slice(tuple(at), losses)


def _loss(log_likelihood: LogLikelihood, theta: Tensor, points: Points) -> float:
    total = weight_sum = 0.0
    for x, y, weight in points():
        total -= float((weight * log_likelihood(theta, x, y)).double().sum())
        weight_sum += float(weight.double().sum())
    return total / weight_sum
