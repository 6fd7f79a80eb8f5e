r"""LD: labels for real images, learned so that training on them serves all classes.

Bohdal, Yang, Hospedales (2020), "Flexible Dataset Distillation: Learn Labels Instead of Images",
§3. The images $\tilde x$ are real and fixed; their soft labels $\tilde y$ are learned. `ld`
differentiates through training (Algorithm 1),

$$ \min_{\tilde y}\; \mathbb E_{\theta_0}\, \mathcal L\left(f_{\theta_L}(x), y\right), \qquad
   \theta_{t+1} = \theta_t
   - \alpha \nabla_\theta \mathcal L\left(f_{\theta_t}(\tilde x), \tilde y\right) $$

`ld-rr` through ridge regression of the last layer on the features $\tilde\Phi$ of networks trained
on $(\tilde x, \tilde y)$ (Algorithm 2),

$$ \min_{\tilde y}\; \tfrac1{2\lvert B\rvert}\left\lVert \bar Y - \Phi W \right\rVert^2, \qquad
   W = \tilde\Phi^\top\left(\tilde\Phi\tilde\Phi^\top + \lambda I\right)^{-1} \tilde y $$

| paper | here | | paper | here |
|---|---|---|---|---|
| $\tilde y$ | `y` | | $\alpha$ | starts at `inner_lr`, learned |
| $\beta$ | `label_lr` | | $\lambda$ | `ridge`, relative |

Cost per step: `ld` as `dd`. `ld-rr`: forward passes of `batch_size` real images and of the M
images, one training step of a network of the pool, one Cholesky factor of M × M. No gradient of
second order.

Deviations:
  D1. Labels of `ld` are the softmax of what is learned, so that they are distributions at every
      step (the paper clips and rescales them). They start at one-hot, softened by `softening`: at
      one-hot itself a softmax does not move.
  D2. `ld` trains a fresh network for `num_inner_steps` at every step; the paper takes one step from
      a network that is trained on and replaced when it stops improving. `ld-rr` keeps a pool of
      such networks of all ages (`objectives/pool.py`), trained in squared error.
  D3. `ridge` is relative to the mean squared feature norm. A logit scale is fitted beside the
      labels, moves nothing else and makes predictions probabilities.
  D4. The step size of the training is learned with the labels of `ld`, as its logarithm. Adam's
      step sizes fall to 0 along a cosine. Augmentation, if any, acts on the real batch of `ld-rr`
      alone: labels belong to images as they are.
"""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from torch import Tensor

from pseudocore.core.config import Positive, Range
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import bilevel, kernel_regression, pool
from pseudocore.objectives.bilevel import UnrolledSettings
from pseudocore.objectives.initial import PointSettings, initial_indices
from pseudocore.objectives.kernel_regression import RegressionInfo, RegressionSettings, centred
from pseudocore.objectives.network_kernels import feature_kernel
from pseudocore.objectives.pool import Pool, PoolSettings
from pseudocore.training.optimisers import Moments, adam, cosine, start


class LDState(NamedTuple):
    log_inner_lr: Tensor  # ()
    log_y: Tensor  # labels up to a softmax (M, classes)
    moments: Moments  # Adam's, of log_y
    lr_moments: Moments  # of log_inner_lr
    indices: Tensor  # of the images among the training points (M,)
    step: Tensor  # () steps taken


class LDInfo(NamedTuple):
    loss: Tensor
    """Cross-entropy of the students on the real batch, before the step."""
    gradient_norm: Tensor
    """Norm of its gradient in `log_y`."""
    inner_lr: Tensor
    """Step size of the students' training, after the step."""
    own_label: Tensor
    """Mean probability that a label assigns to the class of its image."""


