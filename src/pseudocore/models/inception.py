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
from pseudocore.models.blocks import first_padding, unit
from pseudocore.models.convnet import Norm
from pseudocore.models.flat import FlatModel, Initial

Size = int | tuple[int, int]
Unit = Callable[..., nn.Module]
"""(channels, width, size, stride=1) to convolution, norm, ReLU; channels and widths are the
paper's.
"""


@models.register("inception-v3", kind="images", paper="Szegedy et al. 2016")
@dataclass(frozen=True, kw_only=True)
class InceptionV3:
    """Eleven mixed blocks of parallel convolutions."""

    width: Count = 64
    """Channels of the first branch, a multiple of 4; all others follow in proportion."""
    norm: Norm = "batch"
    """Normalisation after each convolution."""
    init: Initial = "torch"
    """Spread of the initial weights."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        padding = first_padding("inception-v3", shape)
        if self.width % 4:
            raise ConfigError(
                f"the width of 'inception-v3' must be a multiple of 4, not {self.width}; its branches are in proportion"
            )

        def scaled(channels: int) -> int:
            return channels * self.width // 64

        def conv(channels: int, width: int, size: Size, stride: int = 1) -> nn.Module:
            around = (0, 0) if stride > 1 else tuple(side // 2 for side in _pair(size))
            parts = unit(
                scaled(channels),
                scaled(width),
                size,
                self.norm,
                stride=stride,
                padding=(around[0], around[1]),
            )
            return nn.Sequential(*parts, nn.ReLU())

        with torch.device("meta"):
            stem = [*unit(shape[0], scaled(192), 3, self.norm, padding=padding), nn.ReLU()]
            body = nn.Sequential(*stem, *_blocks(conv), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        description = {
            "name": "inception-v3",
            "width": self.width,
            "norm": self.norm,
            "init": self.init,
        }
        return FlatModel(body, scaled(2048), num_classes, description, self.init)


class _Parallel(nn.Module):
    """The outputs of all branches, one after the other in channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _blocks(conv: Unit) -> list[nn.Module]:
    fine = [_fine(conv, 192, 32), _fine(conv, 256, 64), _fine(conv, 288, 64)]
    medium = [_medium(conv, width) for width in (128, 160, 160, 192)]
    return [
        *fine,
        _to_medium(conv),
        *medium,
        _to_coarse(conv),
        _coarse(conv, 1280),
        _coarse(conv, 2048),
    ]


def _fine(conv: Unit, channels: int, pooled: int) -> nn.Module:
    return _Parallel(
        conv(channels, 64, 1),
        nn.Sequential(conv(channels, 48, 1), conv(48, 64, 5)),
        nn.Sequential(conv(channels, 64, 1), conv(64, 96, 3), conv(96, 96, 3)),
        nn.Sequential(_average(), conv(channels, pooled, 1)),
    )


def _to_medium(conv: Unit) -> nn.Module:
    return _Parallel(
        conv(288, 384, 3, 2),
        nn.Sequential(conv(288, 64, 1), conv(64, 96, 3), conv(96, 96, 3, 2)),
        nn.MaxPool2d(3, 2),
    )


def _medium(conv: Unit, width: int) -> nn.Module:
    row, column = (1, 7), (7, 1)
    twice = [
        conv(width, width, column),
        conv(width, width, row),
        conv(width, width, column),
        conv(width, 192, row),
    ]
    return _Parallel(
        conv(768, 192, 1),
        nn.Sequential(conv(768, width, 1), conv(width, width, row), conv(width, 192, column)),
        nn.Sequential(conv(768, width, 1), *twice),
        nn.Sequential(_average(), conv(768, 192, 1)),
    )


def _to_coarse(conv: Unit) -> nn.Module:
    return _Parallel(
        nn.Sequential(conv(768, 192, 1), conv(192, 320, 3, 2)),
        nn.Sequential(
            conv(768, 192, 1), conv(192, 192, (1, 7)), conv(192, 192, (7, 1)), conv(192, 192, 3, 2)
        ),
        nn.MaxPool2d(3, 2),
    )


def _coarse(conv: Unit, channels: int) -> nn.Module:
    return _Parallel(
        conv(channels, 320, 1),
        nn.Sequential(
            conv(channels, 384, 1), _Parallel(conv(384, 384, (1, 3)), conv(384, 384, (3, 1)))
        ),
        nn.Sequential(
            conv(channels, 448, 1),
            conv(448, 384, 3),
            _Parallel(conv(384, 384, (1, 3)), conv(384, 384, (3, 1))),
        ),
        nn.Sequential(_average(), conv(channels, 192, 1)),
    )


def _average() -> nn.Module:
    return nn.AvgPool2d(3, 1, 1)


def _pair(size: Size) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)
