r"""PSVI: pseudo-points and weights whose posterior is nearest to the full one in reverse KL, for
small models.

Manousakas, Xu, Mascolo, Campbell (2020), "Bayesian Pseudocoresets", Algorithm 1; Eq. (4) of Kim et
al. (2022), with weights.

With $P(\theta) = \sum_n f(x_n, \theta) - \sum_m w_m f(u_m, \theta)$, the log-likelihood of the data
minus that of the points,

$$ \nabla_{u_m} D_{KL}[\pi_{u,w} \| \pi_x]
   = -w_m \operatorname{Cov}_{\pi_{u,w}}\left[\nabla_u f(u_m, \theta),\; P(\theta)\right], \qquad
   \nabla_{w_m} = -\operatorname{Cov}_{\pi_{u,w}}\left[f(u_m, \theta),\; P(\theta)\right],
   \tag{4} $$

and weights that a step would make negative become 0. Both are the gradient of one number,
$-\operatorname{Cov}[\sum_m w_m f(u_m, \theta), P(\theta)]$, in which the draws and P are held
fixed. $\pi_{u,w}$ is exact for Gaussian likelihoods and Laplace's approximation for others
(`objectives/small_models.py`). The covariance is over draws, or from moments at the mean:

$$ \operatorname{Cov}[F, P] = \nabla F^\top\Sigma\,(\nabla P + b) + C, \qquad b = \nabla_\theta C
   \text{ through } \nabla^2 F \text{ alone}, \qquad C = \tfrac12\operatorname{tr}(\nabla^2 F\,
   \Sigma\,\nabla^2 P\,\Sigma), $$

with the data's share of P expanded once, around their own mode, so that a step reads no data. b
is 0 for Gaussian likelihoods. For others it is what the moving mode does to the Hessian, and makes
this the exact gradient of the KL between Laplace's approximations.

| paper | here | | paper | here |
|---|---|---|---|---|
| $u, w$ | `Points` | | $S$ | `num_draws` |
| $M$ | `per_class` × classes | | $B$ | `batch_size` |
| $\gamma_t$ | `point_lr`, `weight_lr` | | $T$ | `num_steps` |

Cost per step: `Softmax.num_newton` Newton steps on the coreset, each a factor of p × p for p
parameters (at most `MAX_PARAMETERS`); over draws, a pass of the data under `num_draws` parameters
too. Moments begin with a Newton search on all data. Where p is large and M points × k classes are
fewer, the factors are Mk × Mk (`objectives/factored_softmax.py`), and p is at most `MAX_FACTORED`:
the curvature of the data is still p × p. Their mode is found by conjugate gradients
(`objectives/softmax_mode.py`).

Deviations:
  D1. Adam along a cosine in place of the papers' plain steps $\gamma_t \propto 1/t$, on points in
      coordinates in which the data are white, $u = v R^\top$ with $R R^\top =
      \operatorname{Cov}[x]$. The weights' step is relative to the mean weight $N/M$.
  D2. Covariances divide by S − 1 and not by S, so that the estimate is unbiased.
  D3. Points begin as class-balanced training points, weighing as their class, plus noise: along a
      direction that no point has, the gradient is 0.
  D4. Covariances come from moments by default; the papers draw. `docs/psvi.md` compares the two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.budget import Budget
from pseudocore.core.config import Count, NonNegative, Range
from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.likelihood import BOTH
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Examples
from pseudocore.objectives import factored_softmax, small_models, softmax_mode
from pseudocore.objectives.factored_softmax import FactoredGaussian
from pseudocore.objectives.initial import Initial, initial_inputs
from pseudocore.objectives.kl_gradient import Points, gradient
from pseudocore.objectives.one_posterior import refuse_augmentation
from pseudocore.objectives.small_models import (
    AffineRegression,
    Gaussian,
    Quadratic,
    SmallModel,
    Softmax,
    expand,
)
from pseudocore.selection.greedy import check_num
from pseudocore.training.optimisers import adam, cosine, start, tree_map

MAX_PARAMETERS = 3000
"""Limit on the model's parameters, whose covariance is factored at every step."""

