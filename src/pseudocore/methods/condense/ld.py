r"""LD: labels for real images, learned so that training on them serves all classes.

Bohdal, Yang, Hospedales (2020), "Flexible Dataset Distillation: Learn Labels Instead of Images",
§3. The images $\tilde x$ are real ones and stay; learned are their soft labels $\tilde y$. `ld`
differentiates through training (Algorithm 1),

$$ \min_{\tilde y}\; \mathbb E_{\theta_0}\, \mathcal L\left(f_{\theta_L}(x), y\right), \qquad
   \theta_{t+1} = \theta_t - \alpha \nabla_\theta \mathcal L\left(f_{\theta_t}(\tilde x), \tilde y\right) $$

`ld-rr` through ridge regression of the last layer on the features $\tilde\Phi$ of networks trained
on $(\tilde x, \tilde y)$ (Algorithm 2),

$$ \min_{\tilde y}\; \tfrac1{2\lvert B\rvert}\left\lVert \bar Y - \Phi W \right\rVert^2, \qquad
   W = \tilde\Phi^\top\left(\tilde\Phi\tilde\Phi^\top + \lambda I\right)^{-1} \tilde y $$

| paper | here | | paper | here |
|---|---|---|---|---|
| $\tilde y$ | `y` | | $\alpha$ | starts at `inner_lr`, learned |
| $\beta$ | `label_lr` | | $\lambda$ | `ridge`, relative |

Cost per step: `ld` as `dd`. `ld-rr`: forward passes of `batch_size` real images and of the M
images, one training step of a network of the pool, one Cholesky factor of M × M; no gradient of
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
from torch.func import grad

from pseudocore.core.config import Count, Positive, Range
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import (
    bilevel as students,
)
from pseudocore.objectives import (
    kernel_regression as regression,
)
from pseudocore.objectives import (
    network_kernels as kernels,
)
from pseudocore.objectives import (
    pool,
)
from pseudocore.objectives.bilevel import Settings
from pseudocore.objectives.initial import balanced_indices
from pseudocore.objectives.pool import Pool
from pseudocore.objectives.unroll import Energy
from pseudocore.training.optimisers import Moments, adam, cosine, start


class Unrolled(NamedTuple):
    log_inner_lr: Tensor
    log_y: Tensor  # (M, classes), labels up to a softmax
    moments: Moments
    lr_moments: Moments
    indices: Tensor  # of the images among the training points (M,)
    step: Tensor


class UnrolledInfo(NamedTuple):
    loss: Tensor
    """Cross-entropy of the students on the real batch, before the step."""
    gradient_norm: Tensor
    inner_lr: Tensor
    own_label: Tensor
    """Mean probability that a label leaves with the class of its image."""


@methods.register("ld", kind="condense", paper="Bohdal et al. 2020, arXiv 2006.08572")
@dataclass(frozen=True, kw_only=True)
class LabelDistillation(Settings):
    """Label distillation: soft labels of real images, learned through training on them."""

    label_lr: Positive = 0.05
    """Adam's step size on what the labels are the softmax of; falls to 0 along a cosine."""
    softening: Annotated[float, Range(above=0, high=0.9)] = 0.1
    """Probability that a label gives to all classes alike, where it starts."""

    def init(self, problem: Problem, rng: Rng) -> Unrolled:
        index = balanced_indices(problem, self.per_class, rng("images")).to(problem.device)
        one_hot = (
            regression.centred(problem.train_y[index], problem.num_classes, problem.dtype)
            + 1 / problem.num_classes
        )
        log_y = ((1 - self.softening) * one_hot + self.softening / problem.num_classes).log()
        log_inner_lr = log_y.new_full((), self.inner_lr).log()
        return Unrolled(
            log_inner_lr, log_y, start(log_y), start(log_inner_lr), index, log_y.new_zeros(())
        )

    def step(self, problem: Problem, state: Unrolled, rng: Rng) -> tuple[Unrolled, UnrolledInfo]:
        x, labels = problem.batch(state.indices)
        inner_lr = state.log_inner_lr.exp()
        pulled = students.teach(
            self,
            problem,
            _energy(problem, x),
            lambda log_y, _: log_y,
            state.log_y,
            inner_lr,
            x,
            rng,
        )
        decay = cosine(state.step, self.num_steps)
        change, moments = adam(pulled.x, state.moments, decay * self.label_lr)
        lr_change, lr_moments = adam(
            pulled.step_size * inner_lr, state.lr_moments, decay * self.inner_lr_lr
        )
        log_y, log_inner_lr = state.log_y - change, state.log_inner_lr - lr_change
        own = label_log_likelihood(log_y.log_softmax(1), labels).exp().mean()
        info = UnrolledInfo(pulled.value, pulled.x.norm(), log_inner_lr.exp(), own)
        return Unrolled(
            log_inner_lr, log_y, moments, lr_moments, state.indices, state.step + 1
        ), info

    def coreset(self, problem: Problem, state: Unrolled) -> Coreset:
        return _labelled(
            problem, state.indices, state.log_y.softmax(1), inner_lr=state.log_inner_lr.exp().item()
        )


