"""The family's convolutional networks: blocks of 3×3 convolution, norm, ReLU, 2×2 average pool;
then a linear head.

`convnet3` is the network of the pseudo-coreset and condensation papers (320,010 parameters at
3×32×32 and 10 classes); `convnet-wide` doubles its width block by block, as in FRePo and VBPC.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import nn

from pseudocore.core.config import Count, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import models
from pseudocore.models.blocks import Norm
from pseudocore.models.flat import BatchNorm, FlatModel, Initial
from pseudocore.models.norm_pool import Block


@models.register("convnet3", kind="images")
@dataclass(frozen=True, kw_only=True)
class ConvNet:
    """Convolutional blocks of equal width."""

    width: Count = 128
    """Channels of every block."""
    depth: Annotated[int | None, Range(low=1)] = None
    """Blocks. Defaults to 3 at 32×32, one more for each doubling of the image, at least 2."""
    norm: Norm = "instance"
    """Normalisation after each convolution."""
    init: Initial = "torch"
    """Spread of the initial weights."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        """The network for images of a shape."""
        name = models.name_of(self)
        if len(shape) != 3:
            raise ConfigError(
                f"model {name!r} needs images, but inputs have shape {shape}; 'mlp' and 'linear' "
                "take any shape",
                code="model-needs-images",
                model=name,
                shape=shape,
            )
        channels, *size = shape
        # 28×28 is padded to 32×32, so that three poolings divide it
        padding = 3 if size == [28, 28] else 1
        size = [side + 2 * (padding - 1) for side in size]
        widths = self._widths(self.depth or _default_depth(shape))
        smallest = 2 ** len(widths)
        if min(size) < smallest:
            raise ConfigError(
                f"model {name!r} of depth {len(widths)} needs images of at least "
                f"{smallest}×{smallest}, not {shape}",
                code="model-input-shape",
                model=name,
                shape=shape,
            )
        layers: list[nn.Module] = []
        for width in widths:
            if self.norm == "instance":
                layers.append(Block(channels, width, size, padding))
            else:
                layers.append(nn.Conv2d(channels, width, 3, padding=padding, device="meta"))
                layers += [BatchNorm(width)] if self.norm == "batch" else []
                layers += [nn.ReLU(), nn.AvgPool2d(2)]
            channels, size, padding = width, [side // 2 for side in size], 1
        description = {
            "name": name,
            "width": self.width,
            "depth": len(widths),
            "norm": self.norm,
            "init": self.init,
        }
        body, num_features = nn.Sequential(*layers, nn.Flatten()), channels * size[0] * size[1]
        return FlatModel(body, num_features, num_classes, description, self.init)

    def _widths(self, depth: int) -> list[int]:
        return [self.width] * depth


@models.register("convnet-wide", kind="images")
@dataclass(frozen=True, kw_only=True)
class ConvNetWide(ConvNet):
    """Convolutional blocks whose width doubles from one to the next."""

    width: Count = 128
    """Channels of the first block."""
    norm: Norm = "none"
    init: Initial = "lecun"

    def _widths(self, depth: int) -> list[int]:
        return [self.width * 2**block for block in range(depth)]


def _default_depth(shape: tuple[int, ...]) -> int:
    """The family's convention: 3 blocks at 28 and 32, 4 at 64, 5 at 128; 2 for the digits' 8."""
    return max(2, (min(shape[1:]) + 4).bit_length() - 3)
