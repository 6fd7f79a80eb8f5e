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
Restricted Boltzmann Machines using Approximations to the Likelihood Gradient"): every step moves
them by one trajectory of Hamiltonian Monte Carlo on the points as they are, Metropolis test
included, and then the points by Adam. The chains walk in units of the prior, $\theta = c + \sigma
z$, at temperature 1.

| symbol | here | | symbol | here |
|---|---|---|---|---|
| $u$, $w$ | `points` | | draws from $\pi_x$ a step | `num_positive` |
| $\pi_0$ | `Problem.prior` | | draws from $\pi_{u,w}$ | `num_chains` |

Cost per step: `num_leapfrog` + 1 gradients in θ for every chain, and one gradient in the points for
every chain and positive draw.

Deviations:
  D1. Adam along a cosine. Step sizes of trajectories adapt to `target_accept` at a rate that falls
      along the same cosine, so that at the end the chains leave their posterior invariant.
  D2. Weights are learned as logarithms and labels as logits: they stay positive and distributions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.budget import Budget, mass
from pseudocore.core.config import Count, NonNegative, Positive, Range, Whole
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.inference.hmc import leapfrog
from pseudocore.objectives.initial import Initial, initial_inputs
from pseudocore.runtime import autodiff
from pseudocore.training.optimisers import adam, cosine, start, tree_map

FIRST_STEP_SIZE = 0.02
"""Of a trajectory, in units of the prior."""
JITTER = 0.1
"""Every trajectory's step size varies by this share, which breaks resonance."""
ADAPTATION = 0.1
"""Rate at which the logarithm of a step size follows the acceptance."""
SMOOTHING = 0.1
"""Share of a label that is spread over all classes where learning it begins."""
NUM_FRESH, NUM_PROBES = 40, 1000
"""Draws of every fresh chain and training inputs behind the lag."""


LogLikelihood = Callable[[Tensor], Tensor]
"""Thetas (draws, parameters) to the total log-likelihood of weighted points, (draws,)."""


class PCDPoints(NamedTuple):
    x: Tensor  # network inputs (M, ...)
    y: Tensor  # logits of the labels (M, classes), where they are learned
    weight: Tensor  # logarithms (M,)


class PCDChains(NamedTuple):
    z: Tensor  # parameters in units of the prior (chains, parameters)
    log_step: Tensor  # logarithms of leapfrog step sizes (chains,)


class PCDState(NamedTuple):
    points: PCDPoints
    labels: Tensor  # the class each point stands for (M,)
    moments: Any  # Adam's, PCDPoints of Moments
    chains: PCDChains
    unit: Tensor  # () standard deviation of network inputs
    step: Tensor  # () steps taken


class PCDInfo(NamedTuple):
    gap: Tensor
    """Log-likelihood of the points under the reference less that under the chains, in nats per
    training example; its gradient is that of the KL, and it tends to 0.
    """
    drift: Tensor
    """Mean change of the chains' log-density by this step; 0 for chains that have caught up."""
    accept: Tensor
    """Mean acceptance probability of the chains."""
    step_size: Tensor
    """Mean leapfrog step size, in units of the prior."""
    total_weight: Tensor
    """Sum of the weights."""


