"""ResNet-10 and ResNet-18 for small images (He et al., 2016), in the customary CIFAR form.

A 3×3 convolution in place of the ImageNet stem, four stages of basic blocks of width 1, 2, 4, 8
times `width`, global average pooling. With ten classes ResNet-18 has 11,173,962 parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from pseudocore.core.config import Count
from pseudocore.core.registry import models
from pseudocore.models.blocks import Residual, first_padding, unit
from pseudocore.models.convnet import Norm
from pseudocore.models.flat import FlatModel, Initial


@models.register("resnet10", kind="images", paper="He et al. 2016")
@dataclass(frozen=True, kw_only=True)
class ResNet10:
    """Residual network with one basic block per stage."""

    width: Count = 64
    """Channels of the first stage."""
    norm: Norm = "batch"
    """Normalisation after each convolution."""
    init: Initial = "torch"
    """Spread of the initial weights."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        return _resnet(
            "resnet10", (1, 1, 1, 1), self.width, self.norm, self.init, shape, num_classes
        )


@models.register("resnet18", kind="images", paper="He et al. 2016")
@dataclass(frozen=True, kw_only=True)
class ResNet18:
    """Residual network with two basic blocks per stage."""

    width: Count = 64
    """Channels of the first stage."""
    norm: Norm = "batch"
    """Normalisation after each convolution."""
    init: Initial = "torch"
    """Spread of the initial weights."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        return _resnet(
            "resnet18", (2, 2, 2, 2), self.width, self.norm, self.init, shape, num_classes
        )


def _resnet(
    name: str,
    stages: Sequence[int],
    width: int,
    norm: Norm,
    initial: Initial,
    shape: tuple[int, ...],
    num_classes: int,
) -> FlatModel:
    padding = first_padding(name, shape)
    with torch.device("meta"):
        layers = [*unit(shape[0], width, 3, norm, padding=padding), nn.ReLU()]
        channels = width
        for stage, num_blocks in enumerate(stages):
            for block in range(num_blocks):
                outputs = width * 2**stage
                layers += [
                    _block(channels, outputs, 2 if stage > 0 and block == 0 else 1, norm),
                    nn.ReLU(),
                ]
                channels = outputs
        body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return FlatModel(
        body,
        channels,
        num_classes,
        {"name": name, "width": width, "norm": norm, "init": initial},
        initial,
    )


def _block(channels: int, width: int, stride: int, norm: Norm) -> Residual:
    branch = [
        *unit(channels, width, 3, norm, stride=stride, padding=1),
        nn.ReLU(),
        *unit(width, width, 3, norm, padding=1),
    ]
    same = stride == 1 and channels == width
    return Residual(
        nn.Sequential(*branch),
        nn.Identity() if same else nn.Sequential(*unit(channels, width, 1, norm, stride=stride)),
    )
