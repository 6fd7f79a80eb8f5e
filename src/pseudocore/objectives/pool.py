"""A pool of networks of all ages, trained on the coreset while it is being made (FRePo; VBPC §3).

Each step borrows one network, and gives it one step of training on the current coreset afterwards.
A network that has reached `max_age` steps is replaced by a fresh one. Ages start staggered, so that
the pool always holds young and old: a coreset fitted to networks of one age alone works for no
other.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, Positive
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.objectives.last_layer_gaussian import mean_squared_error
from pseudocore.runtime import autodiff
from pseudocore.training.optimisers import Moments, adam, start, tree_map


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """Fields of the methods that keep a pool."""

    pool_size: Count = 10
    """Networks kept in the pool."""
    max_age: Count = 100
    """Training steps after which a pool network is replaced by a fresh one."""
    pool_lr: Positive = 3e-4
    """Adam's step size of the pool networks on the coreset."""


class Pool(NamedTuple):
    theta: Tensor  # (networks, parameters)
    moments: Moments  # of Adam, in rows like theta's; steps (networks, 1)
    age: Tensor  # steps of training, as if trained from the beginning, (networks,)


def fill(problem: Problem, rng: Rng, *, size: int, max_age: int) -> Pool:
    """Fresh networks whose age counters are spread evenly over 0 .. max_age - 1."""
    theta = problem.model.init(rng, num=size, device=problem.device, dtype=problem.dtype)
    steps = torch.zeros(size, 1, device=problem.device, dtype=problem.dtype)
    age = torch.arange(size, device=problem.device) * max_age // size
    return Pool(theta, start(theta, steps), age)


def pick(pool: Pool, rng: Rng) -> Tensor:
    """The place of a random network in the pool, (1,), on its device."""
    return rng.integers(len(pool.age), 1, device=pool.age.device)


def advance(
    pool: Pool,
    place: Tensor,
    problem: Problem,
    x: Tensor,
    y: Tensor,
    rng: Rng,
    *,
    step_size: float,
    max_age: int,
    weight: Tensor | None = None,
) -> Pool:
    """The pool after one Adam step on (weighted) squared error of the network at `place`, which is
    replaced by a fresh one when it reaches `max_age`.
    """
    theta, moments, age = tree_map(lambda part: part.index_select(0, place), pool)

    def loss(theta: Tensor) -> Tensor:
        with problem.fast():
            logits = problem.model.logits(theta, x)
        return mean_squared_error(logits.to(y.dtype), y, weight)

    gradient = autodiff.grad(loss)(theta[0])
    change, moments = adam(gradient.unsqueeze(0), moments, step_size)
    keep = age + 1 < max_age  # a tensor, not a branch: a captured graph must take both
    fresh = problem.model.init(rng, num=1, device=problem.device, dtype=problem.dtype)
    theta = torch.where(keep[:, None], theta - change, fresh)
    moments = tree_map(lambda part: part * keep[:, None], moments)
    one = Pool(theta, moments, (age + 1) * keep)
    after: Pool = tree_map(lambda whole, part: whole.index_copy(0, place, part), pool, one)
    return after
