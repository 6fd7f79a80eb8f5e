"""Predictions of one or several networks, averaged as probabilities, one draw at a time."""

import math

import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.types import Predict

__all__ = ["averaged"]


def averaged(problem: Problem, thetas: Tensor, x: Tensor) -> Predict:
    """BMA over draws (draws, parameters): log of the mean over draws of p(y | x, theta).

    `x` are the network inputs the draws were fitted on; batch-norm networks take their statistics from them.
    """
    draws = list(thetas)
    with torch.no_grad():
        statistics = [problem.model.statistics(theta, x) or None for theta in draws]

    @torch.no_grad()
    def predict(raw: Tensor) -> Tensor:
        inputs = problem.inputs(raw)
        total = torch.full((len(inputs), problem.num_classes), -math.inf, device=inputs.device, dtype=inputs.dtype)
        for theta, of_theta in zip(draws, statistics, strict=True):
            total = torch.logaddexp(total, problem.model.logits(theta, inputs, of_theta).log_softmax(1))
        return total - math.log(len(draws))

    return predict