FACTORED_FROM, MAX_FACTORED = 500, 8000
"""Parameters between which factors are of points × classes, where these are fewer; 8,000 are 512 MB
for the curvature of the data, and five times that while it is made.
"""

NEWTON_FROM_ZERO = 10
"""Newton steps to the first mode."""

BETAS = 0.9, 0.95
"""Adam's. The gradient falls by orders of magnitude within a hundred steps, over which the usual
.999 would keep dividing by its first size.
"""


class PSVIState(NamedTuple):
    points: Points
    mode: Tensor  # of the posterior on the points (p,), where the next search begins
    moments: Any  # Adam's, a Points of Moments
    root: Tensor  # R of D1, (features, features)
    data: Quadratic  # the data's log-likelihood; empty where covariances are over draws
    step: Tensor  # () steps taken


class PSVIInfo(NamedTuple):
    spread: Tensor
    """Variance of P(θ) before the step; about twice the KL when the posteriors are near."""
    total_weight: Tensor
    """Sum of the weights."""
    num_active: Tensor
    """Number of points whose weight is not 0."""


@methods.register(
    "psvi",
    kind="bayes",
    paper="Manousakas et al. 2020; Kim et al. 2022, arXiv 2210.06205",
    targets="posterior",
    weights="yes",
)
@dataclass(frozen=True, kw_only=True)
class PSVI(Budget):
    """Pseudo-points and weights by reverse KL, for logistic and linear regression."""

    tasks = BOTH
    assumes: ClassVar[str | None] = "hmc"
    learns_total_weight: ClassVar[bool] = True

    num_steps: Count = 500
    """Outer steps."""
    batch_size: Annotated[int | None, Range(low=1)] = None
    """Real examples per step, where covariances are over draws; defaults to all of them."""
    covariance: Literal["draws", "moments"] = "moments"
    """Covariances over posterior draws, or from moments (exact between Laplace approximations)."""
    num_draws: Annotated[int, Range(low=2)] = 100
    """Draws behind a covariance, where it is over draws."""
    point_lr: NonNegative = 0.03
    """Adam's step size on points, in sd of the data; falls to 0 along a cosine; 0 keeps them."""
    weight_lr: NonNegative = 0.03
    """Adam's step size on the weights, as a share of their mean; 0 keeps them."""
    initial: Initial = "real"
    """Start from real points, from mixes of two of a class, or from noise."""
    jitter: NonNegative = 0.5
    """Noise added to initial points that are learned, in standard deviations of the data."""

    def init(self, problem: Problem, rng: Rng) -> PSVIState:
        model = self._model(problem)
        x, y = initial_inputs(problem, self.counts(problem), self.initial, rng)
        weight = problem.mass(y).to(x)
        every = Examples(*problem.batch(torch.arange(problem.num_train)))
        return _begin(self, model, every, Points(x, y, weight), rng("jitter"))

    def step(self, problem: Problem, state: PSVIState, rng: Rng) -> tuple[PSVIState, PSVIInfo]:
        return _advance(self, self._model(problem), problem.batch, problem.num_train, state, rng)

    def coreset(self, problem: Problem, state: PSVIState) -> Coreset:
        x, y, weight = state.points
        y = problem.likelihood.raw_targets(y)
        return Coreset(problem.pixels(x).cpu(), y.cpu(), weight.cpu())

    def diagnostics(self, problem: Problem, state: PSVIState) -> dict[str, Any]:
        """How far the mode on the points is from that of the data: in posterior standard deviations
        a parameter, and by length. Covariances over draws do not know the data's mode.
        """
        data, model = state.data, self._model(problem)
        if not len(data.at):
            return {}
        found = _posterior(self, model, _flat(state.points), state.mode, NEWTON_FROM_ZERO).mean
        apart = found - data.at
        within = apart @ data.curvature @ apart + apart @ apart / model.prior**2
        shift = float((within / len(apart)).sqrt())
        length = float(found.norm() / data.at.norm().clamp_min(torch.finfo(found.dtype).tiny))
        return {"mode_shift": shift, "mode_length": length}

    def _model(self, problem: Problem) -> SmallModel:
        return small_model(problem, self.covariance == "moments", sum(self.counts(problem)))


