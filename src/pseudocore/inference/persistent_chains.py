"""Persistent chains on weighted points, and the gradient of the forward KL by contrast with them
(Tieleman 2008).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.inference.hmc import leapfrog
from pseudocore.runtime import autodiff

FIRST_STEP_SIZE = 0.02
"""Of a trajectory, in units of the prior."""
JITTER = 0.1
"""Every trajectory's step size varies by this share, which breaks resonance."""

LogLikelihood = Callable[[Tensor], Tensor]
"""Thetas (draws, parameters) to the total log-likelihood of weighted points, (draws,)."""


class Chains(NamedTuple):
    z: Tensor  # parameters in units of the prior (chains, parameters)
    log_step: Tensor  # logarithms of leapfrog step sizes (chains,)
    momentum: Tensor  # that chains without a Metropolis test keep, (chains, parameters)


@dataclass(frozen=True, eq=False)
class Networks:
    """Several networks as one: their parameters one after the other, and as posterior the product
    of theirs, from which forward KL divergences add up.
    """

    problems: tuple[Problem, ...]
    """Of the same data, each with its own network."""

    def split(self, thetas: Tensor) -> Iterator[tuple[Problem, Tensor]]:
        """Each network's problem and its part of thetas (draws, parameters)."""
        parts = torch.split(thetas, [each.model.num_parameters for each in self.problems], 1)
        return zip(self.problems, parts, strict=True)

    def log_likelihood(self, thetas: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Of every point under all networks, (draws, points)."""
        each = [problem.log_likelihood(part, x, y) for problem, part in self.split(thetas)]
        return torch.stack(each).sum(0) if len(each) > 1 else each[0]

    def theta(self, z: Tensor) -> Tensor:
        """Parameters from units of the prior."""
        centre, sd = self._moments()
        return centre + sd * z

    def begin(self, num: int, rng: Rng) -> Chains:
        """Chains at the networks' own starts."""
        centre, sd = self._moments()
        options: Any = {"device": centre.device, "dtype": centre.dtype}
        parts = [
            problem.model.init(rng("start", number), num=num, **options)
            for number, problem in enumerate(self.problems)
        ]
        z = (torch.cat(parts, 1) - centre) / sd
        return Chains(z, z.new_full((num,), math.log(FIRST_STEP_SIZE)), torch.zeros_like(z))

    def draw(self, num: int, rng: Rng) -> Tensor:
        """Draws from the full-data posteriors (num, parameters)."""
        parts = []
        for number, problem in enumerate(self.problems):
            if problem.reference is None:
                raise ConfigError(
                    "bpc-pcd learns from draws of the full-data posterior; the problem has no "
                    "reference",
                    code="needs-reference",
                )
            thetas = problem.reference.thetas
            place = rng(number).integers(len(thetas), num, device=problem.device)
            parts.append(thetas.index_select(0, place))
        return torch.cat(parts, 1)

    def probs(self, thetas: Tensor, x: Tensor) -> Tensor:
        """Predictions averaged over draws, by each network, (networks, n, classes); of a regression
        twice the means in standard deviations of the noise, whose distance to others is halved.
        """
        found = []
        for problem, part in self.split(thetas):
            outputs = problem.logits(part, x)
            if problem.task == "regression":
                outputs = 2 * outputs / problem.gaussian.relative_noise
            else:
                outputs = outputs.softmax(-1)
            found.append(outputs.mean(0))
        return torch.stack(found)

    def _moments(self) -> tuple[Tensor, Tensor]:
        centres, sds = zip(*(problem.prior_moments() for problem in self.problems), strict=True)
        return torch.cat(centres), torch.cat(sds)


def gradient(
    likelihood: Callable[[Tensor, Any], Tensor], points: Any, positive: Tensor, negative: Tensor
) -> tuple[Any, Tensor]:
    """Eq. (17) in every part of `points`, and the gap of which it is the negative gradient.

    Args:
        likelihood: Thetas (draws, parameters) and points to their total log-likelihood, (draws,).
        points: A NamedTuple of tensors.
        positive: Draws from the posterior on the data (draws, parameters).
        negative: Draws from the posterior on the points.
    """
    thetas, num = torch.cat([positive, negative]), len(positive)

    def divergence(*parts: Tensor) -> Tensor:
        value = likelihood(thetas, type(points)(*parts))
        return value[num:].mean() - value[:num].mean()

    places = tuple(range(len(points)))
    value, slopes = autodiff.value_and_grad(divergence, places, pure=False)(*points)
    return type(points)(*slopes), -value


def move(
    log_density: LogLikelihood,
    chains: Chains,
    rng: Rng,
    *,
    num_leapfrog: int,
    target_accept: float = 0.8,
    rate: Tensor | float = 0.0,
    friction: float | None = None,
) -> tuple[Chains, Tensor, Tensor]:
    """One trajectory of every chain, with its Metropolis test. With `friction`, the share of its
    momentum that a chain loses first, there is no test, and draws are off by the size of the steps.

    Returns:
        The chains, whose step sizes follow the acceptance at `rate`; the change of their
        log-density; and their acceptance probability (chains,).
    """
    z = chains.z
    like: Any = {"device": z.device, "dtype": z.dtype}

    def uphill(z: Tensor) -> tuple[Tensor, Tensor]:
        def total(z: Tensor) -> tuple[Tensor, Tensor]:
            value = log_density(z)
            return value.sum(), value

        result: tuple[Tensor, Tensor] = autodiff.grad(total, has_aux=True, pure=False)(z)
        return result

    momentum = rng("momentum").normal(*z.shape, **like)
    if friction is not None:
        kept = 1 - friction
        momentum = kept * chains.momentum + math.sqrt(1 - kept**2) * momentum
    jitter = 1 + JITTER * (2 * rng("jitter").uniform(len(z), **like) - 1)
    slope, before = uphill(z)
    end, after, _, value = leapfrog(
        uphill, z, momentum, slope, chains.log_step.exp() * jitter, num_leapfrog
    )
    gain = value - before - 0.5 * (after.square().sum(1) - momentum.square().sum(1))
    accept = gain.exp().clamp(max=1).nan_to_num(0.0)
    # without a test, only what has no density any more is turned back
    taken = accept > (rng("accept").uniform(len(z), **like) if friction is None else 0)
    end = torch.where(taken.unsqueeze(1), end, z)
    momentum = torch.zeros_like(z) if friction is None else torch.where(taken[:, None], after, 0)
    drift = torch.where(taken, value - before, 0.0)
    log_step = chains.log_step + rate * (accept - target_accept)
    return Chains(end, log_step, momentum), drift, accept
