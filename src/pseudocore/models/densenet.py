"""DenseNet-121 for small images (Huang et al., 2017): bottleneck layers of growth rate 32,
transitions halving the channels.

A 3×3 convolution in place of the ImageNet stem. With ten classes 6,956,298 parameters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pseudocore.core.config import Count
from pseudocore.core.registry import models
from pseudocore.models.blocks import CifarNetwork, Norm, normalisation, preactivated


@models.register("densenet121", kind="images", paper="Huang et al. 2017")
@dataclass(frozen=True, kw_only=True)
class DenseNet121(CifarNetwork):
    """Densely connected network of 121 layers."""

    width: Count = 32
    """Growth rate: channels every layer adds."""
    norm: Norm = "batch"
    """Normalisation before each convolution but the first."""

    def layers(self, channels: int, padding: int) -> tuple[list[nn.Module], int]:
        width, bias = 2 * self.width, self.norm == "none"
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=padding, bias=bias)]
        for block, num_layers in enumerate((6, 12, 24, 16)):
            if block > 0:
                layers += preactivated(width, width // 2, self.norm, size=1)
                layers.append(nn.AvgPool2d(2))
                width //= 2
            for _ in range(num_layers):
                layers.append(_Dense(width, self.width, self.norm))
                width += self.width
        layers += [normalisation(self.norm, width), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        return layers, width


class _Dense(nn.Module):
    """Passes on its input with `growth` new channels, by way of a bottleneck of four times as many."""

    def __init__(self, channels: int, growth: int, norm: Norm) -> None:
        super().__init__()
        narrow = preactivated(channels, 4 * growth, norm, size=1)
        self.layers = nn.Sequential(*narrow, *preactivated(4 * growth, growth, norm))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.layers(x), x], 1)
