"""WRN-16-8 (Zagoruyko & Komodakis, 2016): sixteen layers, eight times as wide as the first residual
networks for CIFAR.

Pre-activation blocks (norm, ReLU, convolution, twice), two in each of three stages of 16, 32, 64
times `width` channels. Where a stage begins, the shortcut is a 1×1 convolution of the activated
input. No dropout. With ten classes 10,961,370 parameters, the paper's 11.0 million.
"""

from dataclasses import dataclass

from torch import nn

from pseudocore.core.config import Count
from pseudocore.core.registry import models
from pseudocore.models.blocks import CifarNetwork, Norm, Residual, normalisation, preactivated


@models.register("wrn-16-8", kind="images", paper="Zagoruyko & Komodakis 2016")
@dataclass(frozen=True, kw_only=True)
class WideResNet(CifarNetwork):
    """Wide residual network of sixteen layers."""

    width: Count = 8
    """Widening factor: the stages have 16, 32 and 64 times as many channels."""
    norm: Norm = "batch"
    """Normalisation before each convolution but the first."""

    def layers(self, channels: int, padding: int) -> tuple[list[nn.Module], int]:
        bias = self.norm == "none"
        layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=padding, bias=bias)]
        channels = 16
        for stage in range(3):
            width = 16 * 2**stage * self.width
            again = [*preactivated(width, width, self.norm), *preactivated(width, width, self.norm)]
            layers += _widening(channels, width, 1 if stage == 0 else 2, self.norm)
            layers.append(Residual(nn.Sequential(*again), nn.Identity()))
            channels = width
        layers += [normalisation(self.norm, channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        return layers, channels


def _widening(channels: int, width: int, stride: int, norm: Norm) -> list[nn.Module]:
    """A stage's first block: branch and shortcut both start from the activated input."""
    activation, relu, first = preactivated(channels, width, norm, stride=stride)
    branch = nn.Sequential(first, *preactivated(width, width, norm))
    shortcut = nn.Conv2d(channels, width, 1, stride, bias=norm == "none")
    return [activation, relu, Residual(branch, shortcut)]
