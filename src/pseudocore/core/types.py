"""The values that flow between packages.

`Dataset -> Problem -> (method) -> Coreset -> (inference) -> Predict -> metrics`: each arrow is a
plain value. The protocols are those of `protocols`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.contract import Contract as Contract
from pseudocore.core.contract import DataSpec as DataSpec
from pseudocore.core.errors import DataError
from pseudocore.core.protocols import AssumesInference as AssumesInference
from pseudocore.core.protocols import Augment as Augment
from pseudocore.core.protocols import Budgeted as Budgeted
from pseudocore.core.protocols import Cache as Cache
from pseudocore.core.protocols import Experts as Experts
from pseudocore.core.protocols import HasMoments as HasMoments
from pseudocore.core.protocols import Inference as Inference
from pseudocore.core.protocols import Iterative as Iterative
from pseudocore.core.protocols import LearnsTotalWeight as LearnsTotalWeight
from pseudocore.core.protocols import LogDensity as LogDensity
from pseudocore.core.protocols import Method as Method
from pseudocore.core.protocols import Model as Model
from pseudocore.core.protocols import ModelSpec as ModelSpec
from pseudocore.core.protocols import NeedsExperts as NeedsExperts
from pseudocore.core.protocols import NeedsReference as NeedsReference
from pseudocore.core.protocols import Predict as Predict
from pseudocore.core.protocols import PredictsByDraw as PredictsByDraw
from pseudocore.core.protocols import Preprocess as Preprocess
from pseudocore.core.protocols import Reference as Reference
from pseudocore.core.protocols import Restorable as Restorable
from pseudocore.core.protocols import Sampler as Sampler
from pseudocore.core.protocols import Selector as Selector
from pseudocore.core.protocols import SelectsSettings as SelectsSettings
from pseudocore.core.protocols import Statistics as Statistics
from pseudocore.core.protocols import Uncertainty as Uncertainty


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
    encoding: tuple[Mapping[str, Any], ...] = ()
    """How the columns of a table became features, as plain values (`data.tables.Encoding`)."""
    notes: tuple[str, ...] = ()
    """What was decided in reading it, in sentences: a test half held out, gaps filled, …."""

    def __repr__(self) -> str:
        kind = "images" if self.is_images else "inputs"
        sizes = f"{len(self.train.y)} + {len(self.test.y)} {kind} of shape {self.shape}"
        lines = [f"Dataset({self.name!r}: {sizes}, {self.num_classes} classes)", *self.notes]
        return "\n  ".join(lines)

    def __post_init__(self) -> None:
        def require(holds: bool, code: str, message: str) -> None:
            if not holds:
                raise DataError(message, code=code, data=self.name)

        num_names = len(self.class_names)
        require(
            num_names in (0, self.num_classes),
            "class-names",
            f"{self.name!r} has {self.num_classes} classes but {num_names} class names",
        )
        for split, examples in {"train": self.train, "test": self.test}.items():
            if problem := _problem_of(examples, self.num_classes):
                code, sentence = problem
                message = f"{split} split of {self.name!r}: {sentence}"
                raise DataError(message, code=code, data=self.name, split=split)
        shapes = [tuple(part.x.shape[1:]) for part in (self.train, self.test)]
        require(
            shapes[0] == shapes[1],
            "shapes-differ",
            f"training inputs of {self.name!r} have shape {shapes[0]} but test inputs {shapes[1]}",
        )
        require(
            bool(self.train.x.min() < self.train.x.max()),
            "constant-inputs",
            f"every value in the training inputs of {self.name!r} is the same: nothing can be"
            " learned",
        )
        present = sorted(set(self.train.y.tolist()))  # not by counting: a stray label may be huge
        if num_missing := self.num_classes - len(present):
            places = (place for place, label in enumerate(present) if label != place)
            first = next(places, len(present))
            raise DataError(
                f"no training examples of class {first} in {self.name!r} ({num_missing} empty in"
                " all)",
                code="empty-class",
                data=self.name,
                label=first,
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.x.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """Of inputs as stored."""
        return self.train.x.dtype

    @property
    def num_train(self) -> int:
        return len(self.train.y)

    @property
    def is_images(self) -> bool:
        return self.train.x.ndim == 4

    @property
    def spec(self) -> DataSpec:
        """Everything but the data."""
        return DataSpec(
            self.name,
            self.shape,
            self.dtype,
            self.num_classes,
            self.num_train,
            self.class_names,
            self.fingerprint,
        )

    @cached_property
    def class_counts(self) -> Tensor:
        """Training examples per class, (classes,)."""
        return torch.bincount(self.train.y, minlength=self.num_classes)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of shapes, types and bytes of both splits."""
        digest = hashlib.sha256(f"{self.num_classes}".encode())
        for tensor in (*self.train, *self.test):
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            for block in torch.split(tensor, 4096):  # a memory map may be larger than memory
                digest.update(block.contiguous().numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Coreset:
    """A few weighted points that stand for a data set."""

    x: Tensor
    """In the data's own units, images in [0, 1] (learned ones may leave that range), whatever the
    normalisation; `Problem.inputs` turns it into what a network sees.
    """
    y: Tensor
    """Integer labels (M,), or real-valued targets (M, classes)."""
    weight: Tensor
    indices: Tensor | None = None
    """Which training points were selected, where they were."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """How it was made, and what was learned beside the points."""
    contract: Contract | None = None
    """What it was made for, so that inference needs no training data. None for points that nobody
    described.
    """

    def __post_init__(self) -> None:
        tensors = {"x": self.x, "y": self.y, "weight": self.weight}
        sizes = {name: len(values) for name, values in tensors.items()}
        if self.indices is not None:
            sizes["indices"] = len(self.indices)
        if len(set(sizes.values())) != 1:
            message = f"the parts of a coreset disagree about its size: {sizes}"
            raise DataError(message, code="lengths-differ", sizes=sizes)
        if self.weight.ndim != 1 or not self.weight.is_floating_point():
            given = f"{self.weight.dtype} {tuple(self.weight.shape)}"
            raise DataError(f"coreset weights must be floats (M,), not {given}", code="weights")
        if len(self.x) == 0:
            raise DataError("a coreset must hold at least one point", code="no-examples")
        if self.y.ndim != (2 if self.is_soft else 1):
            raise DataError(
                "coreset labels must be integers (M,) or floats (M, classes), not"
                f" {self.y.dtype} {tuple(self.y.shape)}",
                code="labels",
            )
        for name, values in tensors.items():
            if values.is_floating_point() and not torch.isfinite(values).all():
                message = f"coreset {name} holds NaN or infinite values"
                raise DataError(message, code="not-finite", name=name)
        if (self.weight < 0).any() or self.weight.sum() <= 0:
            raise DataError("coreset weights must be non-negative and not all zero", code="weights")

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
        """Arguments of a likelihood: integer labels, or class probabilities (M, classes).

        Real-valued targets that are no distribution are last-layer outputs, made logits by the
        learned scale, or 1.
        """
        if not self.is_soft or (
            (self.y >= 0).all()
            and torch.allclose(self.y.sum(1), self.y.new_ones(len(self)), atol=1e-4)
        ):
            return self.y
        return (self.y * self.learned.get("logit_scale", 1.0)).softmax(1)

    @property
    def learned(self) -> dict[str, float]:
        """Positive numbers learned with the points (`logit_scale`, `ridge`, ...), checked, as the
        file may be anyone's.
        """
        table = self.provenance.get("posterior", {})
        if not isinstance(table, Mapping) or not all(
            type(value) in (int, float) and 1e-12 < value < 1e12 for value in table.values()
        ):
            raise DataError(
                f"the coreset's provenance has posterior = {table!r}, where positive numbers by"
                " name, of ordinary size, should be",
                code="invalid-provenance",
            )
        return dict(table)

    @property
    def is_encoded(self) -> bool:
        """Whether its images show more than themselves: several tiles, or a mirror image."""
        return not {"formation", "mirror"}.isdisjoint(self.provenance)

    def with_provenance(self, **entries: Any) -> "Coreset":
        return replace(self, provenance={**self.provenance, **entries})


def _problem_of(examples: Examples, num_classes: int) -> tuple[str, str] | None:
    """Code and sentence of the first thing wrong with a split, if any."""
    x, y = examples
    shape = tuple(x.shape)
    if len(x) != len(y):
        return "lengths-differ", f"{len(x)} inputs but {len(y)} labels"
    if len(x) == 0:
        return "no-examples", "it is empty"
    if y.dtype != torch.int64 or y.ndim != 1:
        return "labels", f"labels must be a vector of integers, not {tuple(y.shape)} {y.dtype}"
    if y.min() < 0 or y.max() >= num_classes:
        span = f"{int(y.min())} to {int(y.max())}"
        with_classes = f"with {num_classes} classes they must lie in 0..{num_classes - 1}"
        return "labels", f"labels run from {span}; {with_classes}"
    if x.ndim < 2:
        return "shape", "inputs must be images or feature vectors, not one number each"
    if 0 in shape[1:]:
        return "shape", f"inputs are empty: each has shape {shape[1:]}"
    if x.dtype == torch.uint8:
        if x.ndim == 4:
            return None
        return "shape", f"images must be (n, channels, height, width), not {shape}"
    if not x.is_floating_point():
        return "dtype", f"inputs must be uint8 images or floats, not {x.dtype}"
    blocks = (block.flatten(1) for block in torch.split(x, 4096))
    if num_bad := sum(int((~torch.isfinite(block).all(1)).sum()) for block in blocks):
        return "not-finite", f"{num_bad} of {len(x)} inputs hold NaN or infinite values"
    return None
