"""Inception-v3 for small images (Szegedy et al., 2016): its eleven mixed blocks on a small stem.

The ImageNet stem, which takes 299×299 to 35×35, becomes one 3×3 convolution to the 192 channels the
first block expects; there is no auxiliary head and no dropout. Grids are 32, 15 and 7 wide. With
ten classes 21,638,954 parameters: the 23,834,568 of the ImageNet network without its auxiliary
head, with stem and head exchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pseudocore.core.config import Count
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import models
from pseudocore.models.blocks import CifarNetwork, Size, unit

Unit = Callable[..., nn.Module]
"""(channels, width, size, stride=1) to convolution, norm, ReLU, in the paper's numbers."""


@models.register("inception-v3", kind="images", paper="Szegedy et al. 2016")
@dataclass(frozen=True, kw_only=True)
class InceptionV3(CifarNetwork):
    """Eleven mixed blocks of parallel convolutions."""

    width: Count = 64
    """Channels of the first branch, a multiple of 4; all others follow in proportion."""

    def layers(self, channels: int, padding: int) -> tuple[list[nn.Module], int]:
        if self.width % 4:
            raise ConfigError(
                f"the width of 'inception-v3' must be a multiple of 4, not {self.width}; its "
                "branches are in proportion",
                code="inception-width",
                width=self.width,
            )

        def scaled(channels: int) -> int:
            return channels * self.width // 64

        def conv(channels: int, width: int, size: Size, stride: int = 1) -> nn.Module:
            row, column = size if isinstance(size, tuple) else (size, size)
            padding = (0, 0) if stride > 1 else (row // 2, column // 2)
            sizes = scaled(channels), scaled(width), size, self.norm
            return nn.Sequential(*unit(*sizes, stride=stride, padding=padding), nn.ReLU())

        stem = [*unit(channels, scaled(192), 3, self.norm, padding=padding), nn.ReLU()]
        return [*stem, *_blocks(conv), nn.AdaptiveAvgPool2d(1)], scaled(2048)


class _Parallel(nn.Module):
    """The outputs of all branches, concatenated in channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _blocks(conv: Unit) -> list[nn.Module]:
    fine = [_fine(conv, 192, 32), _fine(conv, 256, 64), _fine(conv, 288, 64)]
    medium = [_medium(conv, width) for width in (128, 160, 160, 192)]
    coarse = [_coarse(conv, 1280), _coarse(conv, 2048)]
    return [*fine, _to_medium(conv), *medium, _to_coarse(conv), *coarse]


def _chain(conv: Unit, channels: int, *units: tuple[int, Size]) -> nn.Sequential:
    """Convolutions of some (width, size) in a row."""
    layers = []
    for width, size in units:
        layers.append(conv(channels, width, size))
        channels = width
    return nn.Sequential(*layers)


def _pooled(conv: Unit, channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(channels, width, 1))


def _fine(conv: Unit, channels: int, pooled: int) -> nn.Module:
    return _Parallel(
        conv(channels, 64, 1),
        _chain(conv, channels, (48, 1), (64, 5)),
        _chain(conv, channels, (64, 1), (96, 3), (96, 3)),
        _pooled(conv, channels, pooled),
    )


def _to_medium(conv: Unit) -> nn.Module:
    twice = _chain(conv, 288, (64, 1), (96, 3))
    return _Parallel(conv(288, 384, 3, 2), twice.append(conv(96, 96, 3, 2)), nn.MaxPool2d(3, 2))


def _medium(conv: Unit, width: int) -> nn.Module:
    row, column = (1, 7), (7, 1)
    once = (width, 1), (width, row), (192, column)
    twice = (width, 1), (width, column), (width, row), (width, column), (192, row)
    return _Parallel(
        conv(768, 192, 1),
        _chain(conv, 768, *once),
        _chain(conv, 768, *twice),
        _pooled(conv, 768, 192),
    )


def _to_coarse(conv: Unit) -> nn.Module:
    once = _chain(conv, 768, (192, 1))
    twice = _chain(conv, 768, (192, 1), (192, (1, 7)), (192, (7, 1)))
    return _Parallel(
        once.append(conv(192, 320, 3, 2)), twice.append(conv(192, 192, 3, 2)), nn.MaxPool2d(3, 2)
    )


def _coarse(conv: Unit, channels: int) -> nn.Module:
    once = _chain(conv, channels, (384, 1))
    twice = _chain(conv, channels, (448, 1), (384, 3))
    return _Parallel(
        conv(channels, 320, 1),
        *(chain.append(_cross(conv)) for chain in (once, twice)),
        _pooled(conv, channels, 192),
    )


def _cross(conv: Unit) -> nn.Module:
    return _Parallel(conv(384, 384, (1, 3)), conv(384, 384, (3, 1)))
