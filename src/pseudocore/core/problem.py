r"""A problem: data, model, prior and augmentation, and the one scaling of the log-posterior.

$$ \log \pi(\theta \mid S) = \sum_{m=1}^{M} w_m \log p(y_m \mid x_m, \theta) + \log p(\theta) +
\text{const} $$

The sum runs over weighted points, the prior enters once, and nothing is a mean. Samplers, Laplace's
approximation and methods that need a posterior read likelihood and prior here; see
`docs/scaling.md`.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from pseudocore.core.budget import mass
from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.likelihood import CATEGORICAL, Gaussian, Likelihood, Task
from pseudocore.core.likelihood import label_log_likelihood as label_log_likelihood
from pseudocore.core.types import (
    Augment,
    Cache,
    Coreset,
    Dataset,
    DataSpec,
    Experts,
    Model,
    Preprocess,
    Reference,
    Statistics,
)

Precision = Literal["float32", "tf32", "bf16"]

_MAX_PIXEL = 20.0
"""Beyond the pixels of any image in pixel units, learned ones included; one in 0 to 255 exceeds it.
"""

_FRAMES = ("pandas", "polars", "pyarrow")

PriorKind = Literal["fan-in", "isotropic"]


@dataclass(frozen=True)
class GaussianPrior:
    """Independent Gaussians on the parameters."""

    scale: float = 2.0
    """Standard deviation: of every parameter for isotropic, in units of one over the root of its
    layer's fan-in for fan-in.
    """
    kind: PriorKind = "fan-in"
    """isotropic: around 0, all alike. fan-in: around 1 for gains of norms and 0 for all else."""

    def moments(
        self, model: Model, *, device: Any = "cpu", dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """Centre and standard deviation of each parameter of a network, (parameters,)."""
        centre, unit = model.layer_scale(device=device, dtype=dtype)
        if self.kind == "isotropic":
            return torch.zeros_like(centre), torch.full_like(unit, self.scale)
        return centre, self.scale * unit


@dataclass(frozen=True, eq=False)
class Problem:
    """What a method works on. Immutable: methods read it and never change it."""

    data: Dataset | DataSpec
    """The data set, or for inference on a coreset alone its description; what then asks for
    examples raises a DataError with the code `no-data`.
    """
    model: Model
    preprocess: Preprocess
    augment: Augment | None = None
    prior: GaussianPrior = GaussianPrior()
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float32
    precision: Precision = "float32"
    experts: Experts | None = None
    reference: Reference | None = None
    also: tuple["Problem", ...] = ()
    """The same data under other networks, for a method that serves several."""
    cache: Cache | None = None
    likelihood: Likelihood = CATEGORICAL
    multiplicity: Tensor | None = None
    """How many examples each training point stands for, (n,), in a selection from selections.
    Defaults to one each.
    """

    def __post_init__(self) -> None:
        if self.data.task != self.task:
            raise ConfigError(
                f"{self.data.name!r} is for {self.data.task}, and the likelihood for {self.task}",
                code="wrong-task",
                task=self.data.task,
            )

    @property
    def task(self) -> Task:
        return self.likelihood.task

    @property
    def gaussian(self) -> Gaussian:
        """The likelihood of a regression."""
        if not isinstance(self.likelihood, Gaussian):
            raise ConfigError(
                f"{self.data.name!r} has classes, which have no noise", code="wrong-task"
            )
        return self.likelihood

    @property
    def num_classes(self) -> int:
        """Outputs of the network: the classes, or 1 for a regression."""
        return self.data.num_classes

    @property
    def is_dense(self) -> bool:
        """Whether all layers are dense: a GPU is faster at several such networks as one batch, and
        slower at convolutional ones.
        """
        return self.model.describe().get("name") in ("mlp", "linear")

    @property
    def num_train(self) -> int:
        return self.data.num_train

    @property
    def has_data(self) -> bool:
        return isinstance(self.data, Dataset)

    @property
    def dataset(self) -> Dataset:
        """The data set itself."""
        if isinstance(self.data, DataSpec):
            self.data.refuse("examples")
        return self.data

    @cached_property
    def train_x(self) -> Tensor:
        """Training inputs on the device, still as stored (images uint8)."""
        return self.data.train.x.to(self.device)

    @cached_property
    def train_y(self) -> Tensor:
        """Labels, or standardised targets (n, 1), on the device."""
        return self.targets(self.data.train.y)

    def targets(self, y: Tensor) -> Tensor:
        """Labels, probabilities or numbers of a data set or coreset as the likelihood takes them,
        on the problem's device and in its type.
        """
        y = self.likelihood.targets(y).to(self.device)
        return y.to(self.dtype) if y.is_floating_point() else y

    def mass(self, y: Tensor) -> Tensor:
        """Weights (M,) of points with these labels, or numbers, that sum to the number of examples:
        each class's examples divided by its points.
        """
        y = y.cpu()
        labels = torch.zeros(len(y), dtype=torch.int64) if self.task == "regression" else y
        return mass(labels, self.data.class_counts)

    @cached_property
    def class_indices(self) -> list[Tensor]:
        """Training indices of each class; of a regression, of all as one."""
        if self.task == "regression":
            return [torch.arange(self.num_train)]
        labels = range(self.num_classes)
        return [(self.data.train.y == label).nonzero().flatten() for label in labels]

    def inputs(self, x: Tensor) -> Tensor:
        """Raw inputs (uint8, or floats in pixel units) as network inputs, on the problem's device
        and in its type.
        """
        return self.preprocess.apply(self.as_pixels(x.to(self.device)))

    def as_tensor(self, x: Any) -> Tensor:
        """Inputs from outside as a tensor; frames, whose columns have names, are refused."""
        try:
            if type(x).__module__.partition(".")[0] in _FRAMES:  # torch would take columns for rows
                raise TypeError
            return torch.as_tensor(x)
        except (TypeError, ValueError, RuntimeError):
            shape = ", ".join(map(str, self.data.shape))
            raise DataError(
                f"inputs to predict must be an array or tensor of numbers (n, {shape}), not"
                f" {type(x).__name__}; of a frame, .to_numpy() with the columns in their order",
                code="input-type",
            ) from None

    def asked_inputs(self, x: Any) -> Tensor:
        """As `inputs`, for a tensor or array from outside, whose shape, units and values are
        checked.
        """
        x = self.as_tensor(x)
        if tuple(x.shape[1:]) != self.data.shape:
            shape = ", ".join(map(str, self.data.shape))
            raise DataError(
                f"inputs to predict must have shape (n, {shape}), not {tuple(x.shape)}",
                code="input-shape",
                shape=tuple(x.shape),
            )
        is_float, of_images = x.is_floating_point(), self.data.dtype == torch.uint8
        if is_float and of_images and x.numel() and (largest := float(x.max())) > _MAX_PIXEL:
            raise DataError(
                f"float images are in pixel units, 0 to 1, but these reach {largest:g}; divide "
                "them by 255, or give uint8",
                code="input-units",
                largest=largest,
            )
        if is_float and not x.isfinite().all():
            raise DataError("inputs to predict hold NaN or infinite values", code="input-values")
        return self.inputs(x)

    def as_pixels(self, x: Tensor) -> Tensor:
        """Raw inputs as floats in pixel units, in the problem's type; always a copy."""
        if x.dtype == torch.uint8:
            return x.to(self.dtype) / 255
        if not x.is_floating_point():
            dtype = str(x.dtype).removeprefix("torch.")
            raise DataError(
                f"inputs must be uint8, from 0 to 255, or floats in pixel units, not {dtype}",
                code="input-dtype",
                dtype=dtype,
            )
        return x.to(self.dtype, copy=True)

    def pixels(self, x: Tensor) -> Tensor:
        """The inverse of `inputs`, in pixel units: what goes into a Coreset."""
        return self.preprocess.invert(x)

    def subset(self, index: Tensor, weight: Tensor | None = None) -> Coreset:
        """Some training points as a coreset. Weights default to each class's examples divided by
        its points, which sums to the number of examples.
        """
        x, y = self.data.train.x[index], self.data.train.y[index]
        weight = self.mass(y) if weight is None else weight
        return Coreset(self.as_pixels(x), y, weight.to(self.dtype), index)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Network inputs and labels, or standardised targets, of some training points."""
        index = index.to(self.device)
        return self.inputs(self.train_x[index]), self.train_y[index]

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The whole training set in order, as network inputs and labels."""
        for start in range(0, self.num_train, size):
            yield self.batch(torch.arange(start, min(start + size, self.num_train)))

    def fast(self) -> AbstractContextManager[Any]:
        """For passes through the network: bfloat16 on a GPU where the precision allows it."""
        if self.precision == "bf16" and self.device.type == "cuda":
            # a cache would outlive a captured graph
            return torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False)
        return nullcontext()

    def features(self, theta: Tensor, x: Tensor, statistics: Statistics | None = None) -> Tensor:
        """Last-layer features of network inputs, in the problem's precision but the type of x."""
        with self.fast():
            features = self.model.features(theta, x, statistics)
        return features.to(x.dtype)

    def logits(self, theta: Tensor, x: Tensor, statistics: Statistics | None = None) -> Tensor:
        """Logits of network inputs, in the problem's precision but the type of x."""
        with self.fast():
            logits = self.model.logits(theta, x, statistics)
        return logits.to(x.dtype)

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """log p(y | x, theta) per example in full precision, (n,), or (draws, n) for several
        thetas.
        """
        return self.likelihood.log_prob(self.model.logits(theta, x), y)

    def prior_moments(self) -> tuple[Tensor, Tensor]:
        """Centre and standard deviation of the prior, each (parameters,)."""
        return self._prior_moments

    @cached_property
    def _prior_moments(self) -> tuple[Tensor, Tensor]:
        # kept: a captured graph must not copy from the host
        return self.prior.moments(self.model, device=self.device, dtype=self.dtype)

    def log_prior(self, theta: Tensor, *, normalised: bool = True) -> Tensor:
        """log p(theta) over the last axis of theta; without its constant when not `normalised`,
        which keeps digits that float32 has few of.
        """
        centre, sd = self._prior_moments
        value = -0.5 * ((theta - centre) / sd).square().sum(-1)
        if not normalised:
            return value
        return value - sd.log().sum() - theta.shape[-1] * 0.5 * math.log(2 * math.pi)

    def targets_and_weight(self, coreset: Coreset) -> tuple[Tensor, Tensor]:
        """Targets and weights of a coreset, on the problem's device and in its type."""
        return self.targets(coreset.targets), coreset.weight.to(self.device, self.dtype)

    def log_posterior(self, theta: Tensor, coreset: Coreset) -> Tensor:
        """The log-posterior on a coreset, up to its evidence: a sum over weighted points, and the
        normalised prior once; () or (draws,).
        """
        y, weight = self.targets_and_weight(coreset)
        x = self.inputs(coreset.x)
        return self.log_likelihood(theta, x, y) @ weight + self.log_prior(theta)

    def check_fits(self, coreset: Coreset) -> None:
        """Refuse a coreset of other shapes or classes than this problem's data."""
        name, shape = self.data.name, tuple(coreset.x.shape[1:])
        if shape != self.data.shape:
            raise DataError(
                f"the coreset's points have shape {shape} but those of {name!r} have "
                f"{self.data.shape}",
                code="coreset-shape",
                shape=shape,
            )
        if (coreset.task == "regression") != (self.task == "regression"):
            raise DataError(
                f"the coreset is for {coreset.task}, and {name!r} for {self.task}",
                code="coreset-task",
                task=coreset.task,
            )
        if coreset.is_soft and coreset.y.shape[1] != self.num_classes:
            raise DataError(
                f"the coreset has {coreset.y.shape[1]} classes but {name!r} has {self.num_classes}",
                code="coreset-classes",
                num_classes=coreset.y.shape[1],
            )
        if not coreset.is_soft and (coreset.y.min() < 0 or coreset.y.max() >= self.num_classes):
            raise DataError(
                f"the coreset holds labels outside 0..{self.num_classes - 1}, the classes of "
                f"{name!r}",
                code="coreset-labels",
            )
