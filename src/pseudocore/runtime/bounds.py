"""What a coreset can be: points, targets, weights and learned numbers in reach of the data.

A run may explode long before a number overflows. A coreset beyond these bounds is divergence, as NaN
is, so that the last good coreset of a diverged run is one that can be used.
"""

import torch

from pseudocore.core.errors import DataError
from pseudocore.core.likelihood import CATEGORICAL, Likelihood
from pseudocore.core.problem import Problem
from pseudocore.core.types import ORDINARY, Coreset, Iterative

MAX_REACH = 1000
"""Points this many times beyond the data's range are no coreset; targets and the total weight
likewise.
"""


class Bounds:
    """Finds what of a method's state is out of bounds, by the coreset it stands for."""

    def __init__(self, method: Iterative, problem: Problem) -> None:
        self._method, self._problem = method, problem
        self._largest = _range(problem)

    def __call__(self, state: object) -> str | None:
        """What is out of bounds, in words; None when nothing is."""
        try:
            coreset = self._method.coreset(self._problem, state)
        except DataError as error:  # weights that are infinite, or all 0
            return f"no coreset was left ({error})"
        likelihood = self._problem.likelihood
        return beyond(coreset, self._largest, self._problem.num_train, likelihood)


def beyond(
    coreset: Coreset, largest: float, num_train: int, likelihood: Likelihood = CATEGORICAL
) -> str | None:
    """What of a coreset is far outside data whose values reach `largest`; None when nothing is."""
    points = float(coreset.x.abs().max())
    if points > MAX_REACH * largest:
        return f"points reached {points:.3g}, far outside the data (at most {largest:.3g})"
    if coreset.is_soft:
        targets = float(likelihood.targets(coreset.y).abs().max())
        if targets > MAX_REACH:
            unit = "those of labels (at most 1)"
            if likelihood.task == "regression":
                unit = "the data's (in standard deviations)"
            return f"targets reached {targets:.3g}, far outside {unit}"
    total = float(coreset.weight.sum())
    if total > MAX_REACH * num_train:
        return f"weights reached a sum of {total:.3g}, for {num_train} training points"
    low, high = ORDINARY
    numbers = coreset.provenance.get("posterior", {}).items()
    return next((f"{key} reached {one:.3g}" for key, one in numbers if not low < one < high), None)


def _range(problem: Problem) -> float:
    """The largest absolute value of the training inputs, in pixel units for images; 1 for none."""
    x = problem.data.train.x
    if x.dtype == torch.uint8:
        return 1.0
    parts = (float(part.abs().max()) for part in torch.split(x, 2**16))
    return max(parts) or 1.0
