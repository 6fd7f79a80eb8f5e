"""DenseNet-121 for small images (Huang et al., 2017): bottleneck layers of growth rate 32,
transitions halving the channels.

A 3×3 convolution in place of the ImageNet stem. With ten classes 6,956,298 parameters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pseudocore.core.config import Count
from pseudocore.core.registry import models
from pseudocore.models.blocks import first_padding, normalisation
from pseudocore.models.convnet import Norm
from pseudocore.models.flat import FlatModel, Initial

_BLOCKS = (6, 12, 24, 16)


@models.register("densenet121", kind="images", paper="Huang et al. 2017")
@dataclass(frozen=True, kw_only=True)
class DenseNet121:
    """Densely connected network of 121 layers."""

    width: Count = 32
    """Growth rate: channels every layer adds."""
    norm: Norm = "batch"
    """Normalisation before each convolution but the first."""
    init: Initial = "torch"
    """Spread of the initial weights."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        padding, channels = first_padding("densenet121", shape), 2 * self.width
        with torch.device("meta"):
            layers: list[nn.Module] = [
                nn.Conv2d(shape[0], channels, 3, padding=padding, bias=self.norm == "none")
            ]
            for block, num_layers in enumerate(_BLOCKS):
                if block > 0:
                    layers += [*_layer(channels, channels // 2, 1, self.norm), nn.AvgPool2d(2)]
                    channels //= 2
                for _ in range(num_layers):
                    layers.append(_Dense(channels, self.width, self.norm))
                    channels += self.width
            body = nn.Sequential(
                *layers,
                normalisation(self.norm, channels),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
            )
        description = {
            "name": "densenet121",
            "width": self.width,
            "norm": self.norm,
            "init": self.init,
        }
        return FlatModel(body, channels, num_classes, description, self.init)


class _Dense(nn.Module):
    """Hands on its input with `growth` new channels, found through a bottleneck of four times as
    many.
    """

    def __init__(self, channels: int, growth: int, norm: Norm) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_layer(channels, 4 * growth, 1, norm), *_layer(4 * growth, growth, 3, norm)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.layers(x), x], 1)


def _layer(channels: int, width: int, size: int, norm: Norm) -> list[nn.Module]:
    """Norm, ReLU, convolution."""
    return [
        normalisation(norm, channels),
        nn.ReLU(),
        nn.Conv2d(channels, width, size, padding=size // 2, bias=norm == "none"),
    ]
