"""The fifteen common corruptions (Hendrycks & Dietterich, 2019) with the severities of CIFAR-10-C,
for images of any size.

Each takes pixels in [0, 1] (n, channels, height, width), float64, a severity 1 to 5 and one random
stream per image, and gives pixels that may leave [0, 1]. Constants are those of the script that
made CIFAR-10-C. Lengths in pixels are the same at every image size, except those of the elastic
transform, which are shares of the side. Deviations:

1. `frost` lays procedural ice over the image (ridged clouds, tinted blue); theirs is cut from
   photographs.
2. `snow` and `motion_blur` keep their blurred layers in floats where theirs pass through 8-bit
   pictures.
3. Fog's clouds are made at the next power of two and cut to size.
"""

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pseudocore.core.errors import DataError
from pseudocore.core.optional import optional_module
from pseudocore.core.rng import Rng
from pseudocore.data.corruptions import warp

Distortion = Callable[[Tensor, int, Sequence[Rng]], Tensor]


def _gaussian_noise(x: Tensor, severity: int, rngs: Sequence[Rng]) -> Tensor:
    scale = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return x + scale * _each(rngs, lambda rng: rng.normal(*x.shape[1:], dtype=torch.float64))


def _shot_noise(x: Tensor, severity: int, rngs: Sequence[Rng]) -> Tensor:
    photons = (500, 250, 100, 75, 50)[severity - 1]
    pairs = zip(x, rngs, strict=True)
    counts = [torch.poisson(image * photons, rng.generator()) for image, rng in pairs]
    return torch.stack(counts) / photons


def _impulse_noise(x: Tensor, severity: int, rngs: Sequence[Rng]) -> Tensor:
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    struck = _each(rngs, lambda rng: rng("where").uniform(*x.shape[1:])) < share
    salt = _each(rngs, lambda rng: rng("what").uniform(*x.shape[1:])) < 0.5
    return torch.where(struck, salt.double(), x)


def _defocus_blur(x: Tensor, severity: int, _: Sequence[Rng]) -> Tensor:
    radius, soften = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[severity - 1]
    at = torch.arange(-2, 3, dtype=torch.float64)
    disc = (at[:, None] ** 2 + at**2 <= radius**2).double()
    edge = torch.exp(-0.5 * (torch.arange(-1, 2, dtype=torch.float64) / soften) ** 2)
    edge /= edge.sum()
    framed = F.pad(disc / disc.sum(), (1, 1, 1, 1))[None, None]
    return warp.filtered(x, F.conv2d(framed, torch.outer(edge, edge)[None, None])[0, 0])


def _glass_blur(x: Tensor, severity: int, rngs: Sequence[Rng]) -> Tensor:
    """Pixels copy a neighbour above or to the left; the official script means to swap them."""
    sigma, rounds = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[severity - 1]
    x = as_bytes(warp.blur(x, sigma)).double() / 255
    height, width = x.shape[-2:]
    image, row = torch.arange(len(x))[:, None, None], torch.arange(2, height)[:, None]
    column = torch.arange(2, width)
    for number in range(rounds):
        own = [rng(number) for rng in rngs]
        up, left = _each(own, lambda rng: rng.integers(2, 2, height - 2, width - 2)).unbind(1)
        pixels = x.permute(0, 2, 3, 1).clone()
        pixels[:, 2:, 2:] = x.permute(0, 2, 3, 1)[image, row - up, column - left]
        x = pixels.permute(0, 3, 1, 2)
    return warp.blur(x, sigma)


def _motion_blur(x: Tensor, severity: int, rngs: Sequence[Rng]) -> Tensor:
    radius, sigma = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))[severity - 1]
    degrees = 90 * _each(rngs, lambda rng: rng.uniform(1)).flatten() - 45
    return warp.motion_blur(x, radius, sigma, degrees)


def _zoom_blur(x: Tensor, severity: int, _: Sequence[Rng]) -> Tensor:
    """The mean of the image and of enlargements by 1.00, 1.01, …"""
    factors = [1 + step / 100 for step in range((6, 11, 16, 21, 26)[severity - 1])]
    enlarged = torch.stack([warp.zoom(x, factor) for factor in factors])
    return (x + enlarged.sum(0)) / (len(factors) + 1)


def _snow(x: Tensor, severity: int, rngs: Sequence[Rng]) -> Tensor:
    mean, scale, size, least, radius, sigma, keep = (
        (0.1, 0.2, 1.0, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1.0, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[severity - 1]
    noise = _each(rngs, lambda rng: rng("flakes").normal(1, *x.shape[2:], dtype=torch.float64))
    flakes = warp.zoom(mean + scale * noise, size)
    flakes = torch.where(flakes < least, 0.0, flakes).clamp(0, 1)
    degrees = 90 * _each(rngs, lambda rng: rng("wind").uniform(1)).flatten() - 135
    flakes = warp.motion_blur(flakes, radius, sigma, degrees)
    pale = torch.maximum(x, 1.5 * _grey(x) + 0.5)
    return keep * x + (1 - keep) * pale + flakes + flakes.rot90(2, (2, 3))


def _frost(x: Tensor, severity: int, rngs: Sequence[Rng]) -> Tensor:
    image, ice = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    ridges = 1 - (2 * _clouds(x, rngs, decay=1.3) - 1).abs()
    tint = torch.tensor([0.8, 0.9, 1.0] if x.shape[1] == 3 else [0.9], dtype=torch.float64)
    tint = tint[:, None, None]
    return image * x + ice * tint * (0.4 + 0.6 * ridges)


def _fog(x: Tensor, severity: int, rngs: Sequence[Rng]) -> Tensor:
    thickness, decay = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))[severity - 1]
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + thickness * _clouds(x, rngs, decay)) * brightest / (brightest + thickness)


