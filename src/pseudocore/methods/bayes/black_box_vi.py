r"""Black-box coreset VI: pseudo-points and weights by reverse KL, for any network.

Manousakas, Ritter, Karaletsos (2022), "Black-Box Coreset Variational Inference". The posterior on
the points, $\pi_{u,w}(\theta) \propto \exp(\sum_m w_m f(u_m, \theta))\,\pi_0(\theta)$, is
approximated by a Gaussian of independent parameters, $q = \mathcal N(\mu, \operatorname{diag}
\sigma^2)$, which follows the points: `num_inner_steps` steps of Adam up the bound $\mathbb E_q[\sum_m
w_m f(u_m, \theta) + \log\pi_0 - \log q]$ before every step of theirs. Its draws stand for draws from
$\pi_{u,w}$ by importance,

$$ \omega_s \propto \frac{\exp\big(\sum_m w_m f(u_m, \theta_s)\big)\, \pi_0(\theta_s)}{q(\theta_s)},
   \qquad P(\theta) = \frac N{|B|} \sum_{b \in B} f(x_b, \theta) - \sum_m w_m f(u_m, \theta) , $$

$$ \nabla_{u, w} D_{KL}[\pi_{u,w} \| \pi_x] \approx -\sum_s \omega_s \big(P(\theta_s) - \bar P\big)
   \nabla_{u, w} \textstyle\sum_m w_m f(u_m, \theta_s), \qquad \bar P = \sum_s \omega_s P(\theta_s)
   . $$

Cost per step: `num_inner_steps` gradients in $\theta$ and one in the points, for `num_draws` draws,
and as many passes of the batch.

Deviations:
  D1. $q$ persists from step to step, and its dependence on the points is not differentiated: the
      gradient of the KL needs no more than draws.
  D2. Adam along a cosine, and weights are learned as logarithms.
  D3. Importance weights of a large network are those of a few draws; `importance = false` leaves
      them equal, and the bias of $q$ in.
"""

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
from pseudocore.objectives.initial import Initial, initial_inputs
from pseudocore.objectives.one_posterior import input_unit, refuse_augmentation
from pseudocore.runtime import autodiff
from pseudocore.training.optimisers import adam, cosine, start, tree_map

FIRST_LOG_SD = -3.0
"""Logarithm of the first standard deviations of q, in units of the prior."""


class BBVIPoints(NamedTuple):
    x: Tensor  # network inputs (M, ...)
    weight: Tensor  # logarithms (M,)


class MeanField(NamedTuple):
    """Independent Gaussians, in units of the prior."""

    mean: Tensor  # (P,)
    log_sd: Tensor  # (P,)


class BBVIState(NamedTuple):
    points: BBVIPoints
    y: Tensor  # labels (M,), or numbers (M, 1)
    moments: Any  # Adam's, BBVIPoints of Moments
    q: MeanField
    q_moments: Any  # Adam's, MeanField of Moments
    unit: Tensor  # () standard deviation of network inputs
    step: Tensor  # () steps taken


class BBVIInfo(NamedTuple):
    spread: Tensor
    """Variance of P(θ); about twice the KL when the posteriors are near."""
    ess: Tensor
    """Effective number of draws, as a share of them."""
    total_weight: Tensor
    """Sum of the weights."""