def condense(
    method: PSVI, model: SmallModel, x: Tensor, y: Tensor, num_points: int, *, seed: int = 0
) -> Coreset:
    """A coreset for any small model.

    Args:
        method: The settings; `per_class` is not used.
        model: The likelihood and prior.
        x: Inputs (n, d).
        y: Labels (n,), or real-valued targets (n, 1), which are learned with the points.
        num_points: Size of the coreset.
        seed: Seed of all draws.

    Returns:
        The coreset, in the units of x.
    """
    check_num(num_points, len(x))
    if len(y) != len(x):
        raise DataError(f"there are {len(x)} inputs but {len(y)} targets", code="sizes-differ")
    rng = Rng(seed)
    index = rng("init").permutation(len(x))[:num_points]
    weight = x.new_full((num_points,), len(x) / num_points)
    points = Points(x[index].clone(), y[index].clone(), weight)
    state = _begin(method, model, Examples(x, y), points, rng("jitter"))
    for number in range(method.num_steps):
        state, _ = _advance(
            method, model, lambda index: (x[index], y[index]), len(x), state, rng("step", number)
        )
    return Coreset(*state.points)


def _begin(method: PSVI, model: SmallModel, data: Examples, points: Points, rng: Rng) -> PSVIState:
    every = _flat(Points(*data, data.x.new_ones(len(data.x))))
    root = small_models.root(torch.cov(every.x.mT, correction=0).view(2 * every.x.shape[1:]))
    if method.point_lr > 0:  # D3
        noise = rng.normal(len(points.x), len(root), device=root.device, dtype=root.dtype)
        noise = method.jitter * noise @ root.mT
        points = points._replace(x=points.x + noise.view_as(points.x).to(points.x))

    q = _posterior(method, model, _flat(points), None, NEWTON_FROM_ZERO)
    within = q.omega if isinstance(q, FactoredGaussian) else q.covariance
    expansion = Quadratic(*root.new_empty(3, 0))
    is_bounded = bool(within.isfinite().all())
    if is_bounded and method.covariance == "moments":
        if isinstance(q, FactoredGaussian) and isinstance(model, Softmax):
            at = softmax_mode.mode(model, every.x, every.y)
        else:
            num = NEWTON_FROM_ZERO if model.num_newton > 1 else 1
            at = small_models.mode(model, *every, num_newton=num)
        expansion = expand(model, *every, at)
        is_bounded = bool(at.isfinite().all())
    if not is_bounded:  # in float64: the prior alone bounds some directions
        raise ConfigError(
            f"psvi cannot invert the curvature of its initial posterior with prior_scale = "
            f"{model.prior:g} and jitter = {method.jitter:g}; smaller values would work",
            code="posterior-not-invertible",
            prior_scale=model.prior,
            jitter=method.jitter,
        )
    x, y, weight = points
    moments = start(Points(x.flatten(1), y if y.is_floating_point() else weight, weight))
    return PSVIState(points, q.mean, moments, root, expansion, weight.new_zeros(()))