@methods.register(
    "ld",
    kind="condense",
    paper="Bohdal et al. 2020, arXiv 2006.08572",
    targets="function",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class LabelDistillation(UnrolledSettings):
    """Label distillation: soft labels of real images, learned through training on them."""

    label_lr: Positive = 0.05
    """Adam's step size on the logits of the labels; falls to 0 along a cosine."""
    softening: Annotated[float, Range(above=0, high=0.9)] = 0.1
    """Probability spread over all classes in the initial labels."""

    def init(self, problem: Problem, rng: Rng) -> LDState:
        k = problem.num_classes
        index = initial_indices(problem, self.counts(problem), rng("images")).to(problem.device)
        one_hot = centred(problem.train_y[index], k, problem.dtype) + 1 / k
        log_y = ((1 - self.softening) * one_hot + self.softening / k).log()
        log_lr = log_y.new_full((), self.inner_lr).log()
        return LDState(log_lr, log_y, start(log_y), start(log_lr), index, log_y.new_zeros(()))

    def step(self, problem: Problem, state: LDState, rng: Rng) -> tuple[LDState, LDInfo]:
        x, labels = problem.batch(state.indices)
        inner_lr = state.log_inner_lr.exp()
        weight = self.relative_weights(problem, state.log_y)

        def energy(theta: Tensor, log_y: Tensor) -> Tensor:
            with problem.fast():
                logits = problem.model.logits(theta, x)
            log_probs = logits.to(x.dtype).log_softmax(1)
            losses = -label_log_likelihood(log_probs, log_y.softmax(1))
            return (losses if weight is None else weight * losses).mean()

        pulled = bilevel.outer_gradient(
            self, problem, energy, lambda log_y, _: log_y, state.log_y, inner_lr, x, rng
        )
        decay = cosine(state.step, self.num_steps)
        change, moments = adam(pulled.x, state.moments, decay * self.label_lr)
        lr_change, lr_moments = adam(
            pulled.step_size * inner_lr, state.lr_moments, decay * self.inner_lr_lr
        )
        log_y, log_lr = state.log_y - change, state.log_inner_lr - lr_change
        own = label_log_likelihood(log_y.log_softmax(1), labels).exp().mean()
        new = LDState(log_lr, log_y, moments, lr_moments, state.indices, state.step + 1)
        return new, LDInfo(pulled.value, pulled.x.norm(), log_lr.exp(), own)

    def coreset(self, problem: Problem, state: LDState) -> Coreset:
        inner_lr = state.log_inner_lr.exp().item()
        return _labelled(problem, self, state.indices, state.log_y.softmax(1), inner_lr=inner_lr)


class LDRidgeLearned(NamedTuple):
    y: Tensor  # targets (M, classes)
    log_scale: Tensor  # () of the factor from predictions to logits


class LDRidgeState(NamedTuple):
    learned: LDRidgeLearned
    moments: Any  # Adam's, an LDRidgeLearned of Moments
    pool: Pool
    indices: Tensor  # of the images among the training points (M,)
    step: Tensor  # () steps taken


@methods.register(
    "ld-rr",
    kind="condense",
    paper="Bohdal et al. 2020, arXiv 2006.08572",
    targets="function",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class LabelDistillationRidge(RegressionSettings, PoolSettings):
    """Label distillation by ridge regression: real-valued targets of real images."""

    label_lr: Positive = 0.01
    """Adam's step size on targets and on the logit scale; falls to 0 along a cosine."""

    def init(self, problem: Problem, rng: Rng) -> LDRidgeState:
        index = initial_indices(problem, self.counts(problem), rng("images")).to(problem.device)
        y = centred(problem.train_y[index], problem.num_classes, problem.dtype)
        learned = LDRidgeLearned(y, y.new_full((), self.logit_scale).log())
        networks = pool.fill(problem, rng("pool"), size=self.pool_size, max_age=self.max_age)
        return LDRidgeState(learned, start(learned), networks, index, y.new_zeros(()))

    def step(
        self, problem: Problem, state: LDRidgeState, rng: Rng
    ) -> tuple[LDRidgeState, RegressionInfo]:
        place = pool.pick(state.pool, rng("network"))
        theta = state.pool.theta.index_select(0, place)[0]
        x, _ = problem.batch(state.indices)
        index = rng("batch").integers(problem.num_train, self.batch_size, device=problem.device)
        real, y = problem.batch(index)
        real = real if problem.augment is None else problem.augment(real, rng("augment"))
        kernels = feature_kernel(problem, [theta], x, real)(x)
        weight = self.relative_weights(problem, state.learned.y)

        def objective(learned: LDRidgeLearned) -> tuple[Tensor, Tensor]:
            mean = kernel_regression.regress(*kernels, learned.y, ridge=self.ridge, weight=weight)
            return kernel_regression.loss(mean, y, learned.log_scale)

        rates = [self.label_lr * cosine(state.step, self.num_steps)] * 2
        new, moments, info = kernel_regression.step(
            objective, state.learned, state.moments, rates, y
        )
        networks = pool.advance(
            state.pool,
            place,
            problem,
            x,
            new.y,
            rng("fresh"),
            step_size=self.pool_lr,
            max_age=self.max_age,
            weight=weight,
        )
        return LDRidgeState(new, moments, networks, state.indices, state.step + 1), info

    def coreset(self, problem: Problem, state: LDRidgeState) -> Coreset:
        y, log_scale = state.learned
        numbers = {
            "logit_scale": log_scale.exp().item(),
            "ridge": self.ridge * self.mean_weight(problem),
        }
        return _labelled(problem, self, state.indices, y, **numbers)


def _labelled(
    problem: Problem, method: PointSettings, index: Tensor, y: Tensor, **learned: float
) -> Coreset:
    """The real images as stored, with the labels and numbers learned for them."""
    subset = problem.subset(index.cpu(), method.weights(problem, y).cpu())
    return Coreset(subset.x, y.cpu(), subset.weight, subset.indices, {"posterior": learned})
