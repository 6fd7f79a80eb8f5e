"""The values that flow between packages, and the protocols that algorithms follow.

`Dataset -> Problem -> (method) -> Coreset -> (inference) -> Predict -> metrics`: each arrow is a
plain value. Optional behaviour is a protocol of its own, checked with `isinstance`.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from pseudocore.core.errors import DataError
from pseudocore.core.rng import Rng

if TYPE_CHECKING:
    from pseudocore.core.problem import Problem


class Examples(NamedTuple):
    """Inputs as they came from disk: uint8 images (n, channels, height, width) or float features
    (n, d); labels (n,).
    """

    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class Dataset:
    """A labelled training set and its test set, checked once on construction.

    Images stay uint8 and become floats batch by batch (`Problem.inputs`).
    """

    name: str
    train: Examples
    test: Examples
    num_classes: int
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.class_names and len(self.class_names) != self.num_classes:
            raise DataError(
                f"{self.name!r} has {self.num_classes} classes but {len(self.class_names)} class names"
            )
        for split, (x, y) in {"train": self.train, "test": self.test}.items():
            where = f"{split} split of {self.name!r}"
            if len(x) != len(y):
                raise DataError(f"the {where} has {len(x)} inputs but {len(y)} labels")
            if len(x) == 0:
                raise DataError(f"the {where} is empty")
            if y.dtype != torch.int64 or y.ndim != 1:
                raise DataError(
                    f"labels of the {where} must be a vector of integers, not {tuple(y.shape)} {y.dtype}"
                )
            if y.min() < 0 or y.max() >= self.num_classes:
                raise DataError(
                    f"labels of the {where} run from {int(y.min())} to {int(y.max())}; "
                    f"with {self.num_classes} classes they must lie in 0..{self.num_classes - 1}"
                )
            if x.ndim < 2:
                raise DataError(
                    f"inputs of the {where} must be images or feature vectors, not one number each"
                )
            if 0 in x.shape[1:]:
                raise DataError(
                    f"inputs of the {where} are empty: each has shape {tuple(x.shape[1:])}"
                )
            if x.dtype == torch.uint8:
                if x.ndim != 4:
                    raise DataError(
                        f"images of the {where} must be (n, channels, height, width), not {tuple(x.shape)}"
                    )
            elif not x.is_floating_point():
                raise DataError(
                    f"inputs of the {where} must be uint8 images or floats, not {x.dtype}"
                )
            elif not torch.isfinite(x).all():
                bad = int((~torch.isfinite(x.flatten(1)).all(1)).sum())
                raise DataError(
                    f"{bad} of {len(x)} inputs of the {where} hold NaN or infinite values"
                )
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            raise DataError(
                f"training inputs of {self.name!r} have shape {tuple(self.train.x.shape[1:])} "
                f"but test inputs {tuple(self.test.x.shape[1:])}"
            )
        if self.train.x.min() == self.train.x.max():
            raise DataError(
                f"every value in the training inputs of {self.name!r} is the same: nothing can be learned"
            )
        present = sorted(
            set(self.train.y.tolist())
        )  # no counting by label: a stray one may be huge
        if num_missing := self.num_classes - len(present):
            first = next(
                (place for place, label in enumerate(present) if label != place), len(present)
            )
            raise DataError(
                f"no training examples of class {first} in {self.name!r} ({num_missing} empty in all)"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.x.shape[1:])

    @property
    def is_images(self) -> bool:
        return self.train.x.ndim == 4

    @cached_property
    def class_counts(self) -> Tensor:
        """Training examples per class, (classes,)."""
        return torch.bincount(self.train.y, minlength=self.num_classes)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of shapes, types and bytes of both splits: two sets with one fingerprint are the
        same set.
        """
        digest = hashlib.sha256(f"{self.num_classes}".encode())
        for tensor in (*self.train, *self.test):
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Coreset:
    """A few weighted points that stand for a data set: the only currency between layers and on
    disk.

    `x` is in the data's own units, images in [0, 1] pixel units (learned ones may leave that
    range), so a coreset can be looked at and is independent of normalisation; `Problem.inputs`
    turns it into what a network sees. `y` is integer labels (M,) or real-valued targets (M,
    classes). `indices` says which training points were chosen, when they were chosen and not made.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    indices: Tensor | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = {"x": len(self.x), "y": len(self.y), "weight": len(self.weight)}
        if self.indices is not None:
            sizes["indices"] = len(self.indices)
        if len(set(sizes.values())) != 1:
            raise DataError(f"the parts of a coreset disagree about its size: {sizes}")
        if self.weight.ndim != 1 or not self.weight.is_floating_point():
            raise DataError(
                f"coreset weights must be floats (M,), not {self.weight.dtype} {tuple(self.weight.shape)}"
            )
        if len(self.x) == 0:
            raise DataError("a coreset must hold at least one point")
        if self.y.ndim != (2 if self.y.is_floating_point() else 1):
            raise DataError(
                f"coreset labels must be integers (M,) or floats (M, classes), not {self.y.dtype} {tuple(self.y.shape)}"
            )
        for name, values in {"x": self.x, "y": self.y, "weight": self.weight}.items():
            if values.is_floating_point() and not torch.isfinite(values).all():
                raise DataError(f"coreset {name} holds NaN or infinite values")
        if (self.weight < 0).any() or self.weight.sum() <= 0:
            raise DataError("coreset weights must be non-negative and not all zero")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def is_soft(self) -> bool:
        """Whether `y` is real-valued targets rather than integer labels."""
        return bool(self.y.is_floating_point())

    @property
    def labels(self) -> Tensor:
        """The class each point stands for, (M,)."""
        labels: Tensor = self.y.argmax(1) if self.is_soft else self.y
        return labels

    @property
    def targets(self) -> Tensor:
        """What a likelihood is evaluated at: integer labels, or class probabilities (M, classes).

        Real-valued targets that are no distribution are last-layer outputs; the logit scale learned
        with them (1 when there is none) makes them logits.
        """
        if not self.is_soft or (
            (self.y >= 0).all()
            and torch.allclose(self.y.sum(1), self.y.new_ones(len(self)), atol=1e-4)
        ):
            return self.y
        return (self.y * self.learned.get("logit_scale", 1.0)).softmax(1)

    @property
    def learned(self) -> dict[str, float]:
        """Numbers learned beside the points (`logit_scale`, `ridge`, ...), all positive; checked,
        as a stranger may have written them.
        """
        table = self.provenance.get("posterior", {})
        if not isinstance(table, Mapping) or not all(
            type(value) in (int, float) and 1e-12 < value < 1e12 for value in table.values()
        ):
            raise DataError(
                f"the coreset's provenance has posterior = {table!r}, where positive numbers by name, of ordinary size, should be"
            )
        return dict(table)

    def with_provenance(self, **entries: Any) -> "Coreset":
        return replace(self, provenance={**self.provenance, **entries})


class Preprocess(Protocol):
    """An invertible map from pixel units to what the network sees."""

    def apply(self, x: Tensor) -> Tensor: ...
    def invert(self, x: Tensor) -> Tensor: ...
    def describe(self) -> dict[str, Any]: ...


class Augment(Protocol):
    """A random, differentiable change of a batch of inputs; equal `rng`, equal change."""

    def __call__(self, x: Tensor, rng: Rng) -> Tensor: ...


Statistics = Mapping[str, Tensor]
"""Batch-norm statistics by name."""


class Model(Protocol):
    """A network as a function of one flat parameter vector: a body that gives features, and a
    linear head that gives logits.
    """

    @property
    def num_parameters(self) -> int: ...
    @property
    def num_features(self) -> int: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def has_kernels(self) -> bool:
        """Whether this package has GPU kernels for it."""

    def init(
        self,
        rng: Rng,
        *,
        num: int | None = None,
        device: Any = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Initial parameters (parameters,), or (num, parameters)."""

    def features(
        self, theta: Tensor, x: Tensor, statistics: Statistics | None = None
    ) -> Tensor: ...
    def logits(self, theta: Tensor, x: Tensor, statistics: Statistics | None = None) -> Tensor: ...
    def statistics(self, theta: Tensor, x: Tensor) -> dict[str, Tensor]:
        """Batch-norm statistics of a batch; empty for other norms."""

    def head(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Weight and bias of the last layer."""

    def tensors(self, theta: Tensor) -> list[Tensor]:
        """Every parameter in its own shape, the head's last."""

    def layers(
        self, theta: Tensor, x: Tensor, statistics: Statistics | None = None
    ) -> list[Tensor]:
        """The inputs of every layer with weights but the first, then the features."""

    def layer_scale(
        self, *, device: Any = "cpu", dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """Centre and scale of a prior that keeps every layer's outputs near unit size."""

    def describe(self) -> dict[str, Any]:
        """Name and options, for provenance."""


@runtime_checkable
class ModelSpec(Protocol):
    """Options of a network, from which it is built for a data set."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model: ...


class Experts(Protocol):
    """Networks trained on the whole training set, kept at the end of every epoch; epoch 0 is the
    initialisation.
    """

    @property
    def num_experts(self) -> int: ...
    @property
    def num_epochs(self) -> int:
        """The last epoch kept."""

    def at(self, expert: Tensor, epoch: Tensor) -> Tensor:
        """Parameters (n, parameters) of experts (n,) at epochs (n,), on the problem's device and in
        its type.
        """


class Cache(Protocol):
    """Results that are slow to compute, kept between runs under a full description."""

    def load(self, what: Mapping[str, Any]) -> dict[str, Tensor] | None: ...
    def save(self, what: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None: ...
    def lock(self, what: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Let one process at a time look for a result and compute it."""
        ...


Predict = Callable[[Tensor], Tensor]
"""Raw inputs (n, ...) to log-probabilities (n, classes), already averaged over the posterior."""


class Uncertainty(NamedTuple):
    """Per example, in nats."""

    entropy: Tensor
    """Of the averaged prediction: all uncertainty."""
    mutual_information: Tensor
    """Between label and theta: the part on which draws disagree."""


@runtime_checkable
class PredictsByDraw(Protocol):
    """A `Predict` that averages draws and knows what each of them predicts."""

    def __call__(self, raw: Tensor, /) -> Tensor: ...
    def each(self, raw: Tensor) -> Iterator[Tensor]:
        """Log-probabilities (n, classes) of every draw in turn."""

    def uncertainty(self, raw: Tensor) -> Uncertainty: ...


@runtime_checkable
class SelectsSettings(Protocol):
    """A `Predict` some of whose settings were selected on training data."""

    @property
    def selected_settings(self) -> Mapping[str, float]: ...


@runtime_checkable
class HasMoments(Protocol):
    """A `Predict` of a network that was kept at earlier moments of its training, too."""

    @property
    def earlier(self) -> Sequence[Predict]: ...


LogDensity = Callable[[Tensor, Rng], Tensor]
"""Flat theta to an unnormalised log-density; `rng` draws the mini-batch or augmentation, if any."""


@runtime_checkable
class Iterative(Protocol):
    """Iterative reduction. Fields are configuration; the state is a NamedTuple of tensors."""

    @property
    def num_steps(self) -> int: ...
    def init(self, problem: "Problem", rng: Rng) -> Any: ...
    def step(self, problem: "Problem", state: Any, rng: Rng) -> tuple[Any, Any]: ...
    def coreset(self, problem: "Problem", state: Any) -> Coreset: ...


@runtime_checkable
class Selector(Protocol):
    """One-shot reduction: selects training points."""

    def select(self, problem: "Problem", rng: Rng) -> Coreset: ...


Method = Iterative | Selector


@runtime_checkable
class Budgeted(Protocol):
    """A method with a budget of points per class."""

    @property
    def per_class(self) -> int: ...


@runtime_checkable
class NeedsExperts(Protocol):
    """A method that learns from experts."""

    @property
    def num_experts(self) -> int: ...
    @property
    def expert_epochs(self) -> int:
        """The last epoch of an expert that the method reads."""

    @property
    def expert_loss(self) -> str: ...


@runtime_checkable
class UsesPrior(Protocol):
    """A method that reads the prior of the problem; declared as a class attribute."""

    uses_prior: ClassVar[bool]


class Sampler(Protocol):
    """A Markov chain (or, at temperature zero, an optimiser) on flat parameters."""

    def init(self, log_density: LogDensity, theta: Tensor, rng: Rng) -> Any: ...
    def step(self, log_density: LogDensity, state: Any, rng: Rng) -> tuple[Any, Any]: ...


@runtime_checkable
class Inference(Protocol):
    """Anything that turns a coreset into predictions."""

    def fit(self, problem: "Problem", coreset: Coreset, rng: Rng) -> Predict: ...
