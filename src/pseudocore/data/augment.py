"""Differentiable siamese augmentation (Zhao and Bilen, *Dataset Condensation with Differentiable
Siamese Augmentation*, 2021).

A call draws one operation of the strategy and its parameters. They are shared by the batch and by
every other batch called with the same `rng` ("siamese"), or one set per example. Choices joined
by `+` are made in turn: `crop+flip` does both, `crop_flip` either. All is drawn where the images
are, so nothing waits for the device. Where the drawn operation is not known to the host, all are
carried out and one is kept.

| operation | change |
|---|---|
| color | brightness x + b, saturation about the channel mean, contrast about the image mean |
| crop | shift by whole pixels, zeros move in |
| cutout | a square of zeros, centred anywhere, clipped at the border |
| flip | mirror left and right |
| scale | stretch each axis about the centre by its own factor, bilinear |
| rotate | turn about the centre, bilinear |

Operations act on network inputs, where zero is the mean of the data. Flipping is wrong for numerals
(MNIST, SVHN, digits).
"""

import itertools
import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple, cast

import torch
from torch import Tensor

from pseudocore.core import config
from pseudocore.core.config import Fraction, NonNegative, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import did_you_mean
from pseudocore.core.rng import Rng
from pseudocore.data.resample import crop, rotate, scale
from pseudocore.runtime.execution import as_number, repeated

OPERATIONS = ("color", "crop", "cutout", "flip", "scale", "rotate")


class Draw(NamedTuple):
    """One operation, drawn."""

    operation: str | Tensor
    """Its name, or its place in the choice as a tensor on the device."""
    uniform: Tensor
    """Numbers in [0, 1) that decide its parameters, (n, 3), or (1, 3) when shared."""


@dataclass(frozen=True)
class DSA:
    """One random, differentiable operation on a batch of images (n, channels, height, width), or
    several in turn.
    """

    strategy: str = "color_crop_cutout_flip_scale_rotate"
    """Operations to draw one from, joined by _; several choices in turn, joined by +."""
    siamese: bool = True
    """Whether one draw serves a whole batch, and every batch called with the same rng."""
    flip: Fraction = 0.5
    """Probability of mirroring."""
    scale: Annotated[float, Range(low=1)] = 1.2
    """Largest stretch of an axis; the smallest is its reciprocal."""
    rotate: NonNegative = 15.0
    """Largest turn in degrees, either way."""
    crop: Fraction = 0.125
    """Largest shift as a fraction of the image's side."""
    cutout: Fraction = 0.5
    """Side of the zero square as a fraction of the image's."""
    brightness: NonNegative = 1.0
    """Width of the interval around zero that the added constant comes from."""
    saturation: NonNegative = 2.0
    """Largest factor on deviations from the channel mean; the smallest is zero."""
    contrast: NonNegative = 0.5
    """Smallest factor on deviations from the image mean; the largest is one more."""

    def __post_init__(self) -> None:
        config.check(self)
        for name in self.operations:
            if name not in OPERATIONS:
                raise ConfigError(
                    f"unknown augmentation {name!r} in strategy {self.strategy!r}"
                    f"{did_you_mean(name, OPERATIONS)}; join any of {', '.join(OPERATIONS)} by "
                    "underscores to draw one of them, by + to do one after the other",
                    code="unknown-augmentation",
                    name=name,
                )
        if len(set(self.operations)) < len(self.operations):
            raise ConfigError(
                f"strategy {self.strategy!r} names an operation twice; name each at most once",
                code="repeated-augmentation",
            )

    @property
    def choices(self) -> tuple[tuple[str, ...], ...]:
        """What is drawn from, in turn."""
        return tuple(tuple(part.split("_")) for part in self.strategy.split("+"))

    @property
    def operations(self) -> tuple[str, ...]:
        return tuple(itertools.chain(*self.choices))

    def __call__(self, x: Tensor, rng: Rng) -> Tensor:
        return cast(Tensor, repeated(self.apply)(x, self.draw(rng, len(x), x.device)))

    def draw(self, rng: Rng, num: int, device: torch.device | str = "cpu") -> tuple[Draw, ...]:
        """Decide every choice for `num` examples."""
        choices = self.choices
        streams = [rng("choice", place) for place in range(len(choices))]
        return tuple(
            self._drawn(choice, rng if len(choices) == 1 else stream, num, device)
            for choice, stream in zip(choices, streams, strict=True)
        )

    def apply(self, x: Tensor, draws: tuple[Draw, ...]) -> Tensor:
        """Carry out draws, a pure function of both."""
        if x.ndim != 4:
            raise ConfigError(
                "DSA augments images (n, channels, height, width), not inputs of shape "
                f"{tuple(x.shape)}",
                code="augmentation-needs-images",
                shape=tuple(x.shape),
            )
        for choice, draw in zip(self.choices, draws, strict=True):
            x = self._chosen(x, choice, draw)
        return x

    def _drawn(
        self, choice: tuple[str, ...], rng: Rng, num: int, device: torch.device | str
    ) -> Draw:
        uniform = rng("values").uniform(1 if self.siamese else num, 3, device=device)
        if len(choice) == 1:
            return Draw(choice[0], uniform)
        place = as_number(rng("operation").integers(len(choice), device=device))
        return Draw(choice[place] if isinstance(place, int) else place, uniform)

    def _chosen(self, x: Tensor, choice: tuple[str, ...], draw: Draw) -> Tensor:
        u = draw.uniform.to(x.device)
        if isinstance(draw.operation, str):
            return self._changed(x, draw.operation, u)
        result = x
        for place, operation in enumerate(choice):
            drawn = draw.operation.to(x.device) == place
            result = torch.where(drawn, self._changed(x, operation, u), result)
        return result

    def _changed(self, x: Tensor, operation: str, uniform: Tensor) -> Tensor:
        u = uniform.unbind(1)
        height, width = x.shape[2:]
        if operation == "flip":
            return flip(x, u[0] < self.flip)
        if operation == "scale":
            return scale(x, *(1 / self.scale + (self.scale - 1 / self.scale) * v for v in u[:2]))
        if operation == "rotate":
            return rotate(x, (2 * u[0] - 1) * math.radians(self.rotate))
        if operation == "crop":
            down, right = round(self.crop * height), round(self.crop * width)
            return crop(x, _whole(u[0], 2 * down + 1) - down, _whole(u[1], 2 * right + 1) - right)
        if operation == "cutout":
            return cutout(x, _whole(u[0], height), _whole(u[1], width), self.cutout)
        x = brightness(x, (u[0] - 0.5) * self.brightness)
        x = saturation(x, u[1] * self.saturation)
        return contrast(x, u[2] + self.contrast)


