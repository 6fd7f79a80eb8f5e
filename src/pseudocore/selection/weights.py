r"""Weights learned for points that are selected already.

With $g_i$ the last layer's gradient of example i of a class of n, and S the selected points,

$$ w = n \operatorname*{argmin}_{v \ge 0} \Big\lVert \frac1n \sum_i g_i - \sum_{j \in S} v_j g_j
   \Big\rVert^2 , $$

so that $\sum_j w_j g_j$ estimates the class's total gradient. This is the sparse regression of
Campbell and Broderick (2019, "Automated scalable Bayesian inference via Hilbert coresets") on
points that are given, with the last layer's gradients in place of random projections. Nothing
rescales the weights: their sum is near n where the points can carry the class, and below where they
cannot.
"""

import math

import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.selection.last_layer_gradients import LastLayer, along, mean_gradient
from pseudocore.selection.matching import non_negative


def learned(layer: LastLayer, places: Tensor) -> Tensor:
    """Weights (m,) of the examples at some places (m,) of a group; their share of the group where
    no weight would help.
    """
    own, n = layer.at(places), len(layer.y)
    gram = (own.residual @ own.residual.mT) * (own.features @ own.features.mT + 1)
    weight = n * non_negative(gram, along(own, mean_gradient(layer)))
    return weight if weight.sum() > 0 else torch.full_like(weight, n / len(places))


def at_zero(problem: Problem, index: Tensor) -> LastLayer:
    """What a linear network of zero weights sees of some training points: their gradients differ
    like the inputs.
    """
    x, y = problem.batch(index)
    log_probs = x.new_full((len(x), problem.num_classes), -math.log(problem.num_classes))
    return LastLayer(x.flatten(1), log_probs, y)
