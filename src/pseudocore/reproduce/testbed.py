r"""Every divergence method on a problem whose answer is known: the Gaussian location model of Kim
et al. (2022), App. C.5.

Data $x_n \sim \mathcal N(\theta, \sigma^2 I)$ with prior $\theta \sim \mathcal N(0, \sigma_0^2 I)$.
Both posteriors are exact,

$$ \Sigma_u = \left(\sigma_0^{-2} I + \textstyle\sum_m w_m \sigma^{-2} I\right)^{-1}, \qquad
   \theta_u = \sigma^{-2} \Sigma_u \textstyle\sum_m w_m u_m, \tag{28, 29} $$

and so are reverse KL, forward KL and W₂² between them, whatever a method minimises. The methods'
own gradient estimators run here, noise and all. Only what they cannot know of a network is exact:
draws come from the two posteriors, and an expert is one.

| method | gradient in u | from |
|---|---|---|
| `bpc-rkl` | Eq. (4), over draws of $\pi_u$ | `bayes/bpc_rkl.py` |
| `bpc-w` | Eq. (15), by descent on u from a draw of the prior to $\theta_x$ | `bayes/bpc_w.py` |
| `bpc-fkl` | Eq. (20), over draws of both | `contrast.py` |
| `bpc-cd` | Tiwary et al. (2023), Eqs. (11, 12): Langevin from draws of $\pi_x$ | `contrast.py` |
| `psvi` | Eq. (4) in points and weights | `bayes/psvi.py` |

Points start as noise around the prior's mean, equally far from the data for every size; weights are
1, except for PSVI, which learns them from N/M. At weight 1 the covariance of M points is fixed, so
no method but PSVI can go below `floor`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pseudocore.core import config
from pseudocore.core.config import Count, Positive, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import did_you_mean
from pseudocore.core.rng import Rng
from pseudocore.core.types import Examples
from pseudocore.data.toys import GaussianLocation
from pseudocore.methods.bayes.bpc_rkl import reverse_kl
from pseudocore.methods.bayes.bpc_w import relative_distance
from pseudocore.objectives import kl_gradient, unroll
from pseudocore.objectives.contrast import contrast
from pseudocore.objectives.kl_gradient import Points
from pseudocore.objectives.small_models import Gaussian, Location, draw, kl, wasserstein
from pseudocore.training.optimisers import adam, cosine, start

SIZES = (5, 20, 40, 60, 80, 100)


@dataclass(frozen=True, kw_only=True)
class Bed:
    """The model, and how points are learned on it."""

    dim: Count = 10
    """Dimensions of the data."""
    num_points: Count = 100
    """Data points."""
    noise: Positive = 1.0
    """Standard deviation of the data around their mean."""
    prior: Positive = 10.0
    """Standard deviation of the prior on that mean."""
    num_steps: Count = 200
    """Steps of every method."""
    step_size: Positive = 0.6
    """Adam's step size on the points; falls to 0 along a cosine."""
    weight_step: Positive = 0.02
    """Adam's step size on the weights (psvi), as a share of their initial N/M; falls alike."""
    num_draws: Annotated[int, Range(low=2)] = 30
    """Draws behind an estimate."""
    num_inner_steps: Count = 3
    """Steps of gradient descent (bpc-w) or Langevin dynamics (bpc-cd) on the points."""

    def __post_init__(self) -> None:
        config.check(self)

    @property
    def world(self) -> GaussianLocation:
        return GaussianLocation(
            dim=self.dim, num_points=self.num_points, noise=self.noise, prior=self.prior
        )


class Curve(NamedTuple):
    """One method at one size: the true divergences along its steps."""

    method: str
    size: int
    steps: list[int]
    values: dict[str, list[float]]
    """reverse_kl, forward_kl and w2_squared, from before the first step to after the last."""


def run(
    bed: Bed,
    *,
    methods: Sequence[str] | None = None,
    sizes: Sequence[int] = SIZES,
    seed: int = 0,
    on_curve: Callable[[Curve], None] = lambda curve: None,
) -> list[Curve]:
    """Every method at every size on the same data."""
    names = list(METHODS) if methods is None else list(methods)
    for name in names:
        if name not in METHODS:
            raise ConfigError(
                f"the test bed has no {name!r}{did_you_mean(name, METHODS)} "
                f"(known: {', '.join(METHODS)})",
                code="unknown-method",
                name=name,
            )
    x, curves = bed.world.points(seed), []
    for name in names:
        for size in sizes:
            curves.append(learn(bed, name, x, size, Rng(seed)(name, size)))
            on_curve(curves[-1])
    return curves


def learn(bed: Bed, method: str, x: Tensor, size: int, rng: Rng, *, every: int = 5) -> Curve:
    """`size` points learned by one method on data x (n, dim), measured before the first step and
    after each `every`.
    """
    if size < 1:
        raise ConfigError(
            f"a coreset of {size} points was asked for; at least 1 is needed",
            code="no-points",
            size=size,
        )
    task, labels = _task(bed, x), torch.zeros(size, dtype=torch.int64)
    weight = x.new_full((size,), len(x) / size if method == "psvi" else 1.0)
    points = Points(rng("points").normal(size, bed.dim, dtype=x.dtype), labels, weight)
    x_state, weight_state = start(points.x), start(points.weight)
    curve = Curve(method, size, [0], {name: [value] for name, value in task.gap(points).items()})
    for number in range(bed.num_steps):
        slopes = METHODS[method](task, points, rng("step", number))
        decay = cosine(torch.tensor(number, dtype=x.dtype), bed.num_steps)
        x_change, x_state = adam(slopes.x, x_state, decay * bed.step_size, betas=BETAS)
        weight_step = decay * bed.weight_step * len(x) / size
        weight_change, weight_state = adam(slopes.weight, weight_state, weight_step, betas=BETAS)
        weight = (points.weight - weight_change).clamp_min(0)
        points = Points(points.x - x_change, labels, weight)
        if (number + 1) % every == 0 or number + 1 == bed.num_steps:
            curve.steps.append(number + 1)
            for name, value in task.gap(points).items():
                curve.values[name].append(value)
    return curve


