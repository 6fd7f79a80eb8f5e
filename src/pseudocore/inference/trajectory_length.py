r"""Lengths of Hamiltonian trajectories adapted during burn-in, by the criterion of ChEES (Hoffman,
Radul, Sountsov 2021, "An Adaptive-MCMC Scheme for Setting Trajectory Lengths in Hamiltonian Monte
Carlo").

After $j$ leapfrog steps a trajectory should have changed how far a chain is from the centre $m$ of the
posterior as much as it can:

$$ \max_j\; E\big[(\lVert\theta_j - m\rVert^2 - \lVert\theta_0 - m\rVert^2)^2\big] . $$

Deviations:
1. The criterion is measured after every step of the trajectories of burn-in, which go further than the
   best length so far, and the best number of steps is read off. The paper follows its gradient.
2. The centre is a running mean over chains and draws (`metric.py`): with four chains, that of one
   draw is noise.
3. Lengths vary by ±`SPREAD`, not from 0 to twice the best: enough to break resonance, and fewer short
   trajectories.
"""

from typing import NamedTuple

import torch
from torch import Tensor

SPREAD = 0.4
"""Share by which the length of a trajectory varies."""
FURTHER = 1.5
"""How much further trajectories of burn-in go than the best length so far."""
FIRST_STEPS, MAX_STEPS = 10, 100
"""Leapfrog steps that count as best before any are measured, and the most that a trajectory takes."""
MEMORY = 40
"""Trajectories that running sums remember."""
SHARE = 0.25
"""Share of remembered trajectories that must have come as far as a length that is taken."""
RATE = 0.2
"""At which the best length follows what was best."""


class Length(NamedTuple):
    best: Tensor  # leapfrog steps of a trajectory, running mean of what was best, ()
    change: Tensor  # running sum of squared changes after 1, 2, ... steps (MAX_STEPS,)
    trips: Tensor  # running sum of the acceptance of trajectories behind it (MAX_STEPS,)


def begin(like: Tensor) -> Length:
    """The state before the first trajectory."""
    none = like.new_zeros(MAX_STEPS)
    return Length(like.new_tensor(FIRST_STEPS), none, none.clone())


def num_steps(length: Length, uniform: Tensor, *, burning: bool) -> int:
    """Leapfrog steps of one trajectory, for a uniform number."""
    factor = FURTHER if burning else 1 + SPREAD * (2 * uniform - 1)
    return int((length.best * factor).ceil().clamp(1, MAX_STEPS))


def squared_distance(theta: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
    """Of each chain from the centre, in units of the scale (chains,)."""
    return ((theta - centre) / scale).square().sum(1)


def adapt(length: Length, changes: Tensor, accept: Tensor) -> Length:
    """The state after trajectories whose squared distances from the centre changed by (steps,
    chains) after each step; they count by their acceptance probability (chains,).
    """
    num = len(changes)
    squares = torch.where(accept > 0, accept * changes.square(), 0.0).sum(1)
    keep = 1 - 1 / MEMORY
    change, count = keep * length.change, keep * length.trips
    change[:num] += squares
    count[:num] += accept.sum()
    known = (count > 0) & (count >= SHARE * count[0])
    worth = torch.where(known, change / count, 0)
    best = torch.where(known.any(), 1 + worth.argmax(), length.best)
    return Length(length.best + RATE * (best - length.best), change, count)
