"""Pieces the CIFAR networks share: norms, convolution units, the check of image sizes."""

from torch import Tensor, nn

from pseudocore.core.errors import ConfigError
from pseudocore.models.convnet import Norm
from pseudocore.models.flat import BatchNorm


class Residual(nn.Module):
    """branch(x) + shortcut(x)."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.branch(x) + self.shortcut(x)
        return total


def first_padding(name: str, shape: tuple[int, ...], padding: int = 1) -> int:
    """Padding of the first convolution: 28×28 becomes 32×32 by it, so that five halvings divide it;
    other sizes are refused.
    """
    if len(shape) != 3 or shape[1:] not in ((32, 32), (28, 28)):
        raise ConfigError(
            f"model {name!r} takes images of 32×32 or 28×28, but inputs have shape {shape}; 'convnet3' takes images of other sizes, "
            "'mlp' any inputs"
        )
    return padding + 2 if shape[1] == 28 else padding


def normalisation(norm: Norm, channels: int) -> nn.Module:
    if norm == "none":
        return nn.Identity()
    return BatchNorm(channels) if norm == "batch" else nn.GroupNorm(channels, channels)


def unit(
    channels: int,
    width: int,
    size: int | tuple[int, int],
    norm: Norm,
    *,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    bias: bool = False,
) -> list[nn.Module]:
    """Convolution and norm. Where nothing normalises, the convolution has the bias a norm would
    have brought.
    """
    convolution = nn.Conv2d(channels, width, size, stride, padding, bias=bias or norm == "none")
    return [convolution, normalisation(norm, width)]