def _brightness(x: Tensor, severity: int, _: Sequence[Rng]) -> Tensor:
    """Adds to the value of HSV; the channels grow in proportion, hue and saturation stay."""
    value = x.amax(1, keepdim=True)
    brighter = (value + (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]).clamp(max=1)
    return torch.where(value > 0, x * (brighter / value.clamp(min=1e-300)), brighter)


def _contrast(x: Tensor, severity: int, _: Sequence[Rng]) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1] + mean


def _elastic_transform(x: Tensor, severity: int, rngs: Sequence[Rng]) -> Tensor:
    """A random affine map of the image, then smooth displacements of its pixels."""
    strength, sigma, jitter = (
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    )[severity - 1]
    height, width = x.shape[-2:]
    side = min(height, width)
    # (column, row) of three corners of a square in the middle, and where they are to go
    middle, reach = torch.tensor([width // 2, height // 2], dtype=torch.float64), side // 3
    square = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
    corners = middle + reach * square
    offsets = 2 * _each(rngs, lambda rng: rng("corners").uniform(3, 2, dtype=torch.float64)) - 1
    moved = corners + jitter * side * offsets
    homogeneous = torch.cat([moved, torch.ones_like(moved[..., :1])], 2)
    back = torch.linalg.solve(homogeneous, corners.expand_as(moved))  # (n, 3, 2)
    axes = torch.arange(height).double(), torch.arange(width).double()
    row, column = torch.meshgrid(*axes, indexing="ij")
    pixels = torch.stack([column, row, torch.ones_like(row)], -1)
    source = torch.einsum("hwk,nkd->nhwd", pixels, back)
    x = warp.displace(x, source[..., 1], source[..., 0], about_edge_pixels=True)
    size = (2, height, width)
    noise = 2 * _each(rngs, lambda rng: rng("wander").uniform(*size, dtype=torch.float64)) - 1
    shift = strength * side * warp.blur(noise, sigma * side, truncate=3, mirror=True)
    return warp.displace(x, row + shift[:, 1], column + shift[:, 0], about_edge_pixels=False)


def _pixelate(x: Tensor, severity: int, _: Sequence[Rng]) -> Tensor:
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]

    def shrink_and_enlarge(pillow: Any, picture: Any) -> Any:
        size, box = picture.size, pillow.Resampling.BOX
        return picture.resize(tuple(int(side * share) for side in size), box).resize(size, box)

    return _by_pillow(x, shrink_and_enlarge)


def _jpeg_compression(x: Tensor, severity: int, _: Sequence[Rng]) -> Tensor:
    quality = (80, 65, 58, 50, 40)[severity - 1]

    def compress(pillow: Any, picture: Any) -> Any:
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=quality)
        return pillow.open(file)

    return _by_pillow(x, compress)


_KINDS = (
    _gaussian_noise,
    _shot_noise,
    _impulse_noise,
    _defocus_blur,
    _glass_blur,
    _motion_blur,
    _zoom_blur,
    _snow,
    _frost,
    _fog,
    _brightness,
    _contrast,
    _elastic_transform,
    _pixelate,
    _jpeg_compression,
)
DISTORTIONS: dict[str, Distortion] = {kind.__name__[1:]: kind for kind in _KINDS}


def _each(rngs: Sequence[Rng], draw: Callable[[Rng], Tensor]) -> Tensor:
    """One draw per image, from its own stream."""
    return torch.stack([draw(rng) for rng in rngs])


def _clouds(x: Tensor, rngs: Sequence[Rng], decay: float) -> Tensor:
    """One layer of clouds per image, (n, 1, height, width)."""
    height, width = x.shape[-2:]
    side = 2 ** math.ceil(math.log2(max(height, width)))
    noise = 2 * _each(rngs, lambda rng: rng.uniform(side, side, dtype=torch.float64)) - 1
    return warp.plasma(noise, decay)[:, None, :height, :width]


def _grey(x: Tensor) -> Tensor:
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    shares = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)[:, None, None]
    return (x * shares).sum(1, keepdim=True)


def as_bytes(x: Tensor) -> Tensor:
    """Pixels truncated to uint8, as in the official files; the margin keeps whole values whole."""
    return (255 * x.clamp(0, 1) + 1e-6).to(torch.uint8)


def _by_pillow(x: Tensor, change: Callable[[Any, Any], Any]) -> Tensor:
    """Every image changed by Pillow, as 8-bit grey or RGB."""
    if x.shape[1] not in (1, 3):
        message = f"this corruption works on grey or RGB images, not on {x.shape[1]} channels"
        raise DataError(message, code="not-images", shape=tuple(x.shape))
    pillow = optional_module("PIL.Image", "Pillow", "images")
    out = []
    for image in as_bytes(x).permute(0, 2, 3, 1).numpy():
        picture = pillow.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        out.append(np.asarray(change(pillow, picture)).reshape(image.shape))
    return torch.from_numpy(np.stack(out)).permute(0, 3, 1, 2).double() / 255
