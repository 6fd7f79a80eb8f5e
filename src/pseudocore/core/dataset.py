"""A labelled data set in memory."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.contract import DataSpec
from pseudocore.core.errors import DataError
from pseudocore.core.likelihood import Task


class Examples(NamedTuple):
    """Inputs as they came from disk: uint8 images (n, channels, height, width) or float features
    (n, d); labels (n,), or the numbers (n, 1) of a regression.
    """

    x: Tensor
    y: Tensor


class Embedded(NamedTuple):
    """Where features come from."""

    name: str
    """Of the network."""
    fingerprint: str = ""
    """Of the network and its inputs; empty for features that came ready."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A labelled training set and its test set, checked once on construction.

    Images stay uint8 and become floats batch by batch (`Problem.inputs`).
    """

    name: str
    train: Examples
    test: Examples
    num_classes: int
    """1 for a regression, whose network has one output."""
    class_names: tuple[str, ...] = ()
    encoding: tuple[Mapping[str, Any], ...] = ()
    """How the columns of a table became features, as plain values (`data.tables.Encoding`)."""
    notes: tuple[str, ...] = ()
    """What was decided in reading it, in sentences: a test half held out, gaps filled, …."""
    embedded: "Embedded | None" = None
    """What its inputs are features of, where they are a network's."""
    task: Task = "classification"
    """Whether targets are classes, or numbers."""

    def __repr__(self) -> str:
        kind = "images" if self.is_images else "inputs"
        what = "regression" if self.task == "regression" else f"{self.num_classes} classes"
        sizes = f"{len(self.train.y)} + {len(self.test.y)} {kind} of shape {self.shape}"
        lines = [f"Dataset({self.name!r}: {sizes}, {what})", *self.notes]
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
            if problem := _problem_of(examples, self.num_classes, self.task):
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
        if self.task == "regression":
            require(
                bool(self.train.y.min() < self.train.y.max()),
                "constant-targets",
                f"every training target of {self.name!r} is the same: nothing can be learned",
            )
            return
        present = torch.unique(self.train.y).tolist()  # not by counting: a stray label may be huge
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
            self.task,
        )

    @cached_property
    def class_counts(self) -> Tensor:
        """Training examples per class, (classes,); of a regression, of all as one."""
        if self.task == "regression":
            return torch.tensor([self.num_train])
        return torch.bincount(self.train.y, minlength=self.num_classes)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of shapes, types and bytes of both splits; of features, which differ by rounding
        from machine to machine, that of what they were computed from.
        """
        if self.embedded is not None and self.embedded.fingerprint:
            return self.embedded.fingerprint
        digest = hashlib.sha256(f"{self.num_classes}".encode())
        for tensor in (*self.train, *self.test):
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            for block in torch.split(tensor, 4096):  # a memory map may be larger than memory
                digest.update(block.contiguous().numpy().data)
        return digest.hexdigest()


def feature_names(encoding: Any) -> tuple[str, ...]:
    """Names of the features that the columns of a table became, such as `age`, `colour=blue`,
    `colour=red`; none of what describes no encoding, as a stranger's file may.
    """
    names: list[str] = []
    if not isinstance(encoding, list | tuple):
        return ()
    for column in encoding:
        if not isinstance(column, Mapping) or not isinstance(
            column.get("values", []), list | tuple
        ):
            return ()
        name, values = column.get("name"), column.get("values")
        names += [str(name)] if values is None else [f"{name}={value}" for value in values]
    return tuple(names)


def _problem_of(examples: Examples, num_classes: int, task: Task) -> tuple[str, str] | None:
    """Code and sentence of the first thing wrong with a split, if any."""
    x, y = examples
    shape = tuple(x.shape)
    if len(x) != len(y):
        return "lengths-differ", f"{len(x)} inputs but {len(y)} labels"
    if len(x) == 0:
        return "no-examples", "it is empty"
    if task == "regression":
        if not y.is_floating_point() or tuple(y.shape) != (len(y), 1) or num_classes != 1:
            return "targets", f"targets must be floats (n, 1), not {tuple(y.shape)} {y.dtype}"
        if num_bad := int((~torch.isfinite(y)).sum()):
            return "not-finite", f"{num_bad} of {len(y)} targets are NaN or infinite"
    elif y.dtype != torch.int64 or y.ndim != 1:
        return "labels", f"labels must be a vector of integers, not {tuple(y.shape)} {y.dtype}"
    elif y.min() < 0 or y.max() >= num_classes:
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