def flip(x: Tensor, mirrored: Tensor) -> Tensor:
    """Mirror left and right where `mirrored`, (1,) or (n,)."""
    return torch.where(mirrored.view(-1, 1, 1, 1), x.flip(-1), x)


def cutout(x: Tensor, row: Tensor, column: Tensor, fraction: float) -> Tensor:
    """Zero a rectangle of `fraction` of each side around pixels (row, column), (1,) or (n,)."""
    rows, columns = _covered(row, x.shape[2], fraction), _covered(column, x.shape[3], fraction)
    return x.masked_fill((rows[:, :, None] & columns[:, None, :]).unsqueeze(1), 0)


def brightness(x: Tensor, amount: Tensor) -> Tensor:
    """Add a constant, (1,) or (n,)."""
    return x + amount.to(x.dtype).view(-1, 1, 1, 1)


def saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply deviations from the mean of the channels of each pixel by a factor, (1,) or (n,)."""
    return _about(x, x.mean(1, keepdim=True), factor)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply deviations from the mean of the image by a factor, (1,) or (n,)."""
    return _about(x, x.mean((1, 2, 3), keepdim=True), factor)


def _whole(u: Tensor, high: int) -> Tensor:
    """Uniform on 0 .. high − 1; the largest float32 below 1 times `high` rounds below `high`."""
    return (u * high).long()


def _covered(centre: Tensor, length: int, fraction: float) -> Tensor:
    """Which pixels of one axis an interval around `centre` covers, (b, length)."""
    size = round(fraction * length)
    offset = torch.arange(length, device=centre.device) - (centre.view(-1, 1) - size // 2)
    return (offset >= 0) & (offset < size)


def _about(x: Tensor, centre: Tensor, factor: Tensor) -> Tensor:
    return centre + (x - centre) * factor.to(x.dtype).view(-1, 1, 1, 1)
