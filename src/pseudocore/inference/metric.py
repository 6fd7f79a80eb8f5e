"""Scales of parameters adapted during burn-in: the diagonal mass matrix of Hamiltonian Monte Carlo.

Trajectories are measured in running standard deviations over chains and draws, refreshed after a third
and two thirds of burn-in. Their geometric mean is kept at 1, so that lengths that were adapted before
keep their worth; step sizes are adapted anew.
"""

from typing import NamedTuple

import torch
from torch import Tensor

SHRINKAGE = 0.3
"""Share by which scales are drawn to each other: a few draws of many parameters are noisy."""


class Metric(NamedTuple):
    centre: Tensor  # running mean (parameters,)
    variance: Tensor  # running variance (parameters,)
    scale: Tensor  # what trajectories are measured in (parameters,)


def begin(theta: Tensor) -> Metric:
    """Before the first draw, for starts (chains, parameters)."""
    one = torch.ones_like(theta[0])
    return Metric(theta.mean(0), torch.zeros_like(one), one)


def refreshed(step: Tensor, num_burn: int) -> Tensor:
    """The draw of burn-in after which the scale was last refreshed, before draw number `step`; 0
    for none yet.
    """
    first, last = num_burn // 3, 2 * num_burn // 3
    return torch.where(step > last, last, torch.where(step > first, first, 0))


def adapt(metric: Metric, thetas: Tensor, step: Tensor, num_burn: int) -> Metric:
    """After draw number `step` = 1, 2, ... of a burn-in, thetas (chains, parameters)."""
    share = step.reciprocal().clamp_min(4 / num_burn)
    away = thetas - metric.centre
    centre = metric.centre + share * away.mean(0)
    variance = (1 - share) * (metric.variance + share * away.square().mean(0))
    logs = (1 - SHRINKAGE) * variance.clamp_min(torch.finfo(variance.dtype).tiny).log() / 2
    due = refreshed(step + 1, num_burn) == step
    return Metric(centre, variance, torch.where(due, (logs - logs.mean()).exp(), metric.scale))
