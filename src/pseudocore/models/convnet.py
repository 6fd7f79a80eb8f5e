"""The family's convolutional networks: blocks of 3×3 convolution, norm, ReLU, 2×2 average pool;
then a linear head.

`convnet3` is the network of the pseudo-coreset and condensation papers (320,010 parameters at
3×32×32 and 10 classes); `convnet-wide` doubles its width block by block, as in FRePo and VBPC.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import nn

from pseudocore.core.config import Count, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import models
from pseudocore.models.flat import BatchNorm, FlatModel, Initial
from pseudocore.models.norm_pool import Block

Norm = Literal["instance", "batch", "none"]
Depth = Annotated[int | None, Range(low=1)]


@models.register("convnet3", kind="images")
@dataclass(frozen=True, kw_only=True)
class ConvNet:
    """Convolutional blocks of equal width."""

    width: Count = 128
    """Channels of every block."""
    depth: Depth = None
    """Blocks; unless told, 3 at 32×32, one more for each doubling of the image, never fewer than 2.
    """
    norm: Norm = "instance"
    """Normalisation after each convolution."""
    init: Initial = "torch"
    """Spread of the initial weights."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        return _convnet(
            "convnet3",
            [self.width] * (self.depth or _depth(shape)),
            self.norm,
            self.init,
            shape,
            num_classes,
        )


@models.register("convnet-wide", kind="images")
@dataclass(frozen=True, kw_only=True)
class ConvNetWide:
    """Convolutional blocks whose width doubles from one to the next."""

    width: Count = 128
    """Channels of the first block."""
    depth: Depth = None
    """Blocks; unless told, 3 at 32×32, one more for each doubling of the image, never fewer than 2.
    """
    norm: Norm = "none"
    """Normalisation after each convolution."""
    init: Initial = "lecun"
    """Spread of the initial weights."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        widths = [self.width * 2**block for block in range(self.depth or _depth(shape))]
        return _convnet("convnet-wide", widths, self.norm, self.init, shape, num_classes)


def _depth(shape: tuple[int, ...]) -> int:
    """The family's convention: 3 blocks at 28 and 32, 4 at 64, 5 at 128; 2 for the digits' 8."""
    return max(2, (min(shape[1:], default=1) + 4).bit_length() - 3)


def _convnet(
    name: str,
    widths: list[int],
    norm: Norm,
    initial: Initial,
    shape: tuple[int, ...],
    num_classes: int,
) -> FlatModel:
    if len(shape) != 3:
        raise ConfigError(
            f"model {name!r} needs images, but inputs have shape {shape}; 'mlp' and 'linear' take any shape"
        )
    channels, *size = shape
    smallest = 2 ** len(widths)
    first_padding = (
        3 if size == [28, 28] else 1
    )  # 28×28 becomes 32×32, so that three poolings divide it evenly
    size = [side + 2 * (first_padding - 1) for side in size]
    if min(size) < smallest:
        raise ConfigError(
            f"model {name!r} of depth {len(widths)} needs images of at least {smallest}×{smallest}, not {shape}"
        )
    layers: list[nn.Module] = []
    for block, width in enumerate(widths):
        padding = first_padding if block == 0 else 1
        if norm == "instance":
            layers.append(Block(channels, width, size, padding))
        else:
            layers.append(nn.Conv2d(channels, width, 3, padding=padding, device="meta"))
            layers += [*([BatchNorm(width)] if norm == "batch" else []), nn.ReLU(), nn.AvgPool2d(2)]
        channels, size = width, [side // 2 for side in size]
    num_features = channels * size[0] * size[1]
    description = {
        "name": name,
        "width": widths[0],
        "depth": len(widths),
        "norm": norm,
        "init": initial,
    }
    return FlatModel(
        nn.Sequential(*layers, nn.Flatten()), num_features, num_classes, description, initial
    )