def divergences(one: Gaussian, other: Gaussian) -> dict[str, float]:
    """Of a coreset's posterior `one` from the data's posterior `other`."""
    return {
        "reverse_kl": float(kl(one, other)),
        "forward_kl": float(kl(other, one)),
        "w2_squared": float(wasserstein(one, other)),
    }


def floor(bed: Bed, size: int) -> dict[str, float]:
    """The least divergences that `size` points of weight 1 can have: with equal means."""
    mean = torch.zeros(bed.dim, dtype=torch.float64)
    identity = torch.eye(bed.dim, dtype=torch.float64)
    one, other = (
        Gaussian(mean, identity / (bed.prior**-2 + num * bed.noise**-2))
        for num in (size, bed.num_points)
    )
    return divergences(one, other)


class _Task(NamedTuple):
    """What a method may use: the data, their posterior, the model."""

    bed: Bed
    world: GaussianLocation
    model: Location
    x: Tensor
    target: Gaussian

    def posterior(self, points: Points) -> Gaussian:
        return Gaussian(*self.world.posterior(points.x, points.weight))  # Eqs. (28, 29)

    def gap(self, points: Points) -> dict[str, float]:
        return divergences(self.posterior(points), self.target)

    def variance(self, points: Points) -> Tensor:
        """Of each parameter under the posterior on the points: 1 / curvature of their energy."""
        return 1 / (self.bed.prior**-2 + points.weight.sum() * self.bed.noise**-2)

    def likelihood(self, theta: Tensor, points: Tensor) -> Tensor:
        """f of each point, (M,) or (draws, M)."""
        of_all = self.model.log_likelihood(theta.reshape(-1, self.bed.dim), points, points)
        return of_all.view(*theta.shape[:-1], len(points))

    def energy(self, theta: Tensor, points: Tensor) -> Tensor:
        """Minus the log-posterior on the points, the mean over several thetas."""
        prior = 0.5 * theta.square().sum(-1) / self.bed.prior**2
        return (prior - self.likelihood(theta, points).sum(-1)).mean()


def _task(bed: Bed, x: Tensor) -> _Task:
    world, model = bed.world, Location(noise=bed.noise, prior=bed.prior)
    return _Task(bed, world, model, x, Gaussian(*world.posterior(x, x.new_ones(len(x)))))


def _reverse_kl(task: _Task, points: Points, rng: Rng) -> Points:
    draws = draw(task.posterior(points), task.bed.num_draws, rng("draws"))
    gradient, _ = reverse_kl(
        task.likelihood,
        lambda theta: task.likelihood(theta, task.x).sum(-1),
        points.x,
        lambda: [draws],
    )
    return _of_points(points, gradient)


def _wasserstein(task: _Task, points: Points, rng: Rng) -> Points:
    begin = task.bed.prior * rng("start").normal(task.bed.dim, dtype=points.x.dtype)
    pulled = unroll.differentiate(
        lambda thetas: relative_distance(thetas, [begin, task.target.mean]),
        task.energy,
        _unchanged,
        begin,
        points.x,
        0.9 * task.variance(points),  # leaves a tenth of the way to the mode at every step
        rng("inner"),
        num_steps=task.bed.num_inner_steps,
    )
    return _of_points(points, pulled.x)


def _forward_kl(task: _Task, points: Points, rng: Rng) -> Points:
    positive = draw(task.target, task.bed.num_draws, rng("positive"))
    negative = draw(task.posterior(points), task.bed.num_draws, rng("negative"))
    return _of_points(points, contrast(task.energy, points.x, [(positive, negative)])[0])


def _contrastive_divergence(task: _Task, points: Points, rng: Rng) -> Points:
    positive = draw(task.target, task.bed.num_draws, rng("positive"))
    step = 0.8 * float(task.variance(points))
    negative = unroll.descend(
        lambda theta, points: len(theta) * task.energy(theta, points),  # independent chains
        _unchanged,
        positive,
        points.x,
        rng("inner"),
        num_steps=task.bed.num_inner_steps,
        step_size=step / 2,
        noise=math.sqrt(step),
    )
    return _of_points(points, contrast(task.energy, points.x, [(positive, negative)])[0])


def _psvi(task: _Task, points: Points, rng: Rng) -> Points:
    q, data = task.posterior(points), Examples(task.x, task.x.new_zeros(len(task.x)).long())
    return kl_gradient.gradient(
        task.model, points, data, 1.0, q, draw(q, task.bed.num_draws, rng("draws"))
    )[0]


METHODS: Mapping[str, Callable[[_Task, Points, Rng], Points]] = {
    "bpc-rkl": _reverse_kl,
    "bpc-w": _wasserstein,
    "bpc-fkl": _forward_kl,
    "bpc-cd": _contrastive_divergence,
    "psvi": _psvi,
}
"""From the points to the gradient a method would follow."""

BETAS = (0.9, 0.95)
"""Adam's; gradients shrink by orders of magnitude on the way, which longer averages lag behind."""


def _of_points(points: Points, gradient: Tensor) -> Points:
    return Points(gradient, points.y, torch.zeros_like(points.weight))


def _unchanged(points: Tensor, _: Rng) -> Tensor:
    return points