class Learned(NamedTuple):
    y: Tensor  # targets (M, classes)
    log_scale: Tensor


class Regressed(NamedTuple):
    learned: Learned
    moments: Any  # a Learned of Moments
    pool: Pool
    indices: Tensor
    step: Tensor


class RegressedInfo(NamedTuple):
    loss: Tensor
    accuracy: Tensor
    """On the training batch, before the step."""
    logit_scale: Tensor


@methods.register("ld-rr", kind="condense", paper="Bohdal et al. 2020, arXiv 2006.08572")
@dataclass(frozen=True, kw_only=True)
class LabelDistillationRidge:
    """Label distillation by ridge regression: real-valued targets of real images, learned in closed
    form.
    """

    per_class: Count = 10
    """Points per class."""
    num_steps: Count = 2000
    """Outer steps."""
    batch_size: Count = 512
    """Real examples per step."""
    label_lr: Positive = 0.01
    """Adam's step size on targets and on the logit scale; falls to 0 along a cosine."""
    ridge: Positive = 0.01
    """Relative to the mean squared feature norm."""
    logit_scale: Positive = 10.0
    """Initial factor from last-layer outputs to logits; fitted."""
    pool_size: Count = 10
    """Networks kept in the pool."""
    max_age: Count = 100
    """Training steps after which a pool network is replaced by a fresh one."""
    pool_lr: Positive = 3e-4
    """Adam's step size of the pool networks on the images and their targets."""

    def init(self, problem: Problem, rng: Rng) -> Regressed:
        index = balanced_indices(problem, self.per_class, rng("images")).to(problem.device)
        y = regression.centred(problem.train_y[index], problem.num_classes, problem.dtype)
        learned = Learned(y, y.new_full((), self.logit_scale).log())
        networks = pool.fill(problem, rng("pool"), size=self.pool_size, max_age=self.max_age)
        return Regressed(learned, Learned(*map(start, learned)), networks, index, y.new_zeros(()))  # type: ignore[arg-type]

    def step(self, problem: Problem, state: Regressed, rng: Rng) -> tuple[Regressed, RegressedInfo]:
        place = pool.pick(state.pool, rng("network"))
        theta = state.pool.theta.index_select(0, place)[0]
        x, _ = problem.batch(state.indices)
        real, y = problem.batch(
            rng("batch").integers(problem.num_train, self.batch_size, device=problem.device)
        )
        real = real if problem.augment is None else problem.augment(real, rng("augment"))
        others = kernels.real_features(problem, theta, x, real)
        gram, cross = kernels.inner_products(kernels.own_features(problem, theta, x), others)

        def objective(learned: Learned) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            value, log_probs = regression.loss(
                regression.regress(gram, cross, learned.y, ridge=self.ridge), y, learned.log_scale
            )
            return value, (value.detach(), log_probs.detach())

        gradient, (value, log_probs) = grad(objective, has_aux=True)(state.learned)
        step_size = self.label_lr * cosine(state.step, self.num_steps)
        moved = [adam(g, m, step_size) for g, m in zip(gradient, state.moments, strict=True)]
        new = Learned(
            *(part - change for part, (change, _) in zip(state.learned, moved, strict=True))
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
        )
        moments = Learned(*(moment for _, moment in moved))  # type: ignore[arg-type]
        accuracy = (log_probs.argmax(1) == y).to(value.dtype).mean()
        return Regressed(new, moments, networks, state.indices, state.step + 1), RegressedInfo(
            value, accuracy, new.log_scale.exp()
        )

    def coreset(self, problem: Problem, state: Regressed) -> Coreset:
        return _labelled(
            problem,
            state.indices,
            state.learned.y,
            logit_scale=state.learned.log_scale.exp().item(),
            ridge=self.ridge,
        )


def _energy(problem: Problem, x: Tensor) -> Energy:
    """Parameters and labels, up to a softmax, to the mean cross-entropy on the images."""

    def energy(theta: Tensor, log_y: Tensor) -> Tensor:
        with problem.fast():
            logits = problem.model.logits(theta, x)
        return -label_log_likelihood(logits.to(x.dtype).log_softmax(1), log_y.softmax(1)).mean()

    return energy


def _labelled(problem: Problem, index: Tensor, y: Tensor, **learned: float) -> Coreset:
    """The real images as they are stored, with what was learned for them."""
    chosen = problem.subset(index.cpu())
    return Coreset(chosen.x, y.cpu(), chosen.weight, chosen.indices, {"posterior": learned})
