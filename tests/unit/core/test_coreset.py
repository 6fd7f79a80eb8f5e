"""A coreset as a value: some of its points, another device, a torch data set, a readable text."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import pseudocore
from pseudocore.core.types import Coreset

Fails = Callable[..., Any]


@pytest.fixture(scope="module")
def selected() -> Coreset:
    return pseudocore.reduce("uniform", "digits", per_class=2, model="linear").coreset


@pytest.fixture(scope="module")
def learned() -> Coreset:
    """With last-layer outputs as targets."""
    options: dict[str, Any] = {"num_steps": 2, "batch_size": 16, "pool_size": 1, "width": 4}
    return pseudocore.reduce("vbpc", "digits", per_class=1, **options).coreset


@pytest.mark.parametrize(
    "index",
    [3, -1, slice(2, 9, 3), [4, 1, 4], torch.tensor([0, 19]), torch.arange(20) % 3 == 0],
)
def test_some_of_the_points(selected: Coreset, index: Any) -> None:
    part, places = selected[index], torch.arange(20)[index].reshape(-1)
    assert len(part) == len(places)
    for name in ("x", "y", "weight", "indices"):
        assert torch.equal(getattr(part, name), getattr(selected, name)[places])
    assert part.provenance == selected.provenance
    assert part.contract is not None
    assert part.contract.total_weight == float(part.weight.sum())
    assert part.num_classes == 10  # also where points of some classes are left out


def test_points_out_of_reach_are_refused_and_iteration_ends(selected: Coreset) -> None:
    with pytest.raises(IndexError):
        selected[20]
    assert [int(point.labels) for point in selected] == selected.labels.tolist()
    with pytest.raises(pseudocore.PseudocoreError, match="at least one point"):
        selected[5:5]


def test_a_readable_text(selected: Coreset, learned: Coreset) -> None:
    total = f"{selected.weight.sum():g}"
    assert repr(selected) == (
        "Coreset(uniform on digits: 20 points of shape (1, 8, 8), 10 classes, hard labels,"
        f" weights of sum {total})"
    )
    assert "10 classes, soft labels" in repr(learned)
    bare = Coreset(torch.zeros(2, 3), torch.tensor([0, 1]), torch.ones(2))
    assert repr(bare).startswith("Coreset(2 points of shape (3,), 2 classes")


def test_probabilities_are_distributions(selected: Coreset, learned: Coreset) -> None:
    assert torch.equal(selected.probabilities, torch.eye(10)[selected.y])
    assert not torch.equal(learned.probabilities, learned.y)  # these are last-layer outputs
    assert torch.allclose(learned.probabilities.sum(1), torch.ones(10))
    assert learned.probabilities.argmax(1).tolist() == learned.labels.tolist()
    names = learned.class_names
    assert names == tuple("0123456789")
    assert replace(learned, contract=None).class_names == ()


def test_a_loader_takes_it(learned: Coreset) -> None:
    x, p, weight = next(iter(DataLoader(learned.dataset(), batch_size=10)))
    assert torch.equal(x, learned.x)
    assert torch.equal(p, learned.probabilities)
    assert torch.equal(weight, learned.weight)


def test_images_that_hold_several_are_not_given_as_one(selected: Coreset, fails: Fails) -> None:
    with fails("encoded-images", "hold several each"):
        selected.with_provenance(formation=2).dataset()


def test_another_device(selected: Coreset) -> None:
    moved = selected.to(torch.device("cpu"))
    assert all(
        torch.equal(getattr(moved, name), getattr(selected, name))
        for name in ("x", "y", "weight", "indices")
    )
    assert moved.contract is selected.contract


@pytest.mark.gpu
def test_a_gpu(selected: Coreset) -> None:
    moved = selected.to("cuda")
    assert {moved.x.device.type, moved.y.device.type, moved.weight.device.type} == {"cuda"}
    assert torch.equal(moved[3:5].to("cpu").x, selected[3:5].x)
