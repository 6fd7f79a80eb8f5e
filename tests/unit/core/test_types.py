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


REFUSED: dict[str, tuple[Callable[[], Dataset], str]] = {
    "lengths": (lambda: dataset(y=Y[:2]), "train split of 'toy' has 3 inputs but 2 labels"),
    "empty": (lambda: dataset(X[:0], Y[:0]), "train split of 'toy' is empty"),
    "empty test": (lambda: dataset(test=Examples(X[:0], Y[:0])), "test split of 'toy' is empty"),
    "float labels": (lambda: dataset(y=Y.float()), "vector of integers, not .* torch.float32"),
    "int32 labels": (lambda: dataset(y=Y.int()), "vector of integers, not .* torch.int32"),
    "matrix of labels": (lambda: dataset(y=Y[:, None]), r"vector of integers, not \(3, 1\)"),
    "label too high": (
        lambda: dataset(y=Y + 1),
        r"run from 1 to 2; with 2 classes they must lie in 0\.\.1",
    ),
    "label below zero": (lambda: dataset(y=Y - 1), r"run from -1 to 0"),
    "test label": (lambda: dataset(test=Examples(X, Y + 5)), "test split of 'toy' run from 5 to 6"),
    "flat images": (
        lambda: dataset(IMAGES.flatten(1)),
        r"must be \(n, channels, height, width\), not \(3, 4\)",
    ),
    "integer inputs": (lambda: dataset(X.long()), "uint8 images or floats, not torch.int64"),
    "nan": (
        lambda: dataset(spoilt(math.nan)),
        "1 of 3 inputs of the train split of 'toy' hold NaN or infinite",
    ),
    "inf": (lambda: dataset(test=Examples(spoilt(math.inf), Y)), "1 of 3 inputs of the test split"),
    "shapes differ": (lambda: dataset(X[:, :1]), r"shape \(1,\) but test inputs \(2,\)"),
    "constant": (lambda: dataset(torch.ones(3, 2)), "every value .* is the same"),
    "a class without examples": (
        lambda: dataset(num_classes=4),
        r"no training examples of class 2 in 'toy' \(2 empty in all\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_dataset_refuses(case: str) -> None:
    make, words = REFUSED[case]
    with pytest.raises(DataError, match=words):
        make()


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
    ("parts", "words"),
    [
        ({"y": Y[:2]}, "disagree about its size: .*'x': 3, 'y': 2"),
        ({"weight": ONES[:1]}, "disagree about its size: .*'weight': 1"),
        ({"indices": torch.tensor([0])}, "disagree about its size: .*'indices': 1"),
        ({"x": X[:0], "y": Y[:0], "weight": ONES[:0]}, "at least one point"),
        ({"y": Y.float()}, r"integers \(M,\) or floats \(M, classes\), not torch.float32 \(3,\)"),
        ({"y": Y[:, None]}, r"integers \(M,\) or floats \(M, classes\), not torch.int64 \(3, 1\)"),
        ({"x": spoilt(math.nan)}, "coreset x holds NaN"),
        ({"x": spoilt(-math.inf)}, "coreset x holds NaN or infinite"),
        ({"y": spoilt(math.nan)}, "coreset y holds NaN"),
        ({"weight": torch.tensor([1.0, math.nan, 1.0])}, "coreset weight holds NaN"),
        ({"weight": torch.tensor([1.0, -0.1, 1.0])}, "non-negative and not all zero"),
        ({"weight": torch.zeros(3)}, "non-negative and not all zero"),
    ],
)
def test_a_coreset_refuses(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        Coreset(**{"x": X, "y": Y, "weight": ONES, **parts})


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


def test_empty_inputs_and_a_stray_label_are_refused() -> None:
    y = torch.tensor([0, 1])
    with pytest.raises(DataError, match="are empty: each has shape"):
        Dataset("d", Examples(torch.ones(2, 0), y), Examples(torch.ones(2, 0), y), 2)
    x, stray = torch.tensor([[0.0], [1.0]]), torch.tensor([0, 2**40])
    with pytest.raises(DataError, match="no training examples of class 1 in 'd'"):
        Dataset("d", Examples(x, stray), Examples(x, stray), 2**40 + 1)
