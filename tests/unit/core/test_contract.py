"""A contract comes back as it was, and nothing in one is taken for granted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pseudocore.core.contract import Contract, DataSpec
from pseudocore.core.errors import ArtifactError, DataError
from pseudocore.core.types import Dataset, Examples

TABLE: dict[str, Any] = {
    "data": {
        "name": "mine",
        "shape": [3, 4, 4],
        "dtype": "uint8",
        "num_classes": 2,
        "num_train": 90,
        "class_names": ["low", "high"],
        "fingerprint": "abc",
    },
    "model": {"model": "mlp", "width": 4},
    "preprocess": {"kind": "standard"},
    "prior": {"kind": "isotropic", "scale": 0.5},
    "inference": {"inference": "hmc", "num_draws": 3},
    "temperature": 1.0,
    "likelihood": "categorical",
    "total_weight": 90.0,
}
CONSTANTS = {"mean": torch.zeros(3, 1, 1), "std": torch.ones(3, 1, 1)}


def test_there_and_back() -> None:
    contract = Contract.from_table(TABLE, CONSTANTS)
    assert contract.to_table() == TABLE
    assert contract.data.shape == (3, 4, 4)
    assert contract.data.dtype is torch.uint8
    assert contract.data.is_images
    assert contract.constants.keys() == CONSTANTS.keys()


def test_what_a_data_set_says_of_itself() -> None:
    split = Examples(torch.rand(6, 5), torch.arange(6) % 2)
    spec = Dataset("mine", split, split, 2).spec
    assert (spec.name, spec.shape, spec.dtype, spec.num_train) == ("mine", (5,), torch.float32, 6)
    assert not spec.is_images


@pytest.mark.parametrize("what", ["train", "test", "class_counts"])
def test_examples_that_are_not_there(what: str) -> None:
    spec = Contract.from_table(TABLE, CONSTANTS).data
    with pytest.raises(DataError, match="only the coreset is at hand; give them") as caught:
        getattr(spec, what)
    assert (caught.value.code, caught.value.fields["data"]) == ("no-data", "mine")


def spoil(*path: str, value: Any) -> dict[str, Any]:
    """The table with another value at a path."""
    name, *rest = path
    inner = spoil_in(TABLE[name], rest, value) if rest else value
    return {**TABLE, name: inner}


def spoil_in(table: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    return {**table, path[0]: value}


@pytest.mark.parametrize(
    "table",
    [
        5,
        spoil("data", value=None),
        spoil("model", value="mlp"),
        spoil("prior", value=[1.0]),
        spoil("temperature", value=0.0),
        spoil("temperature", value=float("inf")),
        spoil("total_weight", value="many"),
        spoil("likelihood", value="os.system"),
        spoil("data", "shape", value=[]),
        spoil("data", "shape", value=[3, -4, 4]),
        spoil("data", "shape", value="3"),
        spoil("data", "num_classes", value=10**12),
        spoil("data", "num_classes", value=3),
        spoil("data", "num_classes", value=True),
        spoil("data", "num_train", value=0),
        spoil("data", "dtype", value="object"),
        spoil("data", "name", value=3),
        spoil("data", "class_names", value=[1, 2]),
        spoil("data", "fingerprint", value=["x"]),
    ],
)
def test_what_cannot_be_is_refused(table: Any) -> None:
    with pytest.raises(ArtifactError, match="the coreset's contract has") as caught:
        Contract.from_table(table, CONSTANTS)
    assert caught.value.code == "invalid-contract"


@pytest.mark.parametrize(
    "spoilt", [lambda x: x.long(), lambda x: x / 0, lambda x: x.to(torch.complex64)]
)
def test_constants_are_finite_floats(spoilt: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(ArtifactError) as caught:
        Contract.from_table(TABLE, {**CONSTANTS, "std": spoilt(CONSTANTS["std"])})
    assert caught.value.code == "invalid-contract"


def test_a_description_is_no_data_set() -> None:
    assert not isinstance(Contract.from_table(TABLE, CONSTANTS).data, Dataset)
    assert isinstance(Contract.from_table(TABLE, CONSTANTS).data, DataSpec)
