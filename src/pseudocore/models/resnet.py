"""ResNet-10 and ResNet-18 for small images (He et al., 2016), in the customary CIFAR form.

A 3×3 convolution in place of the ImageNet stem, four stages of basic blocks of width 1, 2, 4, 8
times `width`, global average pooling. With ten classes ResNet-18 has 11,173,962 parameters.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from pseudocore.core.registry import models
from pseudocore.models.blocks import CifarNetwork, Norm, Residual, unit


@models.register("resnet10", kind="images", paper="He et al. 2016")
@dataclass(frozen=True, kw_only=True)
class ResNet10(CifarNetwork):
    """Residual network with one basic block per stage."""

    num_blocks: ClassVar[int] = 1

    def layers(self, channels: int, padding: int) -> tuple[list[nn.Module], int]:
        width = self.width
        layers = [*unit(channels, width, 3, self.norm, padding=padding), nn.ReLU()]
        channels = width
        for stage in range(4):
            for block in range(self.num_blocks):
                outputs = width * 2**stage
                stride = 2 if stage > 0 and block == 0 else 1
                layers += [_block(channels, outputs, stride, self.norm), nn.ReLU()]
                channels = outputs
        return [*layers, nn.AdaptiveAvgPool2d(1)], channels


@models.register("resnet18", kind="images", paper="He et al. 2016")
@dataclass(frozen=True, kw_only=True)
class ResNet18(ResNet10):
    """Residual network with two basic blocks per stage."""

    num_blocks: ClassVar[int] = 2


def _block(channels: int, width: int, stride: int, norm: Norm) -> Residual:
    first = unit(channels, width, 3, norm, stride=stride, padding=1)
    branch = nn.Sequential(*first, nn.ReLU(), *unit(width, width, 3, norm, padding=1))
    if stride == 1 and channels == width:
        return Residual(branch, nn.Identity())
    return Residual(branch, nn.Sequential(*unit(channels, width, 1, norm, stride=stride)))
