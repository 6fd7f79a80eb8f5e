r"""PSVI: pseudo-points and weights whose posterior is nearest to the full one in reverse KL, for small models.

Manousakas, Xu, Mascolo, Campbell (2020), "Bayesian Pseudocoresets", Algorithm 1; Eq. (4) of Kim et al. (2022), with weights.

With $P(\theta) = \sum_n f(x_n, \theta) - \sum_m w_m f(u_m, \theta)$, what the points leave unsaid of the data's log-likelihood,

$$ \nabla_{u_m} D_{KL}[\pi_{u,w} \| \pi_x] = -w_m \operatorname{Cov}_{\pi_{u,w}}\left[\nabla_u f(u_m, \theta),\; P(\theta)\right], \qquad
   \nabla_{w_m} = -\operatorname{Cov}_{\pi_{u,w}}\left[f(u_m, \theta),\; P(\theta)\right], \tag{4} $$

and weights that a step would make negative become 0. Both are the gradient of one number,
$-\operatorname{Cov}[\sum_m w_m f(u_m, \theta), P(\theta)]$, in which the draws and P are held fixed. $\pi_{u,w}$ is exact for
Gaussian likelihoods and Laplace's approximation for softmax regression (`parts/posterior.py`).
The covariance is taken over draws, or from moments: with slope and Hessian at the mean,

$$ \operatorname{Cov}[F, P] = \nabla F^\top\Sigma\nabla P + \tfrac12\operatorname{tr}(\nabla^2 F\,\Sigma\,\nabla^2 P\,\Sigma), $$

which is exact for Gaussian likelihoods and of second order for others.

| paper | here | | paper | here |
|---|---|---|---|---|
| $u, w$ | `Points` | | $S$ | `num_draws` |
| $M$ | `per_class` × classes | | $B$ | `batch_size` |
| $\gamma_t$ | `point_lr`, `weight_lr` | | $T$ | `num_steps` |

Cost per step: one pass of the data under `num_draws` parameters (draws) or one curvature (moments), and `Softmax.num_newton` Newton
steps on the coreset, each a factor of p × p for p parameters. `LARGEST` parameters are the limit.

Deviations:
  D1. Adam along a cosine in place of the papers' plain steps $\gamma_t \propto 1/t$; the weights' step is relative to the mean
      weight $N/M$.
  D2. Covariances divide by S − 1 and not by S, so that the estimate is unbiased.
  D3. Points begin as class-balanced training points that weigh as much as their class.
  D4. Covariances come from moments unless told; the papers draw. `docs/psvi.md` compares the two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from pseudocore.core.config import Count, NonNegative, Range
from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Examples
from pseudocore.parts.adam import adam, cosine, start
from pseudocore.parts.initial import Initial, initial_inputs
from pseudocore.parts.posterior import Gaussian, SmallModel, Softmax, draw, log_likelihood, posterior

__all__ = ["PSVI", "Points", "condense", "gradient"]

LARGEST = 3000
"""Parameters of the largest model: their covariance is factored at every step."""

NEWTON_FROM_ZERO = 10
"""Newton steps to the first mode."""


class Points(NamedTuple):
    x: Tensor  # model inputs (M, ...)
    y: Tensor  # labels (M,), or targets (M, 1)
    weight: Tensor  # (M,)


class State(NamedTuple):
    points: Points
    mode: Tensor  # of the posterior on the points (p,), where the next search begins
    moments: Any  # a Points of Moments
    step: Tensor


class Info(NamedTuple):
    spread: Tensor
    """Variance of P(θ) before the step: 0 when both posteriors are one, about twice the KL when they are near."""
    total_weight: Tensor
    num_active: Tensor
    """Points whose weight is not 0."""


@methods.register("psvi", kind="bayes", paper="Manousakas et al. 2020; Kim et al. 2022, arXiv 2210.06205")
@dataclass(frozen=True, kw_only=True)
class PSVI:
    """Pseudo-points and weights by reverse KL, for logistic regression."""

    per_class: Count = 10
    """Pseudo-points per class."""
    num_steps: Count = 500
    """Steps."""
    batch_size: Annotated[int | None, Range(low=1)] = None
    """Real examples per step; unless told, all of them."""
    covariance: Literal["draws", "moments"] = "moments"
    """Covariances over draws of the posterior, or from its moments (exact for Gaussian models, second order for others)."""
    num_draws: Annotated[int, Range(low=2)] = 100
    """Draws behind a covariance, where it is over draws."""
    point_lr: NonNegative = 0.03
    """Adam's step size on the points, in units of network inputs; falls to 0 along a cosine. 0 learns the weights alone."""
    weight_lr: NonNegative = 0.03
    """Adam's step size on the weights, as a share of their mean; 0 keeps them."""
    initial: Initial = "real"
    """Start from real points or from noise."""

    def init(self, problem: Problem, rng: Rng) -> State:
        model = _softmax(problem)
        x, y = initial_inputs(problem, self.per_class, self.initial, rng)
        share = problem.data.class_counts.to(x) / self.per_class
        return _begin(model, Points(x, y, share[y]))

    def step(self, problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        num = problem.num_train
        index = torch.arange(num) if self.batch_size is None else rng("batch").integers(num, self.batch_size, device=problem.device)
        return _advance(self, _softmax(problem), Examples(*problem.batch(index)), num, state, rng)

    def coreset(self, problem: Problem, state: State) -> Coreset:
        x, y, weight = state.points
        return Coreset(problem.pixels(x).cpu(), y.cpu(), weight.cpu())


def condense(method: PSVI, model: SmallModel, x: Tensor, y: Tensor, num_points: int, *, seed: int = 0) -> Coreset:
    """A coreset of any small model: inputs (n, d) and targets, (n, 1) for regression; real-valued targets are learned with the points."""
    if not 1 <= num_points <= len(x):
        raise ConfigError(f"{num_points} points were asked for; between 1 and {len(x)}, the number of examples, would work")
    if len(y) != len(x):
        raise DataError(f"there are {len(x)} inputs but {len(y)} targets")
    rng = Rng(seed)
    index = rng("init").permutation(len(x))[:num_points]
    state = _begin(model, Points(x[index].clone(), y[index].clone(), x.new_full((num_points,), len(x) / num_points)))
    for number in range(method.num_steps):
        stream = rng("step", number)
        batch = slice(None) if method.batch_size is None else stream("batch").integers(len(x), method.batch_size)
        state, _ = _advance(method, model, Examples(x[batch], y[batch]), len(x), state, stream)
    return Coreset(*state.points)


def gradient(model: SmallModel, points: Points, data: Examples, scale: float, q: Gaussian, draws: Tensor | None) -> tuple[Points, Tensor]:
    """Eq. (4) in points, targets (0 for labels) and weights; and the variance of P.

    `scale` times the sum over `data` stands for the full data; `q` is the posterior on the points. Without `draws` (S, p) of it,
    covariances come from its moments.
    """
    covariance, spread = _from_moments(model, points, data, scale, q) if draws is None else _over_draws(model, points, data, scale, draws)

    def downhill(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return -covariance(Points(x, y, weight))

    if points.y.is_floating_point():
        return Points(*grad(downhill, argnums=(0, 1, 2))(*points)), spread
    x, weight = grad(downhill, argnums=(0, 2))(*points)
    return Points(x, torch.zeros_like(weight), weight), spread


Covariance = Callable[[Points], Tensor]
"""Cov[Σ w f(u, θ), P(θ)] as a function of the points, with P as it is."""


def _over_draws(model: SmallModel, points: Points, data: Examples, scale: float, draws: Tensor) -> tuple[Covariance, Tensor]:
    def total(points: Points) -> Tensor:
        return model.log_likelihood(draws, points.x, points.y) @ points.weight  # (S,)

    rest = scale * model.log_likelihood(draws, *data).sum(1) - total(points)
    rest = rest - rest.mean()
    num = len(draws) - 1  # D2; centring one of the two is enough
    return lambda points: total(points) @ rest / num, rest @ rest / num


def _from_moments(model: SmallModel, points: Points, data: Examples, scale: float, q: Gaussian) -> tuple[Covariance, Tensor]:
    def slope(points: Points) -> Tensor:
        result: Tensor = grad(lambda theta: log_likelihood(model, theta, *points))(q.mean)
        return result

    every = Points(*data, data.x.new_full((len(data.x),), scale))
    rest_slope = slope(every) - slope(points)
    rest_curvature = model.curvature(q.mean, *every) - model.curvature(q.mean, *points)
    left, right = q.covariance @ rest_slope, q.covariance @ rest_curvature @ q.covariance

    def with_rest(slope: Tensor, curvature: Tensor) -> Tensor:
        return slope @ left + 0.5 * (curvature * right).sum()

    return lambda points: with_rest(slope(points), model.curvature(q.mean, *points)), with_rest(rest_slope, rest_curvature)


def _begin(model: SmallModel, points: Points) -> State:
    q = posterior(model, *_flat(points), num_newton=NEWTON_FROM_ZERO if model.num_newton > 1 else 1)
    moments = Points(start(points.x), start(points.y if points.y.is_floating_point() else points.weight), start(points.weight))  # type: ignore[arg-type]
    return State(points, q.mean, moments, points.weight.new_zeros(()))


def _advance(method: PSVI, model: SmallModel, data: Examples, num: int, state: State, rng: Rng) -> tuple[State, Info]:
    points = state.points
    flat = _flat(points)
    q = posterior(model, *flat, start=state.mode, num_newton=model.num_newton)
    draws = draw(q, method.num_draws, rng("draws")) if method.covariance == "draws" else None
    real = Examples(data.x.flatten(1).double(), data.y.double() if data.y.is_floating_point() else data.y)
    slopes, spread = gradient(model, flat, real, num / len(real.x), q, draws)
    decay = cosine(state.step, method.num_steps)
    rates = Points(method.point_lr, method.point_lr, method.weight_lr * num / len(flat.x))  # type: ignore[arg-type]  # D1
    moved = [
        adam(slope.view_as(moment.first).to(moment.first), moment, decay * rate)
        for slope, moment, rate in zip(slopes, state.moments, rates, strict=True)
    ]
    (x, y, weight), moments = zip(*moved, strict=True)
    new = Points(
        points.x - x,
        points.y - y if points.y.is_floating_point() else points.y,
        (points.weight - weight).clamp_min(0),
    )
    info = Info(spread, new.weight.sum(), (new.weight > 0).to(new.weight).sum())
    return State(new, q.mean, Points(*moments), state.step + 1), info


def _flat(points: Points) -> Points:
    """In float64, inputs as vectors: what the algebra of posteriors works on."""
    y = points.y.double() if points.y.is_floating_point() else points.y
    return Points(points.x.flatten(1).double(), y, points.weight.double())


def _softmax(problem: Problem) -> Softmax:
    """Logistic regression on the network inputs with the problem's prior; whatever else the problem holds is refused."""
    network = problem.model.describe()
    if network.get("name") != "linear":
        raise ConfigError(
            f"psvi needs the posterior of a small model in closed form, but the network is {network.get('name')} "
            f"with {problem.model.num_parameters:,} parameters; --model linear, logistic regression, would work"
        )
    if problem.model.num_parameters > LARGEST:
        raise ConfigError(
            f"psvi factors the covariance of all parameters, at most {LARGEST:,}, but logistic regression on {problem.data.name!r} "
            f"has {problem.model.num_parameters:,}; fewer features or classes would work"
        )
    if problem.augment is not None:
        raise ConfigError("psvi matches the posterior of the data as they are, so it takes no augmentation; leave --augment out")
    return Softmax(num_classes=problem.num_classes, prior=problem.prior.scale)
