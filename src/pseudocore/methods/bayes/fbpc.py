r"""FBPC: pseudo-coresets by forward KL divergence between posteriors of functions.

Kim, Lee, Lee (2023), "Function Space Bayesian Pseudocoreset for Bayesian Neural Networks". What a
network says of the points, $f = f_\theta(u)$, has a posterior of its own, under all data and under
the points. Both are taken to be Gaussian, with the mean and covariance of some networks' outputs,

$$ \nu_x = \mathcal N\Big(\bar f_x,\; \tfrac1{J - 1} \sum_j (f_{\theta_j} - \bar f_x)(f_{\theta_j} -
   \bar f_x)^\top\Big), $$

and the points follow the forward KL,

$$ \nabla_u D_{KL}[\nu_x \| \nu_u] \approx -\mathbb E_{f \sim \nu_x}\big[\nabla_u \textstyle\sum_m
   w_m \log p(y_m \mid f_m)\big] + \mathbb E_{f \sim \nu_u}\big[\nabla_u \textstyle\sum_m w_m \log
   p(y_m \mid f_m)\big] . $$

Networks of $\nu_x$ are draws of the full-data posterior, the problem's reference. Those of $\nu_u$
are the same ones after `num_inner_steps` steps of training on the points, at their last `num_kept`
steps. Nothing follows how they came to depend on $u$. With several networks (`also`) the divergences
add up: outputs have the same meaning in all of them, which parameters do not.

| paper | here | | paper | here |
|---|---|---|---|---|
| networks of $\nu_x$ | `num_members` | | draws of $f$ | `num_draws` |
| $L_u$, $\eta$ | `num_inner_steps`, `inner_lr` | | kept of the trajectory | `num_kept` |

Cost per step and network: `num_inner_steps` gradients in $\theta$ and one in $u$ of `num_members` (1
+ `num_kept`) passes of the points.

Deviations:
  D1. Experts' trajectories are replaced by draws of the posterior: each is a network of $\nu_x$, and
      the start of one of $\nu_u$.
  D2. Adam along a cosine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, Positive, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives.initial import Initial, PointSettings, initial_inputs
from pseudocore.objectives.one_posterior import check_networks, input_unit, refuse_augmentation
from pseudocore.runtime import autodiff
from pseudocore.training.optimisers import Moments, adam, cosine, start


class FBPCState(NamedTuple):
    x: Tensor  # network inputs (M, ...)
    y: Tensor  # labels (M,)
    moments: Moments  # Adam's
    unit: Tensor  # () standard deviation of network inputs
    step: Tensor  # () steps taken


class FBPCInfo(NamedTuple):
    gap: Tensor
    """Mean log-likelihood of the points under functions of their own posterior less that under the
    data's, per point and network; it tends to 0.
    """
    spread: Tensor
    """Standard deviation of the data's functions at the points, averaged over networks."""


