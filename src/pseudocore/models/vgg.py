"""VGG-11 and VGG-16 for small images (Simonyan & Zisserman, 2015): their convolutions with norms,
then one linear head.

With ten classes 9,231,114 and 14,728,266 parameters. As in the customary CIFAR form the
convolutions keep their biases under a norm.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from pseudocore.core.config import Count
from pseudocore.core.registry import models
from pseudocore.models.blocks import CifarNetwork, unit


@models.register("vgg11", kind="images", paper="Simonyan & Zisserman 2015")
@dataclass(frozen=True, kw_only=True)
class VGG11(CifarNetwork):
    """Eight 3×3 convolutions between five poolings."""

    width: Count = 64
    """Channels of the first convolution; the last has eight times as many."""

    stages: ClassVar[tuple[int, ...]] = (1, 1, 2, 2, 2)

    def layers(self, channels: int, padding: int) -> tuple[list[nn.Module], int]:
        layers: list[nn.Module] = []
        for stage, num_convolutions in enumerate(self.stages):
            width = self.width * min(2**stage, 8)
            for _ in range(num_convolutions):
                around = 1 if layers else padding
                layers += unit(channels, width, 3, self.norm, padding=around, bias=True)
                layers.append(nn.ReLU())
                channels = width
            layers.append(nn.MaxPool2d(2))
        return layers, channels


@models.register("vgg16", kind="images", paper="Simonyan & Zisserman 2015")
@dataclass(frozen=True, kw_only=True)
class VGG16(VGG11):
    """Thirteen 3×3 convolutions between five poolings."""

    stages: ClassVar[tuple[int, ...]] = (2, 2, 3, 3, 3)
