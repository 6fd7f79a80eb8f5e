"""Fully connected networks: a multilayer perceptron, and its case without hidden layers,
(multinomial) logistic regression.
"""

import math
from dataclasses import dataclass

from torch import nn

from pseudocore.core.config import Count
from pseudocore.core.registry import models
from pseudocore.models.flat import FlatModel


@models.register("mlp", kind="any")
@dataclass(frozen=True, kw_only=True)
class MLP:
    """Hidden ReLU layers of equal width on the flattened input."""

    width: Count = 256
    """Units of every hidden layer."""
    depth: Count = 2
    """Hidden layers."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        layers: list[nn.Module] = [nn.Flatten()]
        size = math.prod(shape)
        for _ in range(self.depth):
            layers += [nn.Linear(size, self.width, device="meta"), nn.ReLU()]
            size = self.width
        description = {"name": "mlp", "width": self.width, "depth": self.depth}
        return FlatModel(nn.Sequential(*layers), size, num_classes, description)


@models.register("linear", kind="any")
@dataclass(frozen=True, kw_only=True)
class Linear:
    """Logistic regression: the features are the inputs themselves."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        body = nn.Sequential(nn.Flatten())
        return FlatModel(body, math.prod(shape), num_classes, {"name": "linear"})