def _advance(
    method: PSVI,
    model: SmallModel,
    batch: Callable[[Tensor], tuple[Tensor, Tensor]],
    num: int,
    state: PSVIState,
    rng: Rng,
) -> tuple[PSVIState, PSVIInfo]:
    """One step; `batch` gives inputs and targets of some of the `num` real examples."""
    points = state.points
    q, slopes, spread = _slopes(method, model, batch, num, state, rng)
    decay = cosine(state.step, method.num_steps)
    rates = (method.point_lr, method.point_lr, method.weight_lr * num / len(points.x))
    slopes = tree_map(lambda slope, moment: slope.to(moment.first), slopes, state.moments)
    changes, moments = adam(slopes, state.moments, [decay * rate for rate in rates], betas=BETAS)
    x, y, weight = changes
    x = points.x - (x @ state.root.mT.to(x)).view_as(points.x)
    y = points.y - y if points.y.is_floating_point() else points.y
    new = Points(x, y, (points.weight - weight).clamp_min(0))
    info = PSVIInfo(spread, new.weight.sum(), (new.weight > 0).to(new.weight).sum())
    return PSVIState(new, q.mean, moments, state.root, state.data, state.step + 1), info


def _slopes(
    method: PSVI,
    model: SmallModel,
    batch: Callable[[Tensor], tuple[Tensor, Tensor]],
    num: int,
    state: PSVIState,
    rng: Rng,
) -> tuple[Gaussian | FactoredGaussian, Points, Tensor]:
    """The posterior on the points, the gradient in the coordinates of D1, the variance of P."""
    flat = _flat(state.points)
    q = _posterior(method, model, flat, state.mode, model.num_newton)
    data: Examples | Quadratic = state.data
    scale, draws = 1.0, None
    if isinstance(q, Gaussian) and method.covariance == "draws":
        size, device = method.batch_size, flat.x.device
        index = torch.arange(num, device=device)
        if size is not None:
            index = rng("batch").integers(num, size, device=device)
        data, scale = Examples(*_flat(Points(*batch(index), index))[:2]), num / len(index)
        draws = small_models.draw(q, method.num_draws, rng("draws"))
    slopes, spread = gradient(model, flat, data, scale, q, draws)
    return q, slopes._replace(x=slopes.x @ state.root), spread  # D1


def _posterior(
    method: PSVI, model: SmallModel, points: Points, start: Tensor | None, num_newton: int
) -> Gaussian | FactoredGaussian:
    """Factored where that is smaller, and worth it."""
    num = model.num_parameters(points.x.shape[1])
    num_newton = num_newton if model.num_newton > 1 else 1
    if (
        method.covariance == "moments"
        and isinstance(model, Softmax)
        and num >= FACTORED_FROM
        and len(points.x) * model.num_classes < num
    ):
        return factored_softmax.posterior(model, *points, start=start, num_newton=num_newton)
    return small_models.posterior(model, *points, start=start, num_newton=num_newton)


def _flat(points: Points) -> Points:
    """In float64 and with vectors as inputs, for the algebra of posteriors."""
    y = points.y.double() if points.y.is_floating_point() else points.y
    return Points(points.x.flatten(1).double(), y, points.weight.double())


def small_model(problem: Problem, moments: bool, num_points: int) -> SmallModel:
    """Logistic or linear regression on the network inputs with the problem's prior and noise."""
    name, num = problem.model.describe().get("name"), problem.model.num_parameters
    is_factored = moments and problem.task == "classification"
    is_factored &= num_points * problem.num_classes < num
    if name != "linear" or num > (MAX_FACTORED if is_factored else MAX_PARAMETERS):
        raise ConfigError(
            "psvi needs --model linear, logistic or linear regression, with at most"
            f" {MAX_PARAMETERS:,} parameters, or {MAX_FACTORED:,} with covariance = 'moments' and"
            f" fewer points × classes than parameters; the network is {name} with {num:,}",
            code="model-not-supported",
            model=name,
            num_parameters=num,
        )
    refuse_augmentation(problem, "psvi")
    # One scale for all: the fan-in prior of a single layer is isotropic.
    prior = float(problem.prior_moments()[1][0])
    if problem.task == "regression":
        return AffineRegression(noise=problem.gaussian.relative_noise, prior=prior)
    return Softmax(num_classes=problem.num_classes, prior=prior)
