r"""PSVI: pseudo-points and weights whose posterior is nearest to the full one in reverse KL, for
small models.

Manousakas, Xu, Mascolo, Campbell (2020), "Bayesian Pseudocoresets", Algorithm 1; Eq. (4) of Kim et
al. (2022), with weights.

With $P(\theta) = \sum_n f(x_n, \theta) - \sum_m w_m f(u_m, \theta)$, what the points leave unsaid
of the data's log-likelihood,

$$ \nabla_{u_m} D_{KL}[\pi_{u,w} \| \pi_x] = -w_m \operatorname{Cov}_{\pi_{u,w}}\left[\nabla_u f(u_m, \theta),\; P(\theta)\right], \qquad
   \nabla_{w_m} = -\operatorname{Cov}_{\pi_{u,w}}\left[f(u_m, \theta),\; P(\theta)\right], \tag{4} $$

and weights that a step would make negative become 0. Both are the gradient of one number,
$-\operatorname{Cov}[\sum_m w_m f(u_m, \theta), P(\theta)]$, in which the draws and P are held
fixed. $\pi_{u,w}$ is exact for Gaussian likelihoods and Laplace's approximation for others
(`objectives/small_models.py`). The covariance is over draws, or from moments at the mean:

$$ \operatorname{Cov}[F, P] = \nabla F^\top\Sigma\,(\nabla P + b) + C, \qquad b = \nabla_\theta C \text{ through } \nabla^2 F \text{ alone},
   \qquad C = \tfrac12\operatorname{tr}(\nabla^2 F\,\Sigma\,\nabla^2 P\,\Sigma), $$

with the data's share of P expanded once, around their own mode, so that a step looks at no data. b
is 0 for Gaussian likelihoods; for others it is what the moving mode does to the Hessian, and makes
this the exact gradient of the KL between Laplace's approximations.

| paper | here | | paper | here |
|---|---|---|---|---|
| $u, w$ | `Points` | | $S$ | `num_draws` |
| $M$ | `per_class` × classes | | $B$ | `batch_size` |
| $\gamma_t$ | `point_lr`, `weight_lr` | | $T$ | `num_steps` |

Cost per step: `Softmax.num_newton` Newton steps on the coreset, each a factor of p × p for p
parameters (at most `LARGEST`); over draws, a pass of the data under `num_draws` parameters too.
Moments begin with a Newton search on all data.

Deviations:
  D1. Adam along a cosine in place of the papers' plain steps $\gamma_t \propto 1/t$, on points in
      coordinates in which the data are white, $u = v R^\top$ with $R R^\top =
      \operatorname{Cov}[x]$; the weights' step is relative to the mean weight $N/M$.
  D2. Covariances divide by S − 1 and not by S, so that the estimate is unbiased.
  D3. Points begin as class-balanced training points, weighing as their class, plus noise: where no
      point goes, the gradient is 0.
  D4. Covariances come from moments unless told; the papers draw. `docs/psvi.md` compares the two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from pseudocore.core.config import Count, NonNegative, Range
from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Examples
from pseudocore.objectives.initial import Initial, initial_inputs
from pseudocore.objectives.small_models import (
    Gaussian,
    Quadratic,
    SmallModel,
    Softmax,
    draw,
    expand,
    posterior,
    root,
)
from pseudocore.training.optimisers import adam, cosine, start

LARGEST = 3000
"""Parameters of the largest model: their covariance is factored at every step."""

NEWTON_FROM_ZERO = 10
"""Newton steps to the first mode."""

BETAS = 0.9, 0.95
"""Adam's. The gradient falls by orders of magnitude within a hundred steps; the usual .999 would go
on dividing by what it was.
"""


class Points(NamedTuple):
    x: Tensor  # model inputs (M, ...)
    y: Tensor  # labels (M,), or targets (M, 1)
    weight: Tensor  # (M,)


class State(NamedTuple):
    points: Points
    mode: Tensor  # of the posterior on the points (p,), where the next search begins
    moments: Any  # a Points of Moments
    root: Tensor  # R of D1, (features, features)
    data: Quadratic  # the data's log-likelihood; empty where covariances are over draws
    step: Tensor


class Info(NamedTuple):
    spread: Tensor
    """Variance of P(θ) before the step: 0 when both posteriors are one, about twice the KL when
    they are near.
    """
    total_weight: Tensor
    num_active: Tensor
    """Points whose weight is not 0."""


@methods.register(
    "psvi", kind="bayes", paper="Manousakas et al. 2020; Kim et al. 2022, arXiv 2210.06205"
)
@dataclass(frozen=True, kw_only=True)
class PSVI:
    """Pseudo-points and weights by reverse KL, for logistic regression."""

    uses_prior: ClassVar[bool] = True

    per_class: Count = 10
    """Pseudo-points per class."""
    num_steps: Count = 500
    """Steps."""
    batch_size: Annotated[int | None, Range(low=1)] = None
    """Real examples per step, where covariances are over draws; unless told, all of them."""
    covariance: Literal["draws", "moments"] = "moments"
    """Covariances over draws of the posterior, or from its moments (the exact gradient between
    Laplace's approximations).
    """
    num_draws: Annotated[int, Range(low=2)] = 100
    """Draws behind a covariance, where it is over draws."""
    point_lr: NonNegative = 0.03
    """Adam's step size on the points, in standard deviations of the data; falls to 0 along a
    cosine. 0 learns the weights alone.
    """
    weight_lr: NonNegative = 0.03
    """Adam's step size on the weights, as a share of their mean; 0 keeps them."""
    initial: Initial = "real"
    """Start from real points, from mixes of two of a class, or from noise."""
    jitter: NonNegative = 0.5
    """Noise added to a start that will move, in standard deviations of the data."""

    def init(self, problem: Problem, rng: Rng) -> State:
        model, (x, y) = (
            _softmax(problem),
            initial_inputs(problem, self.per_class, self.initial, rng),
        )
        share = problem.data.class_counts.to(x) / self.per_class
        every = Examples(*problem.batch(torch.arange(problem.num_train)))
        return _begin(self, model, every, Points(x, y, share[y]), rng("jitter"))

    def step(self, problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        return _advance(self, _softmax(problem), problem.batch, problem.num_train, state, rng)

    def coreset(self, problem: Problem, state: State) -> Coreset:
        x, y, weight = state.points
        return Coreset(problem.pixels(x).cpu(), y.cpu(), weight.cpu())


def condense(
    method: PSVI, model: SmallModel, x: Tensor, y: Tensor, num_points: int, *, seed: int = 0
) -> Coreset:
    """A coreset of any small model: inputs (n, d) and targets, (n, 1) for regression; real-valued
    targets are learned with the points.
    """
    if not 1 <= num_points <= len(x):
        raise ConfigError(
            f"{num_points} points were asked for; between 1 and {len(x)}, the number of examples, would work"
        )
    if len(y) != len(x):
        raise DataError(f"there are {len(x)} inputs but {len(y)} targets")
    rng = Rng(seed)
    index = rng("init").permutation(len(x))[:num_points]
    points = Points(
        x[index].clone(), y[index].clone(), x.new_full((num_points,), len(x) / num_points)
    )
    state = _begin(method, model, Examples(x, y), points, rng("jitter"))
    for number in range(method.num_steps):
        state, _ = _advance(
            method, model, lambda index: (x[index], y[index]), len(x), state, rng("step", number)
        )
    return Coreset(*state.points)


def gradient(
    model: SmallModel,
    points: Points,
    data: Examples | Quadratic,
    scale: float,
    q: Gaussian,
    draws: Tensor | None,
) -> tuple[Points, Tensor]:
    """Eq. (4) in points, targets (0 for labels) and weights; and the variance of P.

    `scale` times the sum over `data` is the full data's, if not given by an expansion; `draws` (S,
    p), or moments, are those of `q`.
    """
    if draws is None or isinstance(data, Quadratic):
        whole = (
            data
            if isinstance(data, Quadratic)
            else expand(model, *data, data.x.new_full((len(data.x),), scale), q.mean)
        )
        covariance, spread = _from_moments(model, points, whole, q)
    else:
        covariance, spread = _over_draws(model, points, data, scale, draws)

    def downhill(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return -covariance(Points(x, y, weight))

    if points.y.is_floating_point():
        return Points(*grad(downhill, argnums=(0, 1, 2))(*points)), spread
    x, weight = grad(downhill, argnums=(0, 2))(*points)
    return Points(x, torch.zeros_like(weight), weight), spread


Covariance = Callable[[Points], Tensor]
"""Cov[Σ w f(u, θ), P(θ)] as a function of the points, with P as it is."""
Look = Callable[[Tensor], tuple[Tensor, Tensor]]  # indices to inputs and targets of real examples


def _over_draws(
    model: SmallModel, points: Points, data: Examples, scale: float, draws: Tensor
) -> tuple[Covariance, Tensor]:
    def total(points: Points) -> Tensor:
        return model.log_likelihood(draws, points.x, points.y) @ points.weight  # (S,)

    rest = scale * model.log_likelihood(draws, *data).sum(1) - total(points)
    rest, num = rest - rest.mean(), len(draws) - 1  # D2; centring one of the two is enough
    return lambda points: total(points) @ rest / num, rest @ rest / num


def _from_moments(
    model: SmallModel, points: Points, whole: Quadratic, q: Gaussian
) -> tuple[Covariance, Tensor]:
    said = expand(model, *points, q.mean)
    rest_slope, rest_curvature = (
        whole.slope_at(q.mean) - said.slope,
        whole.curvature - said.curvature,
    )
    right = q.covariance @ rest_curvature @ q.covariance
    bend: Tensor = grad(lambda theta: 0.5 * (model.curvature(theta, *points) * right).sum())(q.mean)

    def covariance(points: Points) -> Tensor:
        _, slope, curvature = expand(model, *points, q.mean)
        return slope @ q.covariance @ (rest_slope + bend) + 0.5 * (curvature * right).sum()

    return covariance, rest_slope @ q.covariance @ rest_slope + 0.5 * (rest_curvature * right).sum()


def _begin(method: PSVI, model: SmallModel, data: Examples, points: Points, rng: Rng) -> State:
    every = _flat(Points(*data, data.x.new_ones(len(data.x))))
    scale = root(torch.cov(every.x.mT, correction=0).view(2 * every.x.shape[1:]))
    if method.point_lr > 0:  # D3
        noise = (
            method.jitter
            * rng.normal(len(points.x), len(scale), device=scale.device, dtype=scale.dtype)
            @ scale.mT
        )
        points = points._replace(x=points.x + noise.view_as(points.x).to(points.x))
    num_newton = NEWTON_FROM_ZERO if model.num_newton > 1 else 1
    q = posterior(model, *_flat(points), num_newton=num_newton)
    _refuse_if_flat(q, method, model)
    whole = Quadratic(*scale.new_empty(3, 0))
    if method.covariance == "moments":
        of_data = posterior(model, *every, num_newton=num_newton)
        _refuse_if_flat(of_data, method, model)
        whole = expand(model, *every, of_data.mean)
    moving = Points(
        points.x.flatten(1),
        points.y if points.y.is_floating_point() else points.weight,
        points.weight,
    )
    return State(
        points,
        q.mean,
        Points(*map(start, moving)),  # type: ignore[arg-type]
        scale,
        whole,
        points.weight.new_zeros(()),
    )


def _refuse_if_flat(q: Gaussian, method: PSVI, model: SmallModel) -> None:
    """Refuse a beginning whose curvature cannot be inverted in float64: the prior is all that
    bounds some directions.
    """
    if not q.covariance.isfinite().all():
        raise ConfigError(
            f"psvi cannot invert the curvature of the posterior it begins with, under a prior of scale {model.prior:g} and with "
            f"jitter = {method.jitter:g}; a smaller prior_scale or jitter would work"
        )


def _advance(
    method: PSVI, model: SmallModel, look: Look, num: int, state: State, rng: Rng
) -> tuple[State, Info]:
    points, flat = state.points, _flat(state.points)
    q = posterior(model, *flat, start=state.mode, num_newton=model.num_newton)
    if method.covariance == "draws":
        size, where = method.batch_size, flat.x.device
        index = (
            torch.arange(num, device=where)
            if size is None
            else rng("batch").integers(num, size, device=where)
        )
        data = Examples(*_flat(Points(*look(index), index))[:2])
        slopes, spread = gradient(
            model, flat, data, num / len(index), q, draw(q, method.num_draws, rng("draws"))
        )
    else:
        slopes, spread = gradient(model, flat, state.data, 1.0, q, None)
    slopes = slopes._replace(x=slopes.x @ state.root)  # D1
    decay = cosine(state.step, method.num_steps)
    rates = Points(method.point_lr, method.point_lr, method.weight_lr * num / len(flat.x))  # type: ignore[arg-type]
    triples = zip(slopes, state.moments, rates, strict=True)
    moved = [
        adam(slope.to(moment.first), moment, decay * rate, betas=BETAS)
        for slope, moment, rate in triples
    ]
    (x, y, weight), moments = zip(*moved, strict=True)
    x = points.x - (x @ state.root.mT.to(x)).view_as(points.x)
    y = points.y - y if points.y.is_floating_point() else points.y
    new = Points(x, y, (points.weight - weight).clamp_min(0))
    later = State(new, q.mean, Points(*moments), state.root, state.data, state.step + 1)
    return later, Info(spread, new.weight.sum(), (new.weight > 0).to(new.weight).sum())


def _flat(points: Points) -> Points:
    """In float64, inputs as vectors: what the algebra of posteriors works on."""
    y = points.y.double() if points.y.is_floating_point() else points.y
    return Points(points.x.flatten(1).double(), y, points.weight.double())


def _softmax(problem: Problem) -> Softmax:
    """Logistic regression on the network inputs with the problem's prior; whatever else the problem
    holds is refused.
    """
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
        raise ConfigError(
            "psvi matches the posterior of the data as they are, so it takes no augmentation; leave --augment out"
        )
    return Softmax(num_classes=problem.num_classes, prior=problem.prior.scale)
