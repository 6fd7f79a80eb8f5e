"""VGG-11 and VGG-16 for small images (Simonyan & Zisserman, 2015): their convolutions with norms,
then one linear head.

With ten classes 9,231,114 and 14,728,266 parameters. As in the customary CIFAR form the
convolutions keep their biases under a norm.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from pseudocore.core.config import Count
from pseudocore.core.registry import models
from pseudocore.models.blocks import first_padding, unit
from pseudocore.models.convnet import Norm
from pseudocore.models.flat import FlatModel, Initial


@models.register("vgg11", kind="images", paper="Simonyan & Zisserman 2015")
@dataclass(frozen=True, kw_only=True)
class VGG11:
    """Eight 3×3 convolutions between five poolings."""

    width: Count = 64
    """Channels of the first convolution; the last has eight times as many."""
    norm: Norm = "batch"
    """Normalisation after each convolution."""
    init: Initial = "torch"
    """Spread of the initial weights."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        return _vgg("vgg11", (1, 1, 2, 2, 2), self.width, self.norm, self.init, shape, num_classes)


@models.register("vgg16", kind="images", paper="Simonyan & Zisserman 2015")
@dataclass(frozen=True, kw_only=True)
class VGG16:
    """Thirteen 3×3 convolutions between five poolings."""

    width: Count = 64
    """Channels of the first convolution; the last has eight times as many."""
    norm: Norm = "batch"
    """Normalisation after each convolution."""
    init: Initial = "torch"
    """Spread of the initial weights."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        return _vgg("vgg16", (2, 2, 3, 3, 3), self.width, self.norm, self.init, shape, num_classes)


def _vgg(
    name: str,
    stages: Sequence[int],
    width: int,
    norm: Norm,
    initial: Initial,
    shape: tuple[int, ...],
    num_classes: int,
) -> FlatModel:
    padding, channels = first_padding(name, shape), shape[0]
    layers: list[nn.Module] = []
    with torch.device("meta"):
        for stage, num_convolutions in enumerate(stages):
            outputs = width * min(2**stage, 8)
            for _ in range(num_convolutions):
                layers += [
                    *unit(channels, outputs, 3, norm, padding=1 if layers else padding, bias=True),
                    nn.ReLU(),
                ]
                channels = outputs
            layers.append(nn.MaxPool2d(2))
        body = nn.Sequential(*layers, nn.Flatten())
    return FlatModel(
        body,
        channels,
        num_classes,
        {"name": name, "width": width, "norm": norm, "init": initial},
        initial,
    )
