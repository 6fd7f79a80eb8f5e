"""Selectors that cover gradients say so when they choose mostly mislabelled examples."""

import warnings
from typing import Any

import pytest
import torch

import pseudocore as pc
from pseudocore.core.types import Coreset
from pseudocore.selection.facility_selection import _warn_of_noise
from pseudocore.selection.last_layer_gradients import LastLayer


def data(flipped: float) -> Any:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 20, generator=generator)
    y = (x[:, 0] > 0).long()
    flip = torch.rand(400, generator=generator) < flipped
    return x, torch.where(flip, 1 - y, y)


def test_noise_is_said() -> None:
    with pytest.warns(UserWarning, match="lcmat-s chose points of which its network gets"):
        pc.reduce("lcmat-s", "moons", model="mlp", per_class=10)


@pytest.mark.parametrize(("num_wrong", "is_said"), [(1, False), (3, False), (4, True), (9, True)])
def test_from_a_fifth_of_the_chosen_on(num_wrong: int, is_said: bool) -> None:
    """Of 100 examples 20 are wrong, and of 10 chosen ones `num_wrong`."""
    y = torch.zeros(100, dtype=torch.int64)
    logits = torch.tensor([[0.0, 1.0]] * 20 + [[1.0, 0.0]] * 80)
    layer = LastLayer(torch.ones(100, 1), logits.log_softmax(1), y)
    chosen = torch.arange(20 - num_wrong, 30 - num_wrong)
    coreset = Coreset(torch.ones(10, 1), y[:10], torch.ones(10), chosen)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _warn_of_noise(layer, coreset, "craig")
    assert bool(said) == is_said


def test_nothing_is_said_of_clean_labels() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pc.reduce("lcmat-s", data(0.0), model="mlp", width=16, per_class=10, pretrain_epochs=20)
