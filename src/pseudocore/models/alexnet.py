"""AlexNet for small images, in the form of the dataset-condensation papers (Zhao et al., 2021,
after Krizhevsky et al., 2012).

Two 5×5 and three 3×3 convolutions of 128, 192, 256, 192, 192 channels, max pooling after the first,
second and last, one linear head on the 4×4 map that is left; no norm. With ten classes 1,872,202
parameters.
"""

from dataclasses import dataclass

import torch
from torch import nn

from pseudocore.core.config import Count
from pseudocore.core.registry import models
from pseudocore.models.blocks import first_padding, unit
from pseudocore.models.convnet import Norm
from pseudocore.models.flat import FlatModel, Initial


@models.register("alexnet", kind="images", paper="Krizhevsky et al. 2012")
@dataclass(frozen=True, kw_only=True)
class AlexNet:
    """Five convolutions, three poolings, no norm."""

    width: Count = 128
    """Channels of the first convolution; the others follow in proportion."""
    norm: Norm = "none"
    """Normalisation after each convolution."""
    init: Initial = "torch"
    """Spread of the initial weights."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        padding, channels = first_padding("alexnet", shape, padding=2), shape[0]
        layers: list[nn.Module] = []
        with torch.device("meta"):
            for halves, size, pool in (
                (2, 5, True),
                (3, 5, True),
                (4, 3, False),
                (3, 3, False),
                (3, 3, True),
            ):
                outputs = max(1, halves * self.width // 2)
                around = size // 2 if layers else padding
                layers += [
                    *unit(channels, outputs, size, self.norm, padding=around, bias=True),
                    nn.ReLU(),
                ]
                layers += [nn.MaxPool2d(2)] if pool else []
                channels = outputs
            body = nn.Sequential(*layers, nn.Flatten())
        description = {"name": "alexnet", "width": self.width, "norm": self.norm, "init": self.init}
        return FlatModel(body, channels * 16, num_classes, description, self.init)