@methods.register(
    "fbpc",
    kind="bayes",
    paper="Kim et al. 2023, arXiv 2310.17852",
    targets="function",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class FBPC(PointSettings):
    """Pseudo-coreset by forward KL divergence between posteriors of functions."""

    assumes: ClassVar[str | None] = "hmc"
    needs_reference: ClassVar[bool | str] = True
    repeats_passes: ClassVar[bool] = True

    image_lr: Positive = 0.01
    """Adam's step size on points, in standard deviations of the inputs; falls to 0 along a cosine."""
    initial: Initial = "real"
    """Start from real points, from mixes of two of a class, or from noise."""
    also: str | None = None
    """Other networks that the coreset is to serve as well, each with its options, separated by
    commas: `mlp width=64, convnet3 norm=none`. Defaults to none.
    """
    num_members: Annotated[int, Range(low=2)] = 8
    """Draws of the full-data posterior a step."""
    num_draws: Count = 30
    """Functions drawn from each Gaussian."""
    num_inner_steps: Count = 30
    """Training steps on the points."""
    inner_lr: Positive = 0.03
    """Step size of training on the points, on their mean loss."""
    num_kept: Count = 3
    """Last steps of that training whose networks are kept, where there are as many."""

    def init(self, problem: Problem, rng: Rng) -> FBPCState:
        refuse_augmentation(problem, "fbpc")
        check_networks(problem, self.also, "fbpc")
        x, y = initial_inputs(problem, self.counts(problem), self.initial, rng("points"))
        unit = input_unit(problem, rng("unit"))
        return FBPCState(x, y, start(x), unit, x.new_zeros(()))

    def step(self, problem: Problem, state: FBPCState, rng: Rng) -> tuple[FBPCState, FBPCInfo]:
        weight = self.weights(problem, state.x)
        networks = (problem, *(problem.also if self.also else ()))
        slope, gap = torch.zeros_like(state.x), state.x.new_zeros(())
        spread = torch.zeros_like(gap)
        for number, each in enumerate(networks):
            stream = rng("network", number)
            full = _drawn(each, self.num_members, stream("draws"))
            own = self._trained(each, state, weight, full)
            divergence = self._divergence(each, state.y, weight, own, full, stream("functions"))
            value, gradient = autodiff.value_and_grad(divergence, pure=False)(state.x)
            slope, gap = slope + gradient / weight.sum(), gap + value / weight.sum()
            spread = spread + each.logits(full, state.x).std(0).mean()
        lr = cosine(state.step, self.num_steps) * self.image_lr * state.unit
        change, moments = adam(slope, state.moments, lr)
        info = FBPCInfo(gap / len(networks), spread / len(networks))
        return FBPCState(state.x - change, state.y, moments, state.unit, state.step + 1), info

    def coreset(self, problem: Problem, state: FBPCState) -> Coreset:
        weight = self.weights(problem, state.x)
        return Coreset(problem.pixels(state.x).cpu(), state.y.cpu(), weight.cpu())

    def _divergence(
        self, problem: Problem, y: Tensor, weight: Tensor, own: Tensor, full: Tensor, rng: Rng
    ) -> Callable[[Tensor], Tensor]:
        """Of the points, by the outputs of these networks; its gradient is that of the KL."""
        sides = [
            (
                thetas,
                rng(name).normal(
                    self.num_draws, len(thetas), device=thetas.device, dtype=thetas.dtype
                ),
            )
            for name, thetas in (("own", own), ("full", full))
        ]

        def divergence(x: Tensor) -> Tensor:
            one, other = (expected(problem, x, y, weight, *side) for side in sides)
            return one - other

        return divergence

    def _trained(
        self, problem: Problem, state: FBPCState, weight: Tensor, thetas: Tensor
    ) -> Tensor:
        """The last iterates of training these networks (J, P) on the points, (J · kept, P)."""
        total, kept = weight.sum(), list[Tensor]()

        def height(thetas: Tensor) -> Tensor:
            likelihood = problem.log_likelihood(thetas, state.x, state.y) @ weight
            return (likelihood + problem.log_prior(thetas, normalised=False)).sum() / total

        for number in range(self.num_inner_steps):
            thetas = thetas + self.inner_lr * autodiff.grad(height, pure=False)(thetas)
            if number >= self.num_inner_steps - self.num_kept:
                kept.append(thetas)
        return torch.cat(kept)


def expected(
    problem: Problem, x: Tensor, y: Tensor, weight: Tensor, thetas: Tensor, noise: Tensor
) -> Tensor:
    """The mean log-likelihood of weighted points under functions drawn from the Gaussian of some
    networks' outputs (J, M, k), by standard normal noise (S, J).
    """
    outputs = problem.logits(thetas, x)
    mean = outputs.mean(0)
    deviation = (outputs - mean) / (len(thetas) - 1) ** 0.5
    functions = mean + torch.einsum("sj,jmk->smk", noise, deviation)
    return (problem.likelihood.log_prob(functions, y) @ weight).mean()


def _drawn(problem: Problem, num: int, rng: Rng) -> Tensor:
    """Random draws of the reference (num, P)."""
    if problem.reference is None:
        raise ConfigError(
            "fbpc learns from draws of the full-data posterior; the problem has no reference",
            code="needs-reference",
        )
    thetas = problem.reference.thetas
    return thetas.index_select(0, rng.integers(len(thetas), num, device=problem.device))