@methods.register(
    "black-box-vi",
    kind="bayes",
    paper="Manousakas et al. 2022, arXiv 2211.02377",
    targets="posterior",
    weights="yes",
)
@dataclass(frozen=True, kw_only=True)
class BlackBoxVI(Budget):
    """Pseudo-points and weights by reverse KL, from a variational posterior of any network."""

    tasks = BOTH
    assumes: ClassVar[str | None] = "hmc"
    learns_total_weight: ClassVar[bool] = True
    repeats_passes: ClassVar[bool] = True

    num_steps: Count = 2000
    """Outer steps."""
    batch_size: Annotated[int | None, Range(low=1)] = None
    """Real examples per step. Defaults to all of them."""
    weighting: Literal["learned", "mass", "ones"] = "learned"
    """Weight of a point. `learned`, from mass on. `mass`: the examples of its class over the points
    of its class. `ones`: 1.
    """
    image_lr: Positive = 0.01
    """Adam's step size on points, in standard deviations of the inputs; falls to 0 along a cosine."""
    weight_lr: Positive = 0.01
    """Adam's step size on logarithms of weights, where they are learned."""
    initial: Initial = "real"
    """Start from real points, from mixes of two of a class, or from noise."""
    num_draws: Annotated[int, Range(low=2)] = 32
    """Draws of the variational posterior."""
    importance: bool = True
    """Whether draws are weighted by importance."""
    num_inner_steps: Count = 5
    """Steps of the variational posterior before each step of the points."""
    inner_lr: Positive = 0.01
    """Adam's step size of the variational posterior, in units of the prior."""
    num_warmup: Whole = 200
    """Steps of the variational posterior before the first step of the points."""

    def init(self, problem: Problem, rng: Rng) -> BBVIState:
        refuse_augmentation(problem, "black-box-vi")
        x, y = initial_inputs(problem, self.counts(problem), self.initial, rng("points"))
        weight = problem.mass(y).to(x)
        weight = torch.ones_like(weight) if self.weighting == "ones" else weight
        points = BBVIPoints(x, weight.log())
        centre, sd = problem.prior_moments()
        theta = problem.model.init(rng("start"), device=problem.device, dtype=problem.dtype)
        q = MeanField((theta - centre) / sd, torch.full_like(theta, FIRST_LOG_SD))
        unit, zero = input_unit(problem, rng("unit")), x.new_zeros(())
        state = BBVIState(points, y, start(points), q, start(q), unit, zero)
        for number in range(self.num_warmup):
            state = self._followed(problem, state, rng("warmup", number))
        return state

    def step(self, problem: Problem, state: BBVIState, rng: Rng) -> tuple[BBVIState, BBVIInfo]:
        decay, num = cosine(state.step, self.num_steps), problem.num_train
        for number in range(self.num_inner_steps):
            state = self._followed(problem, state, rng("inner", number))
        q, noise = state.q, self._noise(state.q, rng("draws"))
        z = q.mean + q.log_sd.exp() * noise
        size = num if self.batch_size is None else min(self.batch_size, num)
        batch = rng("batch").permutation(num, device=problem.device)[:size]
        centre, sd = problem.prior_moments()
        thetas = centre + sd * z
        with torch.no_grad():
            own = self._likelihood(problem, thetas, state.points, state.y)
            data = problem.log_likelihood(thetas, *problem.batch(batch)).sum(1) * (num / size)
        ratio = own - 0.5 * z.square().sum(1) + 0.5 * noise.square().sum(1)
        share = (ratio if self.importance else torch.zeros_like(ratio)).softmax(0)
        slopes, spread = gradient(
            lambda points: self._likelihood(problem, thetas, points, state.y),
            state.points,
            data - own,
            share,
        )
        weight_lr = self.weight_lr if self.weighting == "learned" else 0.0
        rates = [decay * self.image_lr * state.unit, decay * weight_lr]
        slopes = tree_map(lambda slope: slope / num, slopes)
        changes, moments = adam(slopes, state.moments, rates)
        points = tree_map(torch.sub, state.points, changes)
        ess = 1 / (share.square().sum() * self.num_draws)
        info = BBVIInfo(spread, ess, points.weight.exp().sum())
        return state._replace(points=points, moments=moments, step=state.step + 1), info

    def coreset(self, problem: Problem, state: BBVIState) -> Coreset:
        x, y = problem.pixels(state.points.x), problem.likelihood.raw_targets(state.y)
        return Coreset(x.cpu(), y.cpu(), state.points.weight.exp().cpu())

    def _followed(self, problem: Problem, state: BBVIState, rng: Rng) -> BBVIState:
        """The state after one step of q up its bound."""
        noise, (centre, sd) = self._noise(state.q, rng), problem.prior_moments()

        def loss(mean: Tensor, log_sd: Tensor) -> Tensor:
            z = mean + log_sd.exp() * noise
            own = self._likelihood(problem, centre + sd * z, state.points, state.y)
            return -(own - 0.5 * z.square().sum(1)).mean() - log_sd.sum()

        slopes = MeanField(*autodiff.grad(loss, (0, 1), pure=False)(*state.q))
        changes, moments = adam(slopes, state.q_moments, self.inner_lr)
        return state._replace(q=tree_map(torch.sub, state.q, changes), q_moments=moments)

    def _noise(self, q: MeanField, rng: Rng) -> Tensor:
        like: Any = {"device": q.mean.device, "dtype": q.mean.dtype}
        return rng.normal(self.num_draws, len(q.mean), **like)

    def _likelihood(
        self, problem: Problem, thetas: Tensor, points: BBVIPoints, y: Tensor
    ) -> Tensor:
        return problem.log_likelihood(thetas, points.x, y) @ points.weight.exp()


def gradient(
    likelihood: Any, points: BBVIPoints, rest: Tensor, share: Tensor
) -> tuple[BBVIPoints, Tensor]:
    """The gradient of the KL in points and logarithms of weights, and the variance of P.

    `likelihood` gives the points' total log-likelihood under every draw, `rest` is P there, and
    `share` what every draw counts.
    """
    rest = rest - share @ rest
    spread = share @ rest.square()

    def divergence(*parts: Tensor) -> Tensor:
        value: Tensor = -(share * rest) @ likelihood(BBVIPoints(*parts))
        return value

    return BBVIPoints(*autodiff.grad(divergence, (0, 1), pure=False)(*points)), spread
