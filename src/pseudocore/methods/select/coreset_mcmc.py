r"""Coreset MCMC: the weights of random points, by chains on the posterior that they give.

Chen, Campbell (2024), "Coreset Markov chain Monte Carlo". With $f_n$ the log-likelihood of point n,
$\pi_w(\theta) \propto \exp(\sum_m w_m f_m(\theta))\,\pi_0(\theta)$, K persistent chains and a random
batch B of the N training examples, every step moves the chains once under $\pi_w$ and then the
weights along

$$ g_m = -\frac1{K-1} \sum_{k=1}^K \big(f_m(\theta_k) - \bar f_m\big) \Big(\frac N{|B|} \sum_{b \in
   B} f_b(\theta_k) - \sum_j w_j f_j(\theta_k)\Big), \qquad w \leftarrow \max(0,\, w - \gamma_t g)
   , $$

an estimate of the gradient of $D_{KL}[\pi_w \| \pi_1]$ without a posterior of the data and without
an approximation of $\pi_w$: any network will do, and all of its parameters are drawn. A move is one
trajectory of Hamiltonian Monte Carlo in units of the prior (`inference/persistent_chains.py`).

Cost per step: `num_leapfrog` + 1 gradients of the points for every chain, and one pass of the batch.

Deviations:
  D1. $\gamma_t$ is Adam's along a cosine, relative to the mean weight $N/M$. The step size of the
      chains adapts to the acceptance at a rate that falls along the same cosine.
  D2. Points are drawn class by class unless `balanced` is false, and begin with their class's share.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, NonNegative, Range, Whole
from pseudocore.core.likelihood import BOTH
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.inference.persistent_chains import Chains, Networks, move
from pseudocore.objectives.one_posterior import refuse_augmentation
from pseudocore.selection.budgets import BalancedBudget, in_order, random_points
from pseudocore.training.optimisers import Moments, adam, cosine, start

ADAPTATION = 0.1
"""Rate at which the logarithm of a step size follows the acceptance."""


class CoresetMCMCState(NamedTuple):
    places: Tensor  # training points (M,)
    weight: Tensor  # (M,)
    moments: Moments  # Adam's
    chains: Chains
    step: Tensor  # () steps taken


class CoresetMCMCInfo(NamedTuple):
    spread: Tensor
    """Variance over chains of the batch's log-likelihood, scaled to all data, less the points'."""
    accept: Tensor
    """Mean acceptance probability of the chains."""
    total_weight: Tensor
    """Sum of the weights."""
    num_active: Tensor
    """Number of points whose weight is not 0."""


@methods.register(
    "coreset-mcmc",
    kind="select",
    paper="Chen & Campbell 2024, arXiv 2310.17063",
    targets="posterior",
    weights="yes",
)
@dataclass(frozen=True, kw_only=True)
class CoresetMCMC(BalancedBudget):
    """Random points with the weights of least reverse KL, by chains on their posterior."""

    tasks = BOTH
    assumes: ClassVar[str | None] = "hmc"
    learns_total_weight: ClassVar[bool] = True

    num_steps: Count = 2000
    """Steps, each of which moves the chains and the weights."""
    batch_size: Annotated[int | None, Range(low=1)] = None
    """Random training examples behind a step. Defaults to all of them."""
    weight_lr: NonNegative = 0.03
    """Adam's step size on the weights, as a share of their mean; falls to 0 along a cosine."""
    num_chains: Annotated[int, Range(low=2)] = 16
    """Persistent chains on the points."""
    num_leapfrog: Count = 5
    """Leapfrog steps by which every step moves the chains."""
    num_warmup: Whole = 100
    """Trajectories of the chains before the first step."""
    target_accept: Annotated[float, Range(above=0, high=0.99)] = 0.8
    """Acceptance rate to which the chains' step sizes adapt."""

    def init(self, problem: Problem, rng: Rng) -> CoresetMCMCState:
        refuse_augmentation(problem, "coreset-mcmc")
        index, weight = random_points(problem, self, rng("points"))
        index, weight = index.to(problem.device), weight.to(problem.device, problem.dtype)
        chains = Networks((problem,)).begin(self.num_chains, rng("chains"))
        step = weight.new_zeros(())
        state = CoresetMCMCState(index, weight, start(weight), chains, step)
        for number in range(self.num_warmup):
            chains, _ = self._moved(problem, state, rng("warmup", number), ADAPTATION)
            state = state._replace(chains=chains)
        return state

    def step(
        self, problem: Problem, state: CoresetMCMCState, rng: Rng
    ) -> tuple[CoresetMCMCState, CoresetMCMCInfo]:
        decay, num = cosine(state.step, self.num_steps), problem.num_train
        chains, accept = self._moved(problem, state, rng("chains"), ADAPTATION * decay)
        size = num if self.batch_size is None else min(self.batch_size, num)
        batch = rng("batch").permutation(num, device=problem.device)[:size]
        thetas = Networks((problem,)).theta(chains.z)
        with torch.no_grad():
            own = problem.log_likelihood(thetas, *problem.batch(state.places))  # (chains, M)
            data = problem.log_likelihood(thetas, *problem.batch(batch)).sum(1) * (num / size)
        left = data - own @ state.weight
        slope = (own - own.mean(0)).mT @ (left - left.mean()) / (1 - self.num_chains)
        lr = decay * self.weight_lr * num / len(state.weight)
        change, moments = adam(slope, state.moments, lr)
        weight = (state.weight - change).clamp_min(0)
        active = (weight > 0).to(weight).sum()
        info = CoresetMCMCInfo(left.var(), accept.mean(), weight.sum(), active)
        return CoresetMCMCState(state.places, weight, moments, chains, state.step + 1), info

    def coreset(self, problem: Problem, state: CoresetMCMCState) -> Coreset:
        order = in_order(problem, self, state.places)
        return problem.subset(state.places[order].cpu(), state.weight[order].cpu())

    def _moved(
        self, problem: Problem, state: CoresetMCMCState, rng: Rng, rate: Tensor | float
    ) -> tuple[Chains, Tensor]:
        """The chains after one trajectory under the points as they weigh, and their acceptance."""
        x, y = problem.batch(state.places)
        theta = Networks((problem,)).theta

        def log_density(z: Tensor) -> Tensor:
            likelihood = problem.log_likelihood(theta(z), x, y) @ state.weight
            return likelihood - 0.5 * z.square().sum(1)

        chains, _, accept = move(
            log_density, state.chains, rng,
            num_leapfrog=self.num_leapfrog, target_accept=self.target_accept, rate=rate,
        )  # fmt: skip
        return chains, accept
