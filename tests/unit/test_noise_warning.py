"""Selectors that cover gradients say so when they choose mostly mislabelled examples."""

import warnings
from typing import Any

import pytest
import torch

import pseudocore as pc


def data(flipped: float) -> Any:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 20, generator=generator)
    y = (x[:, 0] > 0).long()
    flip = torch.rand(400, generator=generator) < flipped
    return x, torch.where(flip, 1 - y, y)


def test_noise_is_said() -> None:
    with pytest.warns(UserWarning, match="lcmat-s chose points of which its network gets"):
        pc.reduce("lcmat-s", "moons", model="mlp", per_class=10)


def test_nothing_is_said_of_clean_labels() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pc.reduce("lcmat-s", data(0.0), model="mlp", width=16, per_class=10, pretrain_epochs=20)
