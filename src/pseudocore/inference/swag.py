r"""SWAG (Maddox et al. 2019): the Gaussian of the networks that SGD passes at a constant step size.

Training ends with a stretch of constant step size, of which networks $\theta_1, \dots, \theta_n$
are collected, evenly spaced. With $\bar\theta_i$ the mean of the first i,

$$ \bar\theta = \frac1n \sum_i \theta_i, \qquad
   \Sigma_{\text{diag}} = \operatorname{diag}\Big(\frac1n \sum_i \theta_i^2 - \bar\theta^2\Big),
   \qquad D = (\theta_i - \bar\theta_i)_{i > n - K}, $$
$$ \theta \sim \mathcal N\left(\bar\theta,\; \tfrac12 \Sigma_{\text{diag}} + \tfrac{1}{2(K - 1)}
   D D^\top\right), \qquad
   \theta = \bar\theta + \tfrac{1}{\sqrt 2} \Sigma_{\text{diag}}^{1/2} z_1
   + \tfrac{1}{\sqrt{2(K - 1)}} D z_2 . $$

How wide that is depends on step size and batches: what moves SGD is the noise of its gradients.
Near a mode of curvature A and noise C, with steps $\theta \leftarrow \theta - \varepsilon(A\theta +
\text{noise})$, its covariance solves $A\Sigma + \Sigma A = \varepsilon (A \Sigma A + C)$ (Mandt et
al. 2017). It is a width of the valley and in general not that of the posterior.

| Maddox et al. | here |
|---|---|
| T, c | `num_steps` · `collect`, and that over `num_collected` |
| K | `rank` |
| S | `num_draws` |

Cost: `num_steps` gradients on at most `batch_size` points, and `rank` networks in memory.

Deviations:
1. SGD maximises the problem's log-posterior, scaled as in `sgd` (`regulariser` = prior); the
   authors have weight decay.
2. The step size falls along a cosine to that of the stretch; theirs falls linearly.
3. Batch norm takes its statistics from the coreset for every draw, as all networks here do.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from pseudocore.core.config import Count, Positive, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.inference.draws_posterior import DrawsPosterior
from pseudocore.inference.regression import posterior_of_draws
from pseudocore.inference.sgd import Training
from pseudocore.training.optimisers import cosine


class Collection:
    """Moments of networks in float64, and the last few deviations from the running mean."""

    def __init__(self, rank: int) -> None:
        self.num = 0
        self.mean: Tensor = torch.zeros(()).double()
        self.square: Tensor = torch.zeros(()).double()
        self.deviations: list[Tensor] = []
        self._rank = rank

    def add(self, theta: Tensor) -> None:
        theta = theta.double()
        self.num += 1
        self.mean = self.mean.to(theta.device) + (theta - self.mean) / self.num
        self.square = self.square.to(theta.device) + (theta.square() - self.square) / self.num
        self.deviations = [*self.deviations, theta - self.mean][-self._rank :]

    @property
    def sd(self) -> Tensor:
        """Of each parameter, (parameters,)."""
        return (self.square - self.mean.square()).clamp_min(0).sqrt()

    def draw(self, num: int, rng: Rng) -> Tensor:
        """Thetas (num, parameters) of the Gaussian, in float64."""
        like: Any = {"device": self.mean.device, "dtype": self.mean.dtype}
        among = torch.stack(self.deviations)
        apart = rng("diagonal").normal(num, len(self.mean), **like) * self.sd
        together = rng("low-rank").normal(num, len(among), **like) @ among
        low_rank: Tensor = together / (2 * (len(among) - 1)) ** 0.5
        return self.mean + apart / 2**0.5 + low_rank


@inferences.register("swag", kind="variational", paper="Maddox et al. 2019, arXiv 1902.02476")
@dataclass(frozen=True, kw_only=True)
class SWAG(Training):
    """The Gaussian, diagonal plus low rank, of networks that SGD passes at a constant step."""

    num_steps: Annotated[int, Range(low=2)] = 2000
    """Gradient steps."""
    batch_size: Count = 32
    """Points per step. Batches of the whole coreset have no noise, and all draws are alike."""
    regulariser: Literal["decay", "prior"] = "prior"
    """What keeps parameters small: the problem's prior, or weight decay in its place."""
    collect: Annotated[float, Range(above=0, high=1)] = 0.5
    """Share of the steps, the last ones, whose networks are collected."""
    collect_step_size: Positive = 0.01
    """Step size there; before, it falls from step_size to this along a cosine."""
    num_collected: Annotated[int, Range(low=2)] = 100
    """Networks collected, evenly spaced; at most one a step."""
    rank: Annotated[int, Range(low=2)] = 20
    """Networks, the last collected ones, behind the correlations of parameters."""
    num_draws: Count = 100
    """Networks drawn for predictions."""

    def fit(self, problem: Problem, coreset: Coreset, rng: Rng) -> DrawsPosterior:
        passed = self.collected(problem, coreset, rng)
        thetas = passed.draw(self.num_draws, rng("draws")).to(problem.dtype)
        posterior = posterior_of_draws(problem, thetas, coreset)
        if len(coreset) <= self.batch_size:
            posterior.notes.append(
                f"swag learns its width from the noise of batches, and those of {self.batch_size}"
                f" hold all {len(coreset)} points: its draws are nearly one network; a smaller"
                " batch_size makes a posterior"
            )
        return posterior

    def collected(self, problem: Problem, coreset: Coreset, rng: Rng) -> Collection:
        """The networks of the last steps."""
        num = self.num_steps - self._first
        if num < 2:
            raise ConfigError(
                f"swag collects {num} network of {self.num_steps} steps with collect ="
                f" {self.collect:g}, and needs 2",
                code="too-few-networks",
                collect=self.collect,
            )
        chosen = min(self.num_collected, num)
        moments = {self._first + num * place // chosen - 1 for place in range(1, chosen + 1)}
        passed = Collection(self.rank)

        def keep(number: int, theta: Tensor) -> None:
            if number in moments:
                passed.add(theta)

        self.train(problem, coreset, rng, on_step=keep)
        return passed

    @property
    def _first(self) -> int:
        """The first step of constant size."""
        return self.num_steps - round(self.num_steps * self.collect)

    def share(self, step: Tensor) -> Tensor:
        floor = self.collect_step_size / self.step_size
        if self._first == 0:
            return torch.full_like(step, floor)
        return cosine(step.clamp(max=self._first), self._first, floor=floor)
