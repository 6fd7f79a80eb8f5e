r"""VBPC and FRePo: coresets whose last-layer posterior is known in closed form.

VBPC: Variational Bayesian Pseudo-Coreset (2025, arXiv 2502.21143). FRePo: Zhou, Nezhadarya, Ba
(2022), "Dataset Distillation using Neural Feature Regression".

Features $\phi$ come from a pool of networks trained on the coreset itself. On top of them the
coreset $(u, \hat y)$ determines a Gaussian over last-layer weights, $\mathcal N(m^*_j, V^*)$
(`objectives/last_layer_gaussian.py`); VBPC minimises over $(u, \hat y)$ what the full data lose
under it,

$$ \tfrac1{|B|}\sum_{(x,y)\in B} -\log \operatorname{softmax}_y\left(s\, m^{*\top}\phi(x) / \sqrt{1 + \alpha s^2\Sigma^*(x)}\right)
   + \frac{\beta_D}{N}\sum_j KL\left[\mathcal N(m^*_j, V^*)\,\|\,\mathcal N(0, \rho^{-1}I)\right], \quad \alpha = \pi/8 \tag{27} $$

by gradients straight through $m^*$ and $V^*$. FRePo keeps the mean alone and fits it to the labels
in squared error.

| paper | here | | paper | here |
|---|---|---|---|---|
| $\rho\beta_S/\gamma$ | `ridge`, relative | | $\hat n$ | `per_class` × classes |
| $\rho^{-1}$ | `prior_variance`, relative | | $P$, $T$ | `pool_size`, `max_age` |
| $\beta_D$ | `kl_weight` | | $s$ | `logit_scale` |

Cost per step: one forward pass of `batch_size` real images (no backward: their features do not
depend on the coreset), one forward and backward of the M coreset images for the outer gradient, one
more for the pool, one Cholesky factor of M × M.

Deviations:
  D1. `ridge` and `prior_variance` are relative to the mean squared feature norm, since young and
      old networks differ in scale.
  D2. A logit scale $s$ is learned beside the points (the paper prints no values); `logit_scale` is
      where it starts. So is the prior variance with `learn_variance`; what that did is in
      `docs/vbpc.md`. In FRePo $s$ is fitted to the same batches but moves nothing else: it only
      makes the predictions probabilities.
  D3. With batch norm, real images are normalised by the coreset's statistics, as they will be at
      prediction; the outer gradient does not follow that dependence.
  D4. With `mirror` every image is used beside its mirror image, here and in every inference on the
      coreset, as in FRePo's public code: M is then twice as many (off by default).
  D5. The coreset is an exponential moving average of the iterates when `averaging` > 0 (off by
      default).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from pseudocore.core.config import Count, NonNegative, Positive, Range
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import last_layer_gaussian as gaussian
from pseudocore.objectives import multiformation as formation
from pseudocore.objectives import pool
from pseudocore.objectives.initial import Initial
from pseudocore.objectives.kernel_regression import centred
from pseudocore.objectives.pool import Pool
from pseudocore.training.optimisers import adam, cosine, start


class Learned(NamedTuple):
    x: Tensor  # network inputs (M, ...)
    y: Tensor  # targets (M, classes)
    log_scale: Tensor
    log_variance: Tensor


class State(NamedTuple):
    learned: Learned
    average: Learned
    moments: Any  # a Learned of Moments
    pool: Pool
    step: Tensor


class Info(NamedTuple):
    loss: Tensor
    accuracy: Tensor
    """On the training batch, before the step."""
    logit_scale: Tensor


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What VBPC and FRePo have in common."""

    per_class: Count = 10
    """Pseudo-images per class."""
    num_steps: Count = 2000
    """Outer steps."""
    batch_size: Count = 512
    """Real examples per step."""
    image_lr: Positive = 0.01
    """Adam's step size on images (in normalised units) and on the logit scale; falls to 0 along a
    cosine.
    """
    label_lr: NonNegative = 0.01
    """Adam's step size on targets; 0 keeps the labels at centred one-hot."""
    initial: Initial = "real"
    """Start from real images, from mixes of two of a class, or from noise."""
    ridge: Positive = 0.01
    """Observation noise of the last layer, relative to the mean squared feature norm."""
    logit_scale: Positive = 10.0
    """Initial factor from last-layer outputs to logits; learned."""
    pool_size: Count = 10
    """Networks kept in the pool."""
    max_age: Count = 100
    """Training steps after which a pool network is replaced by a fresh one."""
    pool_lr: Positive = 3e-4
    """Adam's step size of the pool networks on the coreset."""
    augment_on: Literal["data", "both"] = "data"
    """Whether the problem's augmentation, if any, acts on the real batch alone or on the coreset
    too.
    """
    formation: Count = 1
    """Images that a stored one holds along each side; 1 stores them one by one."""
    mirror: bool = False
    """Whether each image is shown beside its mirror image, as two points of one label."""
    averaging: Annotated[float, Range(low=0, high=0.9999)] = 0.0
    """Decay of a moving average of the iterates that becomes the coreset; 0 takes the last iterate.
    """


