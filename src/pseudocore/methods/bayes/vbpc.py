r"""VBPC and FRePo: coresets whose last-layer posterior is known in closed form.

VBPC: Variational Bayesian Pseudo-Coreset (2025, arXiv 2502.21143). FRePo: Zhou, Nezhadarya, Ba
(2022), "Dataset Distillation using Neural Feature Regression".

Features $\phi$ come from a pool of networks trained on the coreset itself. On top of them the
coreset $(u, \hat y)$ determines a Gaussian over last-layer weights, $\mathcal N(m^*_j, V^*)$
(`objectives/last_layer_gaussian.py`); VBPC minimises over $(u, \hat y)$ the loss of the full data
under it,

$$ \tfrac1{|B|}\sum_{(x,y)\in B} -\log \operatorname{softmax}_y\left(s\, m^{*\top}\phi(x) /
   \sqrt{1 + \alpha s^2\Sigma^*(x)}\right) + \frac{\beta_D}{N}\sum_j KL\left[\mathcal N(m^*_j,
   V^*)\,\|\,\mathcal N(0, \rho^{-1}I)\right], \quad \alpha = \pi/8 \tag{27} $$

by gradients straight through $m^*$ and $V^*$. FRePo keeps the mean alone and fits it to the labels
in squared error.

| paper | here | | paper | here |
|---|---|---|---|---|
| $\rho\beta_S/\gamma$ | `ridge`, relative | | $\hat n$ | `per_class` × classes |
| $\rho^{-1}$ | `prior_variance`, relative | | $P$, $T$ | `pool_size`, `max_age` |
| $\beta_D$ | `kl_weight` | | $s$ | `logit_scale` |

Cost per step: one forward pass of `batch_size` real images (no backward, as their features do not
depend on the coreset). One forward and backward of the M coreset images for the outer gradient, one
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
  D5. Points have weights $w$ (the paper's are 1). Row m of $\Phi$ and $\hat Y$ is multiplied by
      $\sqrt{w_m / \bar w}$, so that the posterior does not depend on the sum of the weights. The
      coreset's own `ridge`, the noise of a point of weight 1, is $\bar w$ times the setting.
      Learned weights are $N \operatorname{softmax}(z)$ with $z$ moved by Adam like all else.
  D6. The coreset is an exponential moving average of the iterates when `averaging` > 0 (off by
      default).
  D7. With `match` posterior the label y of a real point is replaced by the probabilities $p(x)$
      that `last-layer-vi` on all data gives it, its augmented copies included (off by default). Up
      to a constant the first term is then $D_{KL}[p \| q]$, which has its minimum where the coreset
      predicts what all data do, and not at certainty.
  D8. For a regression the likelihood is Gaussian itself, with the problem's noise and prior and
      $\sum_m w_m$ points: the loss is the evidence bound of all data (`vbpc_regression.py`).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import NonNegative, Positive, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.likelihood import BOTH
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.methods.bayes import vbpc_regression
from pseudocore.objectives import kernel_regression, multiformation, pool
from pseudocore.objectives import last_layer_gaussian as gaussian
from pseudocore.objectives.initial import ImageSettings
from pseudocore.objectives.kernel_regression import RegressionInfo, RegressionSettings
from pseudocore.objectives.pool import Pool, PoolSettings
from pseudocore.training.optimisers import cosine, start, tree_map


class VBPCLearned(NamedTuple):
    x: Tensor  # network inputs (M, ...)
    y: Tensor  # targets (M, classes)
    log_scale: Tensor  # () of the factor from last-layer outputs to logits
    log_variance: Tensor  # () of the prior, relative
    log_weight: Tensor  # (M,)


class VBPCState(NamedTuple):
    learned: VBPCLearned
    average: VBPCLearned  # moving average of the iterates (D6)
    moments: Any  # Adam's, a VBPCLearned of Moments
    pool: Pool
    step: Tensor  # () steps taken


@dataclass(frozen=True, kw_only=True)
class FeatureRegression(ImageSettings, RegressionSettings, PoolSettings, ABC):
    """What VBPC and FRePo share: all but the loss."""

    assumes: ClassVar[str | None] = "last-layer-vi"

    image_lr: Positive = 0.01
    """Adam's step size on (normalised) images and the logit scale; falls to 0 along a cosine."""
    weighting: Literal["mass", "ones", "learned"] = "mass"  # type: ignore[assignment]
    """Weight of a point. `mass`: the examples of its class over the points of its class, so that
    weights sum to the size of the training set. `ones`: 1, as in the published table. `learned`:
    with the points, from mass and with the same sum.
    """
    weight_lr: Positive = 0.01
    """Adam's step size on the logarithm of learned weights; falls to 0 along a cosine."""
    augment_on: Literal["data", "both"] = "data"
    """Whether augmentation, if any, acts on the real batch alone or on the coreset too."""
    mirror: bool = False
    """Whether each image is used beside its mirror image, as two points of one label."""
    averaging: Annotated[float, Range(low=0, high=0.9999)] = 0.0
    """Decay of a moving average of the iterates that becomes the coreset; 0 takes the last iterate.
    """

    @abstractmethod
    def initial_variance(self) -> float:
        """Where the prior variance starts."""

    @abstractmethod
    def loss(
        self, problem: Problem, learned: VBPCLearned, features: Tensor, real: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The loss, and log-probabilities (n, classes) of the real examples."""

    def targets(self, problem: Problem, index: Tensor, y: Tensor) -> Tensor:
        """What predictions for the training points at `index` are compared with: their labels."""
        return y

    @property
    def num_shown(self) -> int:
        return super().num_shown * (2 if self.mirror else 1)

    def init(self, problem: Problem, rng: Rng) -> VBPCState:
        multiformation.check(problem, mirror=self.mirror)
        x, y = multiformation.begin(
            problem, self.counts(problem), self.initial, rng("images"), factor=self.formation
        )
        numbers = torch.tensor(
            [self.logit_scale, self.initial_variance()], dtype=problem.dtype, device=problem.device
        ).log()
        if problem.task == "classification":
            y = kernel_regression.centred(y, problem.num_classes, x.dtype)
        log_weight = self.weights(problem, y).log()
        learned = VBPCLearned(x, y, numbers[0], numbers[1], log_weight)
        networks = pool.fill(problem, rng("pool"), size=self.pool_size, max_age=self.max_age)
        return VBPCState(learned, learned, start(learned), networks, x.new_zeros(()))

    def step(
        self, problem: Problem, state: VBPCState, rng: Rng
    ) -> tuple[VBPCState, RegressionInfo]:
        model, place = problem.model, pool.pick(state.pool, rng("network"))
        theta = state.pool.theta.index_select(0, place)[0]
        index = rng("batch").integers(problem.num_train, self.batch_size, device=problem.device)
        x, y = problem.batch(index)
        targets = self.targets(problem, index, y)
        augment = problem.augment or (lambda images, _: images)
        with problem.fast():
            statistics = model.statistics(theta, self._decode(state.learned).x) or None
            real = model.features(theta, augment(x, rng("augment")), statistics).to(x.dtype)

        def objective(learned: VBPCLearned) -> tuple[Tensor, Tensor]:
            points = self._decode(learned)
            images = augment(points.x, rng("augment")) if self.augment_on == "both" else points.x
            with problem.fast():
                features = model.features(theta, images).to(images.dtype)
            return self.loss(problem, points, features, real, targets)

        decay = cosine(state.step, self.num_steps)
        weight_lr = self.weight_lr if self.weighting == "learned" else 0.0
        sizes = (self.image_lr, self.label_lr, self.image_lr, self.image_lr, weight_lr)
        rates = [decay * size for size in sizes]
        move = vbpc_regression.moved if problem.task == "regression" else kernel_regression.step
        info: Any
        new, moments, info = move(objective, state.learned, state.moments, rates, y)
        average = tree_map(
            lambda old, part: old + (1 - self.averaging) * (part - old), state.average, new
        )
        points = self._decode(new)
        networks = pool.advance(
            state.pool,
            place,
            problem,
            points.x,
            points.y,
            rng("fresh"),
            step_size=self.pool_lr,
            max_age=self.max_age,
            weight=self.relative(points),
        )
        return VBPCState(new, average, moments, networks, state.step + 1), info

    def coreset(self, problem: Problem, state: VBPCState) -> Coreset:
        x, y, log_scale, log_variance, log_weight = state.average
        numbers = {
            "logit_scale": log_scale.exp().item(),
            "prior_variance": log_variance.exp().item(),
            "ridge": self.ridge * self.mean_weight(problem),
        }
        provenance = {
            "posterior": numbers,
            **multiformation.provenance(factor=self.formation, mirror=self.mirror),
        }
        weight = self.weights(problem, y)
        if self.weighting == "learned":
            weight = problem.num_train * log_weight.softmax(0)
        if problem.task == "regression":  # noise and prior are the problem's
            del provenance["posterior"]
            y = problem.likelihood.raw_targets(y)
        return Coreset(problem.pixels(x).cpu(), y.cpu(), weight.cpu(), provenance=provenance)

    def relative(self, points: VBPCLearned) -> Tensor | None:
        """Weights of decoded points over their mean."""
        if self.weighting == "ones":
            return None
        log_weight = points.log_weight
        log_weight = log_weight if self.weighting == "learned" else log_weight.detach()
        return len(log_weight) * log_weight.softmax(0)

    def _decode(self, learned: VBPCLearned) -> VBPCLearned:
        """With the images, targets and weights that networks see."""
        x, y, log_weight = multiformation.decode(
            learned.x, learned.y, learned.log_weight, factor=self.formation, mirror=self.mirror
        )
        return learned._replace(x=x, y=y, log_weight=log_weight)


@methods.register(
    "vbpc", kind="bayes", paper="VBPC 2025, arXiv 2502.21143", targets="posterior", weights="option"
)
@dataclass(frozen=True, kw_only=True)
class VBPC(FeatureRegression):
    """Variational Bayesian pseudo-coreset."""

    tasks = BOTH

    prior_variance: Positive = 0.01
    """Prior variance of a last-layer output at a typical point; its start when it is learned."""
    learn_variance: bool = False
    """Whether the prior variance is learned beside the points."""
    kl_weight: NonNegative = 1e-3
    """Weight of the KL term; 1 is the evidence bound of the full data, which a regression takes."""
    match: Literal["labels", "posterior"] = "labels"
    """What predictions for real examples are matched with: their labels, as published, or the
    probabilities that full-data inference gives them.
    """

    @property
    def needs_reference(self) -> bool | str:
        return "last-layer-vi" if self.match == "posterior" else False

    def init(self, problem: Problem, rng: Rng) -> VBPCState:
        if problem.task == "regression":
            vbpc_regression.check(self)
        elif self.match == "posterior":
            _full_predictive(problem)  # computed here, as a captured step cannot
        return super().init(problem, rng)

    def initial_variance(self) -> float:
        return self.prior_variance

    def targets(self, problem: Problem, index: Tensor, y: Tensor) -> Tensor:
        if self.match == "labels":
            return y
        return _full_predictive(problem).index_select(0, index).exp()  # D7

    def loss(
        self, problem: Problem, learned: VBPCLearned, features: Tensor, real: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        if problem.task == "regression":
            return vbpc_regression.loss(self, problem, learned, features, real, y)
        variance = learned.log_variance.exp() if self.learn_variance else self.prior_variance
        posterior = gaussian.fit(
            features,
            learned.y,
            ridge=self.ridge,
            prior_variance=variance,
            weight=self.relative(learned),
        )
        mean, spread = gaussian.predict(posterior, real)
        log_probs = gaussian.log_probs(mean, spread, learned.log_scale.exp())
        nll = -label_log_likelihood(log_probs, y).mean()
        divergence = self.kl_weight / problem.num_train * gaussian.kl(posterior).sum()
        return nll + divergence, log_probs  # Eq. (27)


def _full_predictive(problem: Problem) -> Tensor:
    """Log-probabilities of the training points by full-data inference, (N, classes)."""
    if problem.reference is None:
        raise ConfigError(
            "vbpc with match = 'posterior' needs a reference; reduce makes one,"
            " references.with_reference adds one to a problem",
            code="no-reference",
        )
    return problem.reference.train_log_probs


@methods.register(
    "frepo",
    kind="condense",
    paper="Zhou et al. 2022, arXiv 2206.00719",
    targets="function",
    weights="option",
)
@dataclass(frozen=True, kw_only=True)
class FRePo(FeatureRegression):
    """Dataset distillation by neural feature regression."""

    def initial_variance(self) -> float:
        return 1e-6

    def loss(
        self, problem: Problem, learned: VBPCLearned, features: Tensor, real: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        posterior = gaussian.fit(
            features,
            learned.y,
            ridge=self.ridge,
            prior_variance=1e-6,
            weight=self.relative(learned),
        )
        mean, _ = gaussian.predict(posterior, real)
        return kernel_regression.loss(mean, y, learned.log_scale)  # D2