@methods.register("bpc-pcd", kind="bayes", paper="Kim et al. 2022, arXiv 2210.06205")
@dataclass(frozen=True, kw_only=True)
class BPCPersistentChains(Budget):
    """Pseudo-coreset by the exact forward KL, from persistent Hamiltonian chains."""

    assumes: ClassVar[str | None] = "hmc"
    needs_reference: ClassVar[bool] = True
    repeats_passes: ClassVar[bool] = True

    num_steps: Count = 3000
    """Outer steps."""
    weighting: Literal["mass", "ones", "learned"] = "mass"
    """Weight of a point: its class's examples divided by its class's points, so that weights sum to
    the size of the training set; or 1; or learned, from the former on.
    """
    image_lr: Positive = 0.01
    """Adam's step size on points, in standard deviations of the inputs; falls to 0 along a cosine.
    """
    weight_lr: Positive = 0.01
    """Adam's step size on logarithms of weights, where they are learned."""
    label_lr: NonNegative = 0.0
    """Adam's step size on the logits of soft labels; 0 keeps the labels hard."""
    initial: Initial = "real"
    """Start from real points, from mixes of two of a class, or from noise."""
    num_positive: Count = 16
    """Draws of the reference a step."""
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
        if problem.augment is not None:
            raise ConfigError(
                "bpc-pcd takes no augmentation; leave --augment out", code="no-augmentation"
            )
        x, labels = initial_inputs(problem, self.counts(problem), self.initial, rng("points"))
        one_hot = torch.eye(problem.num_classes, dtype=x.dtype, device=x.device)[labels]
        logits = ((1 - SMOOTHING) * one_hot + SMOOTHING / problem.num_classes).log()
        weight = mass(labels.cpu(), problem.data.class_counts).to(x)
        weight = torch.ones_like(weight) if self.weighting == "ones" else weight
        points = PCDPoints(x, logits, weight.log())
        chains = self._fresh(problem, self._likelihood(problem, points, labels), rng("chains"))
        probes = rng("unit").permutation(problem.num_train)[:NUM_PROBES]
        unit = problem.batch(probes)[0].std()
        return PCDState(points, labels, start(points), chains, unit, x.new_zeros(()))

    def step(self, problem: Problem, state: PCDState, rng: Rng) -> tuple[PCDState, PCDInfo]:
        decay = cosine(state.step, self.num_steps)
        likelihood = self._likelihood(problem, state.points, state.labels)
        chains, drift, accept = self._moved(
            problem, likelihood, state.chains, rng("chains"), ADAPTATION * decay
        )
        draws, num = _reference(problem), problem.num_train
        place = rng("positive").integers(len(draws), self.num_positive, device=problem.device)
        slopes, gap = gradient(  # Eq. (17)
            lambda thetas, points: self._likelihood(problem, points, state.labels)(thetas),
            state.points,
            draws.index_select(0, place),
            _thetas(problem, chains),
        )
        weight_lr = self.weight_lr if self.weighting == "learned" else 0.0
        rates = [decay * self.image_lr * state.unit, decay * self.label_lr, decay * weight_lr]
        changes, moments = adam(tree_map(lambda slope: slope / num, slopes), state.moments, rates)
        points = tree_map(torch.sub, state.points, changes)
        total_weight, step_size = points.weight.exp().sum(), chains.log_step.exp().mean()
        info = PCDInfo(gap / num, drift.mean(), accept.mean(), step_size, total_weight)
        return PCDState(points, state.labels, moments, chains, state.unit, state.step + 1), info

    def coreset(self, problem: Problem, state: PCDState) -> Coreset:
        x, y, weight = self._decoded(state.points, state.labels)
        coreset = Coreset(problem.pixels(x).cpu(), y.cpu(), weight.cpu())
        return coreset.with_provenance(lag=self._lag(problem, state))

    def _decoded(self, points: PCDPoints, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Network inputs, labels or class probabilities, and weights."""
        y = points.y.softmax(1) if self.label_lr > 0 else labels
        return points.x, y, points.weight.exp()

    def _likelihood(self, problem: Problem, points: PCDPoints, labels: Tensor) -> LogLikelihood:
        x, y, weight = self._decoded(points, labels)
        return lambda thetas: problem.log_likelihood(thetas, x, y) @ weight

    def _fresh(self, problem: Problem, likelihood: LogLikelihood, rng: Rng) -> PCDChains:
        """Chains from the network's own start, warmed up."""
        options: Any = {"device": problem.device, "dtype": problem.dtype}
        centre, sd = problem.prior_moments()
        z = (problem.model.init(rng("start"), num=self.num_chains, **options) - centre) / sd
        chains = PCDChains(z, z.new_full((self.num_chains,), math.log(FIRST_STEP_SIZE)))
        for number in range(self.num_warmup):
            stream = rng("warmup", number)
            chains, *_ = self._moved(problem, likelihood, chains, stream, ADAPTATION)
        return chains

    def _moved(
        self,
        problem: Problem,
        likelihood: LogLikelihood,
        chains: PCDChains,
        rng: Rng,
        rate: Tensor | float,
    ) -> tuple[PCDChains, Tensor, Tensor]:
        centre, sd = problem.prior_moments()
        return move(
            lambda z: likelihood(centre + sd * z) - 0.5 * z.square().sum(1),
            chains,
            rng,
            num_leapfrog=self.num_leapfrog,
            target_accept=self.target_accept,
            rate=rate,
        )

    def _lag(self, problem: Problem, state: PCDState) -> dict[str, float]:
        """How far the persistent chains are from fresh ones on the points as they ended.

        `energy` is the mean log-likelihood of the points under the fresh ones less that under the
        persistent ones, in standard deviations of the former; `distance` the total variation
        between their averaged predictions for training inputs, and `floor` that between as many
        fresh draws and all.
        """
        rng = Rng(0)("lag")
        likelihood = self._likelihood(problem, state.points, state.labels)
        chains, kept = self._fresh(problem, likelihood, rng("fresh")), []
        for number in range(NUM_FRESH):
            chains, *_ = self._moved(problem, likelihood, chains, rng("kept", number), 0.0)
            kept.append(_thetas(problem, chains))
        x, _ = problem.batch(rng("probes").permutation(problem.num_train)[:NUM_PROBES])
        average, few, own = (
            torch.stack([problem.logits(each, x).softmax(-1).mean(0) for each in thetas]).mean(0)
            for thetas in (kept, kept[-1:], [_thetas(problem, state.chains)])
        )
        energies = torch.cat([likelihood(each) for each in kept])
        energy = energies.mean() - likelihood(_thetas(problem, state.chains)).mean()
        return {
            "energy": float(energy / energies.std()),
            "distance": 0.5 * float((own - average).abs().sum(1).mean()),
            "floor": 0.5 * float((few - average).abs().sum(1).mean()),
        }


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
    chains: PCDChains,
    rng: Rng,
    *,
    num_leapfrog: int,
    target_accept: float = 0.8,
    rate: Tensor | float = 0.0,
) -> tuple[PCDChains, Tensor, Tensor]:
    """One trajectory of every chain with its Metropolis test.

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
    jitter = 1 + JITTER * (2 * rng("jitter").uniform(len(z), **like) - 1)
    slope, before = uphill(z)
    end, after, _, value = leapfrog(
        uphill, z, momentum, slope, chains.log_step.exp() * jitter, num_leapfrog
    )
    gain = value - before - 0.5 * (after.square().sum(1) - momentum.square().sum(1))
    accept = gain.exp().clamp(max=1).nan_to_num(0.0)
    taken = rng("accept").uniform(len(z), **like) < accept
    end = torch.where(taken.unsqueeze(1), end, z)
    drift = torch.where(taken, value - before, 0.0)
    return PCDChains(end, chains.log_step + rate * (accept - target_accept)), drift, accept


def _thetas(problem: Problem, chains: PCDChains) -> Tensor:
    centre, sd = problem.prior_moments()
    return centre + sd * chains.z


def _reference(problem: Problem) -> Tensor:
    """Draws from the posterior on the data (draws, parameters)."""
    if problem.reference is None:
        raise ConfigError(
            "bpc-pcd learns from draws of the full-data posterior; the problem has no reference",
            code="needs-reference",
        )
    return problem.reference.thetas
