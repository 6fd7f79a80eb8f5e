"""AlexNet for small images, in the form of the dataset-condensation papers (Zhao et al., 2021,
after Krizhevsky et al., 2012).

Two 5×5 and three 3×3 convolutions of 128, 192, 256, 192, 192 channels. Max pooling after the first,
second and last; one linear head on the 4×4 map that is left. There is no norm. With ten classes
1,872,202 parameters.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from pseudocore.core.config import Count
from pseudocore.core.registry import models
from pseudocore.models.blocks import CifarNetwork, Norm, unit


@models.register("alexnet", kind="images", paper="Krizhevsky et al. 2012")
@dataclass(frozen=True, kw_only=True)
class AlexNet(CifarNetwork):
    """Five convolutions, three poolings, no norm."""

    width: Count = 128
    """Channels of the first convolution; the others follow in proportion."""
    norm: Norm = "none"

    first_size: ClassVar[int] = 5

    def layers(self, channels: int, padding: int) -> tuple[list[nn.Module], int]:
        layers: list[nn.Module] = []
        sizes = (2, 5, True), (3, 5, True), (4, 3, False), (3, 3, False), (3, 3, True)
        for halves, size, pool in sizes:
            width = max(1, halves * self.width // 2)
            around = size // 2 if layers else padding
            layers += unit(channels, width, size, self.norm, padding=around, bias=True)
            layers += [nn.ReLU(), nn.MaxPool2d(2)] if pool else [nn.ReLU()]
            channels = width
        return layers, channels * 16
