r"""NCFM: condensation by matching the characteristic functions of every class's features.

Wang, Yang, Liu, Sun, Hu, He, Zhang (2025), "Dataset Distillation with Neural Characteristic
Function: A Minmax Perspective". With $\Phi(t) = \mathbb E\,e^{i\langle t, \psi(x)\rangle}$ the
characteristic function of the features of a class, of real images $B$ and of pseudo-images $S$,

$$ \min_S \max_\sigma\ \mathbb E_{t \sim \mathcal N(0, \operatorname{diag} \sigma^2)}
   \sqrt{\alpha\,(|\Phi_B| - |\Phi_S|)^2
   + (1 - \alpha)\, 2\, |\Phi_B| |\Phi_S| \big(1 - \cos(\angle\Phi_B - \angle\Phi_S)\big)} $$

summed over classes. Where two characteristic functions agree at all frequencies t, so do the
distributions; a mean, which `dm` matches, is their slope at 0. At $\alpha = \frac12$ the root is
$|\Phi_B(t) - \Phi_S(t)| / \sqrt2$.

| paper | here | | paper | here |
|---|---|---|---|---|
| $\alpha$ | `amplitude` | | number of t | `num_frequencies` |
| $\psi$ of the sampling network | $\log\sigma$, by `frequency_lr` | | $f$ | experts below epoch `max_start` |

Features are scaled to length 1. To the discrepancy, which counts 300 times as in the authors' code,
comes the cross-entropy of the pseudo-images under the expert's last such epoch (`calibration`).

Cost per step: a forward pass of `batch_size` real images of every class, two forward and backward
passes of the pseudo-images, and `num_frequencies` × features for each image.

Deviations:
  D1. Networks are kept epochs of experts; the authors draw them between a random network and a
      trained one.
  D2. The sampling network is one standard deviation per feature, all ones unless `frequency_lr` is
      above 0; most of the authors' configurations, too, draw from N(0, I).
  D3. One step of Adam for all classes and both terms; the authors take one for each in turn.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from pseudocore.core.config import Count, Fraction, NonNegative, Positive
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import class_matching, image_sgd, multiformation
from pseudocore.objectives.class_matching import ClassLoss, Mismatch
from pseudocore.objectives.image_sgd import ImagesInfo
from pseudocore.objectives.trajectory import ExpertSettings, check_experts, tiled, view_of
from pseudocore.runtime import autodiff
from pseudocore.training.optimisers import Moments, adam, start

SCALE = 300
"""What the discrepancy counts beside the cross-entropy, as in the authors' code."""


class NCFMState(NamedTuple):
    x: Tensor
    """Network inputs (M, ...), ordered by class."""
    y: Tensor
    """Labels (M,)."""
    moments: Moments
    """Adam's, of x."""
    log_scale: Tensor
    """Logarithm of the frequencies' standard deviations (features,)."""
    scale_moments: Moments


