"""What the CIFAR networks share: settings, the check of image sizes, norms and units."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from pseudocore.core.config import Count
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import models
from pseudocore.models.flat import BatchNorm, FlatModel, Initial

Norm = Literal["instance", "batch", "none"]
Size = int | tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class CifarNetwork(ABC):
    """Settings of a network for small images."""

    width: Count = 64
    """Channels of the first stage."""
    norm: Norm = "batch"
    """Normalisation after each convolution."""
    init: Initial = "torch"
    """Spread of the initial weights."""

    first_size: ClassVar[int] = 3
    """Of the first convolution's kernel."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        """The network for inputs of a shape, 3×32×32 or 1×28×28 for example."""
        name = models.name_of(self)
        if len(shape) != 3 or shape[1:] not in ((32, 32), (28, 28)):
            raise ConfigError(
                f"model {name!r} takes images of 32×32 or 28×28, but inputs have shape {shape}; "
                "'convnet3' takes images of other sizes, 'mlp' any inputs",
                code="model-input-shape",
                model=name,
                shape=shape,
            )
        # 28×28 is padded to 32×32, so that five halvings divide it
        padding = self.first_size // 2 + (2 if shape[1] == 28 else 0)
        with torch.device("meta"):
            layers, num_features = self.layers(shape[0], padding)
            body = nn.Sequential(*layers, nn.Flatten())
        description = {"name": name, "width": self.width, "norm": self.norm, "init": self.init}
        return FlatModel(body, num_features, num_classes, description, self.init)

    @abstractmethod
    def layers(self, channels: int, padding: int) -> tuple[list[nn.Module], int]:
        """The body on images of some channels, the first convolution padded, and its features."""


class Residual(nn.Module):
    """branch(x) + shortcut(x)."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.branch(x) + self.shortcut(x)
        return total


def normalisation(norm: Norm, channels: int) -> nn.Module:
    if norm == "none":
        return nn.Identity()
    return BatchNorm(channels) if norm == "batch" else nn.GroupNorm(channels, channels)


def unit(
    channels: int,
    width: int,
    size: Size,
    norm: Norm,
    *,
    stride: int = 1,
    padding: Size = 0,
    bias: bool = False,
) -> list[nn.Module]:
    """Convolution and norm. Without a norm the convolution has the bias that the norm would."""
    bias = bias or norm == "none"
    convolution = nn.Conv2d(channels, width, size, stride, padding, bias=bias)
    return [convolution, normalisation(norm, width)]


def preactivated(
    channels: int, width: int, norm: Norm, *, size: int = 3, stride: int = 1
) -> list[nn.Module]:
    """Norm, ReLU, convolution."""
    bias = norm == "none"
    convolution = nn.Conv2d(channels, width, size, stride, size // 2, bias=bias)
    return [normalisation(norm, channels), nn.ReLU(), convolution]
