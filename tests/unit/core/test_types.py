"""Datasets and coresets: what they refuse, and the few things they compute."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudocore.core.errors import DataError
from pseudocore.core.types import Coreset, Dataset, Examples

X = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
Y = torch.tensor([0, 1, 0])
IMAGES = torch.arange(12, dtype=torch.uint8).reshape(3, 1, 2, 2)


def dataset(
    x: Tensor = X, y: Tensor = Y, num_classes: int = 2, test: Examples | None = None
) -> Dataset:
    return Dataset("toy", Examples(x, y), test or Examples(X, Y), num_classes)


def spoilt(value: float) -> Tensor:
    x = X.clone()
    x[1, 0] = value
    return x


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: dataset(y=Y[:2]), "lengths-differ"),
        (lambda: dataset(X[:0], Y[:0]), "no-examples"),
        (lambda: dataset(test=Examples(X[:0], Y[:0])), "no-examples"),
        (lambda: dataset(y=Y.float()), "labels"),
        (lambda: dataset(y=Y.int()), "labels"),
        (lambda: dataset(y=Y[:, None]), "labels"),
        (lambda: dataset(y=Y + 1), "labels"),
        (lambda: dataset(y=Y - 1), "labels"),
        (lambda: dataset(test=Examples(X, Y + 5)), "labels"),
        (lambda: dataset(X[:, 0]), "shape"),
        (lambda: dataset(X[:, :0]), "shape"),
        (lambda: dataset(IMAGES.flatten(1)), "shape"),
        (lambda: dataset(X.long()), "dtype"),
        (lambda: dataset(spoilt(math.nan)), "not-finite"),
        (lambda: dataset(test=Examples(spoilt(math.inf), Y)), "not-finite"),
        (lambda: dataset(X[:, :1]), "shapes-differ"),
        (lambda: dataset(torch.ones(3, 2)), "constant-inputs"),
        (lambda: dataset(num_classes=4), "empty-class"),
        (lambda: dataset(y=torch.tensor([0, 2**40, 0]), num_classes=2**40 + 1), "empty-class"),
        (lambda: dataclasses.replace(dataset(), class_names=("a",)), "class-names"),
    ],
)
def test_a_dataset_refuses(make: Callable[[], Dataset], code: str) -> None:
    with pytest.raises(DataError) as caught:
        make()
    assert caught.value.code == code
    assert caught.value.fields["data"] == "toy"


def test_a_test_split_may_lack_a_class() -> None:
    assert dataset(test=Examples(X[:1], Y[:1])).num_classes == 2


def test_shape_kind_and_counts() -> None:
    features, images = dataset(), dataset(IMAGES, test=Examples(IMAGES, Y))
    assert (features.shape, features.is_images) == ((2,), False)
    assert (images.shape, images.is_images) == ((1, 2, 2), True)
    assert features.class_counts.tolist() == [2, 1]


def test_the_fingerprint_is_that_of_the_content() -> None:
    first = dataset().fingerprint
    assert (
        first
        == Dataset("another name", Examples(X.clone(), Y.clone()), Examples(X, Y), 2).fingerprint
    )
    assert len(first) == 64
    others = {
        "value": dataset(spoilt(7.0)),
        "label": dataset(y=torch.tensor([1, 1, 0])),
        "type": dataset(X.double(), test=Examples(X.double(), Y)),
        "test": dataset(test=Examples(spoilt(7.0), Y)),
        "order": dataset(X.flip(0), Y.flip(0)),
        "shape": dataset(X[:, :, None], test=Examples(X[:, :, None], Y)),
    }
    prints = [first, *(other.fingerprint for other in others.values())]
    assert len(set(prints)) == len(prints)


def test_the_fingerprint_reads_values_not_memory() -> None:
    strided = torch.stack([X, X + 1], -1)[..., 0]
    assert not strided.is_contiguous()
    assert dataset(strided).fingerprint == dataset().fingerprint


ONES = torch.ones(3)


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"y": Y[:2]}, "lengths-differ"),
        ({"weight": ONES[:1]}, "lengths-differ"),
        ({"indices": torch.tensor([0])}, "lengths-differ"),
        ({"x": X[:0], "y": Y[:0], "weight": ONES[:0]}, "no-examples"),
        ({"y": Y.float()}, "labels"),
        ({"y": Y[:, None]}, "labels"),
        ({"x": spoilt(math.nan)}, "not-finite"),
        ({"x": spoilt(-math.inf)}, "not-finite"),
        ({"y": spoilt(math.nan)}, "not-finite"),
        ({"weight": torch.tensor([1.0, math.nan, 1.0])}, "not-finite"),
        ({"weight": ONES.long()}, "weights"),
        ({"weight": torch.tensor([1.0, -0.1, 1.0])}, "weights"),
        ({"weight": torch.zeros(3)}, "weights"),
    ],
)
def test_a_coreset_refuses(parts: dict[str, Any], code: str) -> None:
    with pytest.raises(DataError) as caught:
        Coreset(**{"x": X, "y": Y, "weight": ONES, **parts})
    assert caught.value.code == code


def test_labels_of_hard_and_soft_coresets() -> None:
    hard = Coreset(X, Y, ONES)
    soft = Coreset(X, torch.tensor([[0.1, 0.9], [-3.0, -4.0], [0.0, 0.5]]), ONES)
    assert (len(hard), hard.is_soft, hard.labels.tolist()) == (3, False, [0, 1, 0])
    assert (len(soft), soft.is_soft, soft.labels.tolist()) == (3, True, [1, 0, 1])


def test_a_weight_of_zero_is_allowed_beside_others() -> None:
    assert Coreset(X, Y, torch.tensor([0.0, 0.0, 2.0])).weight.tolist() == [0.0, 0.0, 2.0]


def test_targets_are_labels_distributions_or_scaled_logits() -> None:
    assert torch.equal(Coreset(X, Y, ONES).targets, Y)
    distributions = torch.tensor([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]])
    assert torch.equal(Coreset(X, distributions, ONES).targets, distributions)
    outputs = torch.tensor([[0.5, -0.5], [-0.5, 0.5], [0.0, 0.0]])
    odds = math.exp(1.0)  # of the two classes of the first point, at scale 1
    assert Coreset(X, outputs, ONES).targets[0].tolist() == pytest.approx(
        [odds / (1 + odds), 1 / (1 + odds)]
    )
    scaled = Coreset(X, outputs, ONES, provenance={"posterior": {"logit_scale": 3.0}}).targets
    assert scaled[0, 0].item() == pytest.approx(odds**3 / (1 + odds**3))
    assert scaled[2].tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(
    "value", [0.0, -1.0, 1e300, 1e-300, math.inf, math.nan, "3", None, True, [1.0]]
)
def test_a_strangers_learned_numbers_are_checked(value: Any) -> None:
    with pytest.raises(DataError, match="positive numbers by name, of ordinary size"):
        _ = Coreset(X, Y, ONES, provenance={"posterior": {"logit_scale": value}}).learned


def test_provenance_grows_by_copies() -> None:
    first = Coreset(X, Y, ONES, provenance={"method": "random", "seed": 0})
    second = first.with_provenance(seed=1, data="toy")
    assert first.provenance == {"method": "random", "seed": 0}
    assert second.provenance == {"method": "random", "seed": 1, "data": "toy"}
    assert second.x is first.x
    assert Coreset(X, Y, ONES).provenance == {}


def test_values_cannot_be_reassigned() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Coreset(X, Y, ONES).x = X  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset().num_classes = 3  # type: ignore[misc]
