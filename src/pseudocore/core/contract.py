"""What a coreset carries beyond its points: all that inference needs in place of the training data.

A contract is plain values and the constants of the preprocessing. It is read from files that anyone
may have written, so `Contract.from_table` believes nothing. What cannot be is refused with a
sentence, and nothing in it names code that is run.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, get_args

import torch
from torch import Tensor

from pseudocore.core.errors import ArtifactError, DataError
from pseudocore.core.likelihood import Task

if TYPE_CHECKING:
    from pseudocore.core.types import Examples

LIKELIHOODS = ("categorical", "gaussian")
"""Of labels given logits, or of real-valued targets given last-layer outputs."""

MAX_CLASSES = 10_000_000
"""A file that claims more would only be asking for memory."""

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.uint8, torch.float32, torch.float64, torch.float16, torch.bfloat16)}  # fmt: skip


@dataclass(frozen=True, eq=False)
class DataSpec:
    """A data set without its data: shapes, classes and sizes."""

    name: str
    shape: tuple[int, ...]
    """Of one input."""
    dtype: torch.dtype
    """Of inputs as stored: uint8 for images in bytes."""
    num_classes: int
    num_train: int
    class_names: tuple[str, ...] = ()
    fingerprint: str = ""
    """sha256 of the data themselves."""
    task: Task = "classification"

    @property
    def is_images(self) -> bool:
        return len(self.shape) == 3

    @property
    def train(self) -> "Examples":
        self.refuse("training data")

    @property
    def test(self) -> "Examples":
        self.refuse("test data")

    @property
    def class_counts(self) -> Tensor:
        self.refuse("training data")

    def refuse(self, what: str) -> NoReturn:
        """Say that what was asked for is not here."""
        raise DataError(
            f"the {what} of {self.name!r} are needed here, and only the coreset is at hand; give"
            " them (data=, or --data)",
            code="no-data",
            data=self.name,
        )

    def to_table(self) -> dict[str, Any]:
        """As plain values."""
        dtype = str(self.dtype).removeprefix("torch.")
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if self.task == "classification":
            del values["task"]
        return {
            **values,
            "dtype": dtype,
            "shape": list(self.shape),
            "class_names": list(self.class_names),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Contract:
    """What a coreset was made for."""

    data: DataSpec
    model: Mapping[str, Any]
    """Fields of a setup from which the network is rebuilt."""
    preprocess: Mapping[str, Any]
    """Kind and numbers of the preprocessing."""
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    """Its tensors by name."""
    prior: Mapping[str, Any]
    """Kind and scale of the Gaussian prior on parameters."""
    temperature: float = 1.0
    """Of the posterior that the points stand for."""
    likelihood: str = "categorical"
    """One of `LIKELIHOODS`."""
    total_weight: float
    """The sum of the weights: how many points the coreset stands for."""
    inference: Mapping[str, Any] = field(default_factory=dict)
    """Name (`inference`) and options of the inference it was made for; empty where its method
    assumes none.
    """
    target: Mapping[str, float] = field(default_factory=dict)
    """Of a regression: `noise`, and `centre` and `unit` by which targets are standardised."""

    def to_table(self) -> dict[str, Any]:
        """As plain values, without `constants`."""
        return {
            "data": self.data.to_table(),
            **{
                name: dict(getattr(self, name))
                for name in _TABLES
                if name != "target" or self.target
            },
            "temperature": self.temperature,
            "likelihood": self.likelihood,
            "total_weight": self.total_weight,
        }

    @classmethod
    def from_table(cls, table: Any, constants: Mapping[str, Tensor]) -> "Contract":
        """From what a file holds; anything that cannot be a contract is refused."""
        table, kept = {"target": {}, **_table(table, "a contract")}, dict[str, Any]()
        for name in _TABLES:
            kept[name] = dict(_table(table.get(name), name))
        for name in ("temperature", "total_weight"):
            if not _is_number(table.get(name)) or not 0 < table[name] < math.inf:
                raise _refused(f"{name} = {table.get(name)!r} where a number above 0 should be")
        scale, name = kept["prior"].get("scale"), kept["inference"].get("inference", "")
        if not _is_number(scale) or not 0 < scale < math.inf:
            raise _refused(f"a prior of scale {scale!r}")
        if not isinstance(name, str) or (kept["inference"] and not name):
            raise _refused(f"inference = {name!r} where a name should be")
        if table.get("likelihood") not in LIKELIHOODS:
            raise _refused(f"likelihood = {table.get('likelihood')!r}, not one of {LIKELIHOODS}")
        data = _data_spec(_table(table.get("data"), "data"))
        _check_target(kept["target"], data.task)
        for name, values in constants.items():
            if not values.is_floating_point() or not values.isfinite().all():
                raise _refused(f"preprocessing constants {name} that are no finite floats")
        return cls(
            data=data,
            constants=dict(constants),
            temperature=table["temperature"],
            likelihood=table["likelihood"],
            total_weight=table["total_weight"],
            **kept,
        )


_TABLES = ("model", "preprocess", "prior", "inference", "target")


def _check_target(table: Mapping[str, Any], task: Task) -> None:
    """Refuse numbers of a regression that cannot be."""
    names = {"noise", "centre", "unit"} if task == "regression" else set()
    if {*table} != names or not all(_is_number(value) for value in table.values()):
        raise _refused(f"target = {dict(table)!r} in a {task}")
    bounded = all(0 < table[name] < math.inf for name in names & {"noise", "unit"})
    if not bounded or not math.isfinite(table.get("centre", 0.0)):
        raise _refused(f"target = {dict(table)!r} in a {task}")


def _data_spec(table: Mapping[str, Any]) -> DataSpec:
    shape, names = table.get("shape"), table.get("class_names", [])
    if not isinstance(shape, list) or not shape or not all(_is_count(size) for size in shape):
        raise _refused(f"inputs of shape {shape!r}")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _refused("class names that are not strings")
    for name in ("num_classes", "num_train"):
        if not _is_count(table.get(name)):
            raise _refused(f"{name} = {table.get(name)!r} where a whole number should be")
    num_classes = table["num_classes"]
    if num_classes > MAX_CLASSES or len(names) not in (0, num_classes):
        raise _refused(f"{num_classes} classes with {len(names)} names")
    if table.get("dtype") not in _DTYPES:
        raise _refused(f"inputs of type {table.get('dtype')!r}")
    if table.get("task", "classification") not in get_args(Task):
        raise _refused(f"task = {table.get('task')!r}")
    if table.get("task") == "regression" and num_classes != 1:
        raise _refused(f"a regression with {num_classes} outputs")
    for name in ("name", "fingerprint"):
        if not isinstance(table.get(name), str):
            raise _refused(f"{name} = {table.get(name)!r} where a string should be")
    return DataSpec(
        table["name"],
        tuple(shape),
        _DTYPES[table["dtype"]],
        num_classes,
        table["num_train"],
        tuple(names),
        table["fingerprint"],
        table.get("task", "classification"),
    )


def _table(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _refused(f"{what} = {value!r} where a table should be")
    return value


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _refused(what: str) -> ArtifactError:
    return ArtifactError(f"the coreset's contract has {what}", code="invalid-contract")