@methods.register(
    "ncfm",
    kind="condense",
    paper="Wang et al. 2025, arXiv 2502.20653",
    targets="features",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class NCFM(ExpertSettings):
    """Condensation by matching characteristic functions of features."""

    num_steps: Count = 20_000
    """Matching steps, each under one network."""
    batch_size: Count = 1024
    """Real images of each class per step; of a class that has fewer, all."""
    image_lr: Positive = 0.01
    """Adam's step size on (normalised) images."""
    num_frequencies: Count = 4096
    """Frequencies drawn per step."""
    amplitude: Fraction = 0.5
    """Weight α of the amplitudes' difference; that of the phases' is 1 − α."""
    calibration: NonNegative = 1.0
    """Weight of the pseudo-images' cross-entropy under a trained expert."""
    frequency_lr: NonNegative = 0.0
    """Adam's step size on the frequencies' scales, up the discrepancy; 0 keeps them 1."""

    def init(self, problem: Problem, rng: Rng) -> NCFMState:
        check_experts(self, problem)
        x, y = multiformation.begin(
            problem, self.counts(problem), self.initial, rng("images"), factor=self.formation
        )
        theta = problem.model.init(rng("network"), device=problem.device, dtype=problem.dtype)
        log_scale = torch.zeros_like(problem.model.head(theta)[0][0])
        return NCFMState(x, y, start(x), log_scale, start(log_scale))

    def step(self, problem: Problem, state: NCFMState, rng: Rng) -> tuple[NCFMState, ImagesInfo]:
        theta, teacher = self._networks(problem, rng)
        drawn = class_matching.draw(problem, theta, self.batch_size, rng("batch"))
        normal = rng("frequencies").normal(
            self.num_frequencies, len(state.log_scale), device=problem.device, dtype=problem.dtype
        )
        frequencies, view = normal * state.log_scale.exp(), view_of(problem)

        def features(x: Tensor) -> Tensor:
            return normalize(problem.features(theta, x, drawn.statistics))

        def apart(real: Tensor, own: Tensor, frequencies: Tensor) -> Tensor:
            return SCALE * discrepancy(real, own, frequencies, self.amplitude)

        def against(real: Tensor, label: int) -> Mismatch:
            target, loss = features(real), ClassLoss(problem, label, drawn.statistics)

            def mismatch(own: Tensor) -> Tensor:
                value = apart(target, features(own), frequencies)
                return value + self.calibration * loss(teacher, own) if self.calibration else value

            return autodiff.value_and_grad(mismatch, pure=False)

        gradient, loss = class_matching.match(self, problem, view, state.x, drawn, against, rng)
        change, moments = adam(gradient, state.moments, self.image_lr)
        info = ImagesInfo(loss, gradient.norm(), state.x.abs().mean())
        state = state._replace(x=state.x - change, moments=moments)
        if self.frequency_lr == 0:
            return state, info

        own_view, parts = tiled(view, self.formation), list[tuple[Tensor, Tensor]]()
        own = torch.split(state.x + change, self.counts(problem))
        with torch.no_grad():  # what `match` saw
            for label, (images, batch) in enumerate(zip(own, drawn.batches, strict=True)):
                stream = rng("augment", label)
                real = view(problem.batch(batch)[0], stream)
                parts.append((features(real), features(own_view(images, stream))))

        def total(log_scale: Tensor) -> Tensor:
            values = [apart(*pair, normal * log_scale.exp()) for pair in parts]
            return torch.stack(values).sum()

        upward = autodiff.grad(total, pure=False)(state.log_scale)
        change, scale_moments = adam(upward, state.scale_moments, self.frequency_lr)
        log_scale = state.log_scale + change
        return state._replace(log_scale=log_scale, scale_moments=scale_moments), info

    def coreset(self, problem: Problem, state: NCFMState) -> Coreset:
        return image_sgd.coreset(problem, self, state.x, state.y)

    def _networks(self, problem: Problem, rng: Rng) -> Any:
        """A random expert at a random epoch, and at the last one that is read, (P,) each."""
        experts, device = problem.experts, problem.device
        assert experts is not None  # as `init` checks
        which = rng("expert").integers(experts.num_experts, 1, device=device)
        epoch = rng("start").integers(self.max_start, 1, device=device)
        epochs = torch.cat([epoch, torch.full_like(epoch, self.expert_epochs)])
        return experts.at(which.expand(2), epochs)


def discrepancy(one: Tensor, other: Tensor, frequencies: Tensor, amplitude: float) -> Tensor:
    """The objective above for features (n, h) and (m, h), as a mean over frequencies (k, h)."""
    cos, sin = _characteristic(one, frequencies)
    other_cos, other_sin = _characteristic(other, frequencies)
    tiny = torch.finfo(cos.dtype).eps ** 2  # a root has no slope at 0
    gap = (cos - other_cos).square() + (sin - other_sin).square()  # amplitudes and phases
    size = (cos.square() + sin.square() + tiny).sqrt()
    other_size = (other_cos.square() + other_sin.square() + tiny).sqrt()
    of_sizes = (size - other_size).square()
    squared = (1 - amplitude) * gap + (2 * amplitude - 1) * of_sizes
    return (squared.clamp_min(0) + tiny).sqrt().mean()


def _characteristic(features: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of the empirical characteristic function, (k,) each."""
    angle = frequencies @ features.T
    return angle.cos().mean(1), angle.sin().mean(1)
