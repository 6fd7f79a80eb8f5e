r"""Step sizes adapted during burn-in: dual averaging (Nesterov 2009) on the acceptance rate, as in
Hoffman & Gelman (2014), §3.2.

$$ \bar H_m = \left(1 - \tfrac1{m + t_0}\right)\bar H_{m-1}
   + \tfrac1{m + t_0}(\delta - \alpha_m), \quad
   \log \varepsilon_m = \mu - \tfrac{\sqrt m}{\gamma} \bar H_m, \quad
   \log \bar\varepsilon_m = m^{-\kappa} \log \varepsilon_m
   + (1 - m^{-\kappa}) \log \bar\varepsilon_{m-1} \tag{5, 6} $$

with $\mu = \log 10\varepsilon_1$, target acceptance $\delta$ and observed acceptance $\alpha_m$.
Every chain adapts its own.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

GAMMA, T0, KAPPA = 0.05, 10.0, 0.75


class Adaptation(NamedTuple):
    centre: Tensor  # μ, (chains,)
    error: Tensor  # H̄, (chains,)
    log_step: Tensor  # log ε of the next trajectory, (chains,)
    log_average: Tensor  # log ε̄, used after burn-in, (chains,)


def begin(step_size: float, like: Tensor) -> Adaptation:
    """The state before the first update, given a first guess; `like` is (chains,)."""
    guess = torch.full_like(like, math.log(step_size))
    return Adaptation(guess + math.log(10), torch.zeros_like(like), guess, torch.zeros_like(like))


def restart(adaptation: Adaptation) -> Adaptation:
    """From the present step sizes, which are near: they are the centre, and not a tenth of it."""
    none = torch.zeros_like(adaptation.error)
    return Adaptation(adaptation.log_step, none, adaptation.log_step, none)


def adapt(adaptation: Adaptation, accept: Tensor, step: Tensor, target: float) -> Adaptation:
    """The step sizes after the acceptance probabilities (chains,) of update number `step` = 1, 2,
    ...
    """
    centre, error, _, log_average = adaptation
    share = 1 / (step + T0)
    error = (1 - share) * error + share * (target - accept)  # Eq. (5)
    log_step = centre - step.sqrt() / GAMMA * error
    weight = step**-KAPPA
    log_average = weight * log_step + (1 - weight) * log_average  # Eq. (6)
    return Adaptation(centre, error, log_step, log_average)
