r"""BPC-PCD: the forward KL itself, by persistent chains.

The objective is the forward KL divergence of Kim, Choi, Lee, Lee, Ha, Lee (2022), "On Divergence
Measures for Bayesian Pseudocoresets" (arXiv 2210.06205), Eq. (17), without approximating either
posterior: with $f$ the log-likelihood of a point and $\pi_{u,w}(\theta) \propto \exp(\sum_m w_m
f(u_m, \theta))\,\pi_0(\theta)$,

$$ \nabla D_{KL}[\pi_x \| \pi_{u,w}] = -\Big(\mathbb E_{\theta\sim\pi_x}\big[\nabla \textstyle\sum_m
   w_m f(u_m, \theta)\big] - \mathbb E_{\theta\sim\pi_{u,w}}\big[\nabla \textstyle\sum_m w_m f(u_m,
   \theta)\big]\Big) \tag{17} $$

in points, labels and weights alike. Draws from $\pi_x$ are the problem's reference. Draws from
$\pi_{u,w}$ are the ends of chains that persist from step to step (Tieleman 2008, "Training
Restricted Boltzmann Machines using Approximations to the Likelihood Gradient"). Every step moves
them by one trajectory of Hamiltonian Monte Carlo on the points as they are, Metropolis test
included, and then the points by Adam. The chains walk in units of the prior, $\theta = c + \sigma
z$, at temperature 1. With several networks (`also`) $\theta$ holds the parameters of all,
independent of each other given the points, and the divergences add up.

| symbol | here | | symbol | here |
|---|---|---|---|---|
| $u$, $w$ | `points` | | draws from $\pi_x$ a step | `num_positive` |
| $\pi_0$ | `Problem.prior` | | draws from $\pi_{u,w}$ | `num_chains` |

Cost per step: `num_leapfrog` + 1 gradients in θ for every chain, and one gradient in the points for
every chain and positive draw.

Deviations:
  D1. Adam along a cosine. Step sizes of trajectories adapt to `target_accept` at a rate that falls
      along the same cosine, so that at the end the chains leave their posterior invariant.
  D2. Several networks share the Metropolis test and step size of a chain.
  D3. Weights are learned as logarithms and labels as logits: they stay positive and distributions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.budget import Budget
from pseudocore.core.config import Count, Positive, Range, Whole
from pseudocore.core.likelihood import BOTH
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.inference.persistent_chains import (
    Chains,
    LogLikelihood,
    Networks,
    gradient,
    move,
)
from pseudocore.objectives.initial import Initial, initial_inputs
from pseudocore.objectives.one_posterior import check_networks, input_unit, refuse_augmentation
from pseudocore.runtime.loop import drive
from pseudocore.training.optimisers import adam, cosine, start, tree_map

ADAPTATION = 0.1
"""Rate at which the logarithm of a step size follows the acceptance."""
SMOOTHING = 0.1
"""Share of a label that is spread over all classes where learning it begins."""
NUM_FRESH, NUM_PROBES = 40, 1000
"""Draws of every fresh chain and training inputs behind the lag."""


class PCDPoints(NamedTuple):
    x: Tensor  # network inputs (M, ...)
    y: Tensor  # logits of the labels (M, classes), where they are learned; or numbers (M, 1)
    weight: Tensor  # logarithms (M,)


class PCDState(NamedTuple):
    points: PCDPoints
    labels: Tensor  # the class each point stands for (M,)
    moments: Any  # Adam's, PCDPoints of Moments
    chains: Chains  # of all networks
    unit: Tensor  # () standard deviation of network inputs
    step: Tensor  # () steps taken


class PCDInfo(NamedTuple):
    gap: Tensor
    """Log-likelihood of the points under the reference less that under the chains, in nats per
    training example and network. Its gradient is that of the KL, and it tends to 0.
    """
    drift: Tensor
    """Mean change of the chains' log-density by this step; 0 for chains that have caught up."""
    accept: Tensor
    """Mean acceptance probability of the chains."""
    step_size: Tensor
    """Mean leapfrog step size, in units of the prior."""
    total_weight: Tensor
    """Sum of the weights."""


class WalkInfo(NamedTuple):
    accept: Tensor  # acceptance probability (chains,)


