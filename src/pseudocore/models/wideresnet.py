"""WRN-16-8 (Zagoruyko & Komodakis, 2016): sixteen layers, eight times as wide as the first residual
networks for CIFAR.

Pre-activation blocks (norm, ReLU, convolution, twice), two in each of three stages of 16, 32, 64
times `width` channels; where a stage begins, the shortcut is a 1×1 convolution of the activated
input. No dropout. With ten classes 10,961,370 parameters, the paper's 11.0 million.
"""

from dataclasses import dataclass

import torch
from torch import nn

from pseudocore.core.config import Count
from pseudocore.core.registry import models
from pseudocore.models.blocks import Residual, first_padding, normalisation
from pseudocore.models.convnet import Norm
from pseudocore.models.flat import FlatModel, Initial


@models.register("wrn-16-8", kind="images", paper="Zagoruyko & Komodakis 2016")
@dataclass(frozen=True, kw_only=True)
class WideResNet:
    """Wide residual network of sixteen layers."""

    width: Count = 8
    """Widening factor: the stages have 16, 32 and 64 times as many channels."""
    norm: Norm = "batch"
    """Normalisation before each convolution but the first."""
    init: Initial = "torch"
    """Spread of the initial weights."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        padding = first_padding("wrn-16-8", shape)
        with torch.device("meta"):
            layers: list[nn.Module] = [
                nn.Conv2d(shape[0], 16, 3, padding=padding, bias=self.norm == "none")
            ]
            channels = 16
            for stage, outputs in enumerate(16 * 2**stage * self.width for stage in range(3)):
                again = nn.Sequential(*_half(outputs, self.norm), *_half(outputs, self.norm))
                layers += [
                    *_widening(channels, outputs, 1 if stage == 0 else 2, self.norm),
                    Residual(again, nn.Identity()),
                ]
                channels = outputs
            body = nn.Sequential(
                *layers,
                normalisation(self.norm, channels),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
            )
        description = {
            "name": "wrn-16-8",
            "width": self.width,
            "norm": self.norm,
            "init": self.init,
        }
        return FlatModel(body, channels, num_classes, description, self.init)


def _widening(channels: int, width: int, stride: int, norm: Norm) -> list[nn.Module]:
    """A stage's first block: branch and shortcut both start from the activated input."""
    first = nn.Conv2d(channels, width, 3, stride, 1, bias=norm == "none")
    shortcut = nn.Conv2d(channels, width, 1, stride, bias=norm == "none")
    return [
        normalisation(norm, channels),
        nn.ReLU(),
        Residual(nn.Sequential(first, *_half(width, norm)), shortcut),
    ]


def _half(width: int, norm: Norm) -> list[nn.Module]:
    """Norm, ReLU, convolution."""
    return [
        normalisation(norm, width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, bias=norm == "none"),
    ]