@methods.register("vbpc", kind="bayes", paper="VBPC 2025, arXiv 2502.21143")
@dataclass(frozen=True, kw_only=True)
class VBPC(Settings):
    """Variational Bayesian pseudo-coreset."""

    prior_variance: Positive = 0.01
    """Prior variance of a last-layer output at a typical point; where learning it starts."""
    learn_variance: bool = False
    """Whether the prior variance is learned beside the points."""
    kl_weight: NonNegative = 1e-3
    """Weight of the KL term; 1 is the evidence bound of the full data."""

    def init(self, problem: Problem, rng: Rng) -> State:
        return _init(self, self.prior_variance, problem, rng)

    def step(self, problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        return _step(self, self.loss, problem, state, rng)

    def coreset(self, problem: Problem, state: State) -> Coreset:
        return _coreset(self, problem, state)

    def loss(
        self, problem: Problem, learned: Learned, features: Tensor, real_features: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        variance = learned.log_variance.exp() if self.learn_variance else self.prior_variance
        posterior = gaussian.fit(features, learned.y, ridge=self.ridge, prior_variance=variance)
        log_probs = gaussian.log_probs(
            *gaussian.predict(posterior, real_features), learned.log_scale.exp()
        )
        nll = -label_log_likelihood(log_probs, y).mean()
        return nll + self.kl_weight / problem.num_train * gaussian.kl(
            posterior
        ).sum(), log_probs  # Eq. (27)


@methods.register("frepo", kind="condense", paper="Zhou et al. 2022, arXiv 2206.00719")
@dataclass(frozen=True, kw_only=True)
class FRePo(Settings):
    """Dataset distillation by neural feature regression."""

    def init(self, problem: Problem, rng: Rng) -> State:
        return _init(self, 1e-6, problem, rng)

    def step(self, problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        return _step(self, self.loss, problem, state, rng)

    def coreset(self, problem: Problem, state: State) -> Coreset:
        return _coreset(self, problem, state)

    def loss(
        self, problem: Problem, learned: Learned, features: Tensor, real_features: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        posterior = gaussian.fit(features, learned.y, ridge=self.ridge, prior_variance=1e-6)
        mean, _ = gaussian.predict(posterior, real_features)
        log_probs = (learned.log_scale.exp() * mean.detach()).log_softmax(1)
        squared_error = pool.mean_squared_error(mean, centred(y, problem.num_classes, mean.dtype))
        return squared_error - label_log_likelihood(log_probs, y).mean(), log_probs  # D2


Loss = Callable[[Problem, Learned, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _init(method: Settings, prior_variance: float, problem: Problem, rng: Rng) -> State:
    formation.check(problem, mirror=method.mirror)
    x, y = formation.begin(
        problem, method.per_class, method.initial, rng("images"), factor=method.formation
    )
    numbers = torch.tensor(
        [method.logit_scale, prior_variance], dtype=problem.dtype, device=problem.device
    ).log()
    learned = Learned(x, centred(y, problem.num_classes, x.dtype), numbers[0], numbers[1])
    networks = pool.fill(problem, rng("pool"), size=method.pool_size, max_age=method.max_age)
    return State(
        learned,
        learned,
        Learned(*map(start, learned)),  # type: ignore[arg-type]
        networks,
        torch.zeros((), dtype=x.dtype, device=x.device),
    )


def _step(
    method: Settings, loss: Loss, problem: Problem, state: State, rng: Rng
) -> tuple[State, Info]:
    learned, model = state.learned, problem.model
    place = pool.pick(state.pool, rng("network"))
    theta = state.pool.theta.index_select(0, place)[0]
    x, y = problem.batch(
        rng("batch").integers(problem.num_train, method.batch_size, device=problem.device)
    )
    augment = problem.augment or (lambda images, _: images)
    with problem.fast():
        statistics = model.statistics(theta, _shown(method, learned).x) or None
        real_features = model.features(theta, augment(x, rng("augment")), statistics).to(x.dtype)

    def objective(learned: Learned) -> tuple[Tensor, Tensor]:
        shown = _shown(method, learned)
        images = augment(shown.x, rng("augment")) if method.augment_on == "both" else shown.x
        with problem.fast():
            features = model.features(theta, images)
        return loss(problem, shown, features.to(x.dtype), real_features, y)

    gradient, value, log_probs = _gradient(objective, learned)
    decay = cosine(state.step, method.num_steps)
    rates = Learned(method.image_lr, method.label_lr, method.image_lr, method.image_lr)  # type: ignore[arg-type]
    moved = [
        adam(g, m, decay * rate) for g, m, rate in zip(gradient, state.moments, rates, strict=True)
    ]
    new = Learned(*(part - change for part, (change, _) in zip(learned, moved, strict=True)))
    average = Learned(
        *(
            old + (1 - method.averaging) * (part - old)
            for old, part in zip(state.average, new, strict=True)
        )
    )
    shown = _shown(method, new)
    networks = pool.advance(
        state.pool,
        place,
        problem,
        shown.x,
        shown.y,
        rng("fresh"),
        step_size=method.pool_lr,
        max_age=method.max_age,
    )
    accuracy = (log_probs.argmax(1) == y).to(x.dtype).mean()
    moments = Learned(*(moment for _, moment in moved))  # type: ignore[arg-type]
    return State(new, average, moments, networks, state.step + 1), Info(
        value, accuracy, new.log_scale.exp()
    )


def _shown(method: Settings, learned: Learned) -> Learned:
    """What networks are shown of the points: themselves or their tiles, and the mirror images of
    these where asked for.
    """
    x, y = formation.shown(learned.x, learned.y, factor=method.formation, mirror=method.mirror)
    return learned._replace(x=x, y=y)


def _gradient(
    objective: Callable[[Learned], tuple[Tensor, Tensor]], learned: Learned
) -> tuple[Learned, Tensor, Tensor]:
    """Gradient of the first output, the value itself and the second output."""

    def with_value(learned: Learned) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        value, extra = objective(learned)
        return value, (value, extra)

    gradient, (value, extra) = grad(with_value, has_aux=True)(learned)
    return gradient, value.detach(), extra.detach()


def _coreset(method: Settings, problem: Problem, state: State) -> Coreset:
    kept = state.average
    numbers = {
        "logit_scale": kept.log_scale.exp().item(),
        "prior_variance": kept.log_variance.exp().item(),
        "ridge": method.ridge,
    }
    weight = torch.ones(len(kept.y), dtype=kept.y.dtype)
    provenance = {
        "posterior": numbers,
        **formation.provenance(factor=method.formation, mirror=method.mirror),
    }
    return Coreset(problem.pixels(kept.x).cpu(), kept.y.cpu(), weight, provenance=provenance)