@methods.register(
    "bpc-pcd",
    kind="bayes",
    paper="Kim et al. 2022, arXiv 2210.06205",
    targets="posterior",
    weights="option",
)
@dataclass(frozen=True, kw_only=True)
class BPCPersistentChains(Budget):
    """Pseudo-coreset by the exact forward KL, from persistent Hamiltonian chains."""

    tasks = BOTH
    assumes: ClassVar[str | None] = "hmc"
    needs_reference: ClassVar[bool | str] = True
    repeats_passes: ClassVar[bool] = True

    num_steps: Count = 3000
    """Outer steps."""
    weighting: Literal["mass", "ones", "learned"] = "mass"
    """Weight of a point. `mass`: the examples of its class over the points of its class, so that
    weights sum to the size of the training set. `ones`: 1. `learned`: with the points, from mass.
    """
    image_lr: Positive = 0.01
    """Adam's step size on points, in standard deviations of the inputs; falls to 0 along a cosine.
    """
    weight_lr: Positive = 0.01
    """Adam's step size on logarithms of weights, where they are learned."""
    label_lr: Annotated[float | None, Range(low=0)] = None
    """Adam's step size on the logits of soft labels, or on the numbers of a regression in their
    standard deviations; 0 keeps them. Defaults to 0 for labels and to image_lr for numbers.
    """
    initial: Initial = "real"
    """Start from real points, from mixes of two of a class, or from noise."""
    also: str | None = None
    """Other networks that the coreset is to serve as well, each with its options, separated by
    commas: `mlp width=64, convnet3 norm=none`. Defaults to none.
    """
    num_positive: Count = 16
    """Draws of the reference a step."""
    chains: Literal["hmc", "sghmc"] = "hmc"
    """Chains with a Metropolis test; or without, which keep their momentum and travel further, and
    whose draws are off by the size of their steps.
    """
    friction: Annotated[float, Range(above=0, high=1)] = 0.3
    """Share of its momentum that a chain of sghmc loses before each trajectory."""
    num_chains: Count = 8
    """Persistent chains on the coreset."""
    num_leapfrog: Count = 5
    """Leapfrog steps by which every step moves the chains."""
    num_warmup: Whole = 100
    """Trajectories of the chains before the first step, and of the fresh chains that measure the
    lag.
    """
    target_accept: Annotated[float, Range(above=0, high=0.99)] = 0.8
    """Acceptance rate to which the chains' step sizes adapt."""

    def init(self, problem: Problem, rng: Rng) -> PCDState:
        refuse_augmentation(problem, "bpc-pcd")
        check_networks(problem, self.also, "bpc-pcd")
        x, labels = initial_inputs(problem, self.counts(problem), self.initial, rng("points"))
        weight = problem.mass(labels).to(x)
        if problem.task == "regression":
            y, labels = labels, torch.zeros(len(x), dtype=torch.int64, device=x.device)
        else:
            one_hot = torch.eye(problem.num_classes, dtype=x.dtype, device=x.device)[labels]
            y = ((1 - SMOOTHING) * one_hot + SMOOTHING / problem.num_classes).log()
        weight = torch.ones_like(weight) if self.weighting == "ones" else weight
        points = PCDPoints(x, y, weight.log())
        chains = self._fresh(problem, self._likelihood(problem, points, labels), rng("chains"))
        unit = input_unit(problem, rng("unit"))
        return PCDState(points, labels, start(points), chains, unit, x.new_zeros(()))

    def step(self, problem: Problem, state: PCDState, rng: Rng) -> tuple[PCDState, PCDInfo]:
        decay = cosine(state.step, self.num_steps)
        networks, num = self._networks(problem), problem.num_train
        likelihood = self._likelihood(problem, state.points, state.labels)
        chains, drift, accept = self._moved(
            problem, likelihood, state.chains, rng("chains"), ADAPTATION * decay
        )
        slopes, gap = gradient(  # Eq. (17)
            lambda thetas, points: self._likelihood(problem, points, state.labels)(thetas),
            state.points,
            networks.draw(self.num_positive, rng("positive")),
            networks.theta(chains.z),
        )
        weight_lr = self.weight_lr if self.weighting == "learned" else 0.0
        rates = [
            decay * self.image_lr * state.unit,
            decay * self._label_lr(problem),
            decay * weight_lr,
        ]
        changes, moments = adam(tree_map(lambda slope: slope / num, slopes), state.moments, rates)
        points = tree_map(torch.sub, state.points, changes)
        total_weight, step_size = points.weight.exp().sum(), chains.log_step.exp().mean()
        gap = gap / (num * len(networks.problems))
        info = PCDInfo(gap, drift.mean(), accept.mean(), step_size, total_weight)
        return PCDState(points, state.labels, moments, chains, state.unit, state.step + 1), info

    def coreset(self, problem: Problem, state: PCDState) -> Coreset:
        x, y, weight = self._decoded(problem, state.points, state.labels)
        y = problem.likelihood.raw_targets(y)
        return Coreset(problem.pixels(x).cpu(), y.cpu(), weight.cpu())

    def diagnostics(self, problem: Problem, state: PCDState) -> dict[str, Any]:
        return {"lag": self._lag(problem, state)}

    def _label_lr(self, problem: Problem) -> float:
        if self.label_lr is None:
            return self.image_lr if problem.task == "regression" else 0.0
        return self.label_lr

    def _decoded(
        self, problem: Problem, points: PCDPoints, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Network inputs, labels, class probabilities or standardised numbers, and weights."""
        if problem.task == "regression":
            return points.x, points.y, points.weight.exp()
        y = points.y.softmax(1) if self._label_lr(problem) > 0 else labels
        return points.x, y, points.weight.exp()

    def _networks(self, problem: Problem) -> Networks:
        """The problem's network and those beside it."""
        return Networks((problem, *(problem.also if self.also else ())))

    def _likelihood(self, problem: Problem, points: PCDPoints, labels: Tensor) -> LogLikelihood:
        x, y, weight = self._decoded(problem, points, labels)
        networks = self._networks(problem)
        return lambda thetas: networks.log_likelihood(thetas, x, y) @ weight

    def _fresh(self, problem: Problem, likelihood: LogLikelihood, rng: Rng) -> Chains:
        """Chains from the networks' own starts, warmed up with the Metropolis test."""
        chains = self._networks(problem).begin(self.num_chains, rng)
        return self._walked(problem, likelihood, chains, rng("warmup"), self.num_warmup, ADAPTATION)

    def _walked(
        self,
        problem: Problem,
        likelihood: LogLikelihood,
        chains: Chains,
        rng: Rng,
        num: int,
        rate: float,
        on_chains: Callable[[Chains], None] = lambda chains: None,
    ) -> Chains:
        """The chains after `num` trajectories on points that stay, with the Metropolis test; on a
        GPU from a captured graph.
        """

        def step(problem: Problem, chains: Chains, rng: Rng) -> tuple[Chains, WalkInfo]:
            chains, _, accept = self._moved(problem, likelihood, chains, rng, rate, tested=True)
            return chains, WalkInfo(accept)

        ending = drive(
            step, chains, problem, rng, num_steps=num, repeats_passes=True,
            on_step=lambda _, chains, info: on_chains(chains),
        )  # fmt: skip
        if ending.status == "interrupted":
            raise KeyboardInterrupt(ending.reason)
        walked: Chains = ending.state
        return walked

    def _moved(
        self,
        problem: Problem,
        likelihood: LogLikelihood,
        chains: Chains,
        rng: Rng,
        rate: Tensor | float,
        *,
        tested: bool = False,
    ) -> tuple[Chains, Tensor, Tensor]:
        theta = self._networks(problem).theta
        return move(
            lambda z: likelihood(theta(z)) - 0.5 * z.square().sum(1),
            chains,
            rng,
            num_leapfrog=self.num_leapfrog,
            target_accept=self.target_accept,
            rate=rate,
            friction=None if tested or self.chains == "hmc" else self.friction,
        )

    def _lag(self, problem: Problem, state: PCDState) -> dict[str, float]:
        """How far the persistent chains are from fresh ones on the points as they ended.

        `energy` is the mean log-likelihood of the points under the fresh ones less that under the
        persistent ones, in standard deviations of the former. `distance` is the total variation
        between their averaged predictions for training inputs, by the network of which it is
        largest, and `floor` that between as many fresh draws and all.
        """
        rng, networks = Rng(0)("lag"), self._networks(problem)
        likelihood = self._likelihood(problem, state.points, state.labels)
        chains, kept = self._fresh(problem, likelihood, rng("fresh")), list[Tensor]()
        self._walked(
            problem, likelihood, chains, rng("kept"), NUM_FRESH, 0.0,
            on_chains=lambda chains: kept.append(networks.theta(chains.z)),
        )  # fmt: skip
        own = networks.theta(state.chains.z)
        x, _ = problem.batch(rng("probes").permutation(problem.num_train)[:NUM_PROBES])
        average, few, theirs = (
            torch.stack([networks.probs(each, x) for each in thetas]).mean(0)
            for thetas in (kept, kept[-1:], [own])
        )
        energies = torch.cat([likelihood(each) for each in kept])
        energy = energies.mean() - likelihood(own).mean()
        return {
            "energy": float(energy / energies.std()),
            "distance": _largest_distance(theirs, average),
            "floor": _largest_distance(few, average),
        }


def _largest_distance(probs: Tensor, others: Tensor) -> float:
    """Total variation between predictions (networks, n, classes), of the network where it is
    largest.
    """
    return 0.5 * float((probs - others).abs().sum(-1).mean(1).max())
