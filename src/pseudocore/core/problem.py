r"""A problem: data, model, prior and augmentation, and the one scaling of the log-posterior.

$$ \log \pi(\theta \mid S) = \sum_{m=1}^{M} w_m \log p(y_m \mid x_m, \theta) + \log p(\theta) +
\text{const} $$

The sum runs over weighted points, the prior enters once. Nothing here is a mean; whoever wants one
divides. `docs/scaling.md` is the page the rest of the project links to.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.types import Augment, Cache, Coreset, Dataset, Experts, Model, Preprocess

Precision = Literal["float32", "tf32", "bf16"]

_BRIGHTEST = 20.0
"""No image has such pixels, not even a learned one; one in 0 to 255 has."""


class GaussianPrior(NamedTuple):
    """Independent N(0, scale²) on every parameter."""

    scale: float = 1.0

    def log_density(self, theta: Tensor) -> Tensor:
        """Normalised log-density over the last axis of theta."""
        standardised = (theta / self.scale).square().sum(-1)
        return -0.5 * standardised - theta.shape[-1] * (
            math.log(self.scale) + 0.5 * math.log(2 * math.pi)
        )


def label_log_likelihood(log_probs: Tensor, y: Tensor) -> Tensor:
    """log p(y) per example: log-probabilities (..., n, classes) at labels (n,), or their mean under
    soft labels (n, classes).
    """
    if y.is_floating_point():
        return (y * log_probs).sum(-1)
    return log_probs.gather(-1, y.expand(log_probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True, eq=False)
class Problem:
    """What a method works on. Immutable: methods read it and never change it."""

    data: Dataset
    model: Model
    preprocess: Preprocess
    augment: Augment | None = None
    prior: GaussianPrior = GaussianPrior()
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float32
    precision: Precision = "float32"
    experts: Experts | None = None
    cache: Cache | None = None

    @property
    def num_classes(self) -> int:
        return self.data.num_classes

    @property
    def is_dense(self) -> bool:
        """Whether the network has dense layers alone, of which a GPU takes several networks faster
        as one batch; batched convolutions
        are grouped ones, which it is slow at."""
        return self.model.describe().get("name") in ("mlp", "linear")

    @property
    def num_train(self) -> int:
        return len(self.data.train.y)

    @cached_property
    def train_x(self) -> Tensor:
        """Training inputs on the device, still as stored (images uint8)."""
        return self.data.train.x.to(self.device)

    @cached_property
    def train_y(self) -> Tensor:
        return self.data.train.y.to(self.device)

    @cached_property
    def class_indices(self) -> list[Tensor]:
        """Training indices of each class."""
        return [
            (self.data.train.y == label).nonzero().flatten() for label in range(self.num_classes)
        ]

    def inputs(self, x: Tensor) -> Tensor:
        """Raw inputs (uint8, or floats in pixel units) to what the network sees, on the problem's
        device and type.
        """
        return self.preprocess.apply(self.as_pixels(x.to(self.device)))

    def asked_inputs(self, x: Any) -> Tensor:
        """As `inputs`, of what somebody else wants predicted, a tensor or an array: refused when
        its shape or units are not the data's.
        """
        x = torch.as_tensor(x)
        if tuple(x.shape[1:]) != self.data.shape:
            raise DataError(
                f"inputs to predict must have shape (n, {', '.join(map(str, self.data.shape))}), not {tuple(x.shape)}"
            )
        if (
            self.data.train.x.dtype == torch.uint8
            and x.is_floating_point()
            and x.numel()
            and (top := float(x.max())) > _BRIGHTEST
        ):
            raise DataError(
                f"float images are in pixel units, 0 to 1, but these reach {top:g}; divide them by 255, or give uint8"
            )
        if x.is_floating_point() and not x.isfinite().all():
            raise DataError("inputs to predict hold NaN or infinite values")
        return self.inputs(x)

    def as_pixels(self, x: Tensor) -> Tensor:
        """Raw inputs as floats in pixel units, in the problem's type; a copy, so that a coreset
        never is the data itself.
        """
        if x.dtype == torch.uint8:
            return x.to(self.dtype) / 255
        if not x.is_floating_point():
            raise DataError(
                f"inputs must be uint8, from 0 to 255, or floats in pixel units, not {str(x.dtype).removeprefix('torch.')}"
            )
        return x.to(self.dtype, copy=True)

    def pixels(self, x: Tensor) -> Tensor:
        """The inverse of `inputs`, in pixel units: what goes into a Coreset."""
        return self.preprocess.invert(x)

    def subset(self, index: Tensor, weight: Tensor | None = None) -> Coreset:
        """Some training points as a coreset, of weight 1 unless told: what a selector returns."""
        x, y = self.data.train.x[index], self.data.train.y[index]
        weight = torch.ones(len(index)) if weight is None else weight
        return Coreset(self.as_pixels(x), y, weight.to(self.dtype), index)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Network inputs and labels of some training points."""
        index = index.to(self.device)
        return self.inputs(self.train_x[index]), self.train_y[index]

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The whole training set in order, as network inputs and labels."""
        for start in range(0, self.num_train, size):
            yield self.batch(torch.arange(start, min(start + size, self.num_train)))

    def fast(self) -> AbstractContextManager[Any]:
        """Where reduced precision is allowed: passes through the network, on a GPU in bfloat16 if
        asked; never the algebra after it.

        A CPU, which has nothing to gain from it, stays with the problem's type.
        """
        if self.precision == "bf16" and self.device.type == "cuda":
            return torch.autocast(
                self.device.type, dtype=torch.bfloat16, cache_enabled=False
            )  # a cache would outlive a captured graph
        return nullcontext()

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """log p(y | x, theta) per example, (n,), or (draws, n) for a batch of thetas; x are network
        inputs.
        """
        return label_log_likelihood(self.model.logits(theta, x).log_softmax(-1), y)

    def log_posterior(self, theta: Tensor, coreset: Coreset) -> Tensor:
        """The unnormalised log-posterior on a coreset: sum over weighted points, prior once."""
        likelihood = self.log_likelihood(
            theta, self.inputs(coreset.x), coreset.targets.to(self.device)
        )
        return (coreset.weight.to(likelihood) * likelihood).sum(-1) + self.prior.log_density(theta)

    def check_fits(self, coreset: Coreset) -> None:
        """Refuse a coreset of other shapes or classes than this problem's data."""
        if tuple(coreset.x.shape[1:]) != self.data.shape:
            raise DataError(
                f"the coreset's points have shape {tuple(coreset.x.shape[1:])} but those of {self.data.name!r} have {self.data.shape}"
            )
        if coreset.is_soft and coreset.y.shape[1] != self.num_classes:
            raise DataError(
                f"the coreset has {coreset.y.shape[1]} classes but {self.data.name!r} has {self.num_classes}"
            )
        if not coreset.is_soft and (coreset.y.min() < 0 or coreset.y.max() >= self.num_classes):
            raise DataError(
                f"the coreset holds labels outside 0..{self.num_classes - 1}, the classes of {self.data.name!r}"
            )

    def check_per_class(self, per_class: int) -> None:
        """Refuse a budget that some class cannot fill with its own examples."""
        fewest = int(self.data.class_counts.min())
        if per_class > fewest:
            label = int(self.data.class_counts.argmin())
            raise ConfigError(
                f"{per_class} points per class were asked for, but class {label} of {self.data.name!r} has only {fewest} "
                f"training examples; --ipc can be at most {fewest}"
            )
