"""Image operations behind the corruptions, on batches of float64 images (n, channels, height,
width).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def blur(x: Tensor, sigma: float, *, truncate: float = 4.0, mirror: bool = False) -> Tensor:
    """Gaussian blur, cut off at `truncate` deviations; the edge is repeated, or mirrored."""
    rows, columns = (_smoothing(size, sigma, truncate, mirror).to(x) for size in x.shape[-2:])
    return rows @ x @ columns.T


def filtered(x: Tensor, kernel: Tensor) -> Tensor:
    """Every channel filtered by a small odd square kernel, mirrored about the edge's pixels."""
    radius = kernel.shape[0] // 2
    padded = F.pad(x, (radius,) * 4, mode="reflect")
    return F.conv2d(padded.flatten(0, 1)[:, None], kernel.to(x)[None, None]).view(x.shape)


def motion_blur(x: Tensor, radius: int, sigma: float, degrees: Tensor) -> Tensor:
    """The mean along a half-line from each pixel, weighted by half a Gaussian; directions (n,).

    ImageMagick's operation, as in the official corruptions: 2·radius + 1 steps in whole pixels, the
    edge repeated.
    """
    steps = torch.arange(2 * radius + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (steps / sigma) ** 2)
    weights /= weights.sum()
    angle = torch.deg2rad(degrees.double())[:, None]
    down, across = ((steps * slope - 0.5).ceil().long() for slope in (angle.sin(), angle.cos()))
    n, _, height, width = x.shape
    image, row = torch.arange(n)[:, None, None], torch.arange(height)[:, None]
    column = torch.arange(width)
    pixels = x.permute(0, 2, 3, 1)
    out = torch.zeros_like(pixels)
    for step, weight in enumerate(weights.tolist()):
        from_row = (row + down[:, step, None, None]).clamp(0, height - 1)
        from_column = (column + across[:, step, None, None]).clamp(0, width - 1)
        out += weight * pixels[image, from_row, from_column]
    return out.permute(0, 3, 1, 2)


def zoom(x: Tensor, factor: float) -> Tensor:
    """The middle of each image enlarged to its full size, interpolated linearly."""
    size = x.shape[-2:]
    crop = [math.ceil(side / factor) for side in size]
    top, left = ((side - part) // 2 for side, part in zip(size, crop, strict=True))
    middle = x[..., top : top + crop[0], left : left + crop[1]]
    enlarged = F.interpolate(
        middle, size=[round(part * factor) for part in crop], mode="bilinear", align_corners=True
    )
    trim = [(large - side) // 2 for large, side in zip(enlarged.shape[-2:], size, strict=True)]
    return enlarged[..., trim[0] : trim[0] + size[0], trim[1] : trim[1] + size[1]]


def displace(x: Tensor, rows: Tensor, columns: Tensor, *, about_edge_pixels: bool) -> Tensor:
    """x read at fractional pixel positions (n, height, width), linearly, mirrored at the centres of
    the edge's pixels or at their outer sides.
    """
    height, width = x.shape[-2:]
    if about_edge_pixels:
        grid = torch.stack([2 * columns / (width - 1) - 1, 2 * rows / (height - 1) - 1], -1)
    else:
        grid = torch.stack([(2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1], -1)
    return F.grid_sample(
        x, grid.to(x), mode="bilinear", padding_mode="reflection", align_corners=about_edge_pixels
    )


def plasma(noise: Tensor, decay: float) -> Tensor:
    """Clouds (n, side, side) in [0, 1] by the diamond-square algorithm on a torus.

    The side is a power of 2; `noise`, uniform on [-1, 1], is divided by `decay` squared each round.
    """
    n, side, _ = noise.shape
    cloud, amplitude, step = torch.zeros_like(noise), 1.0, side
    while step >= 2:
        half = step // 2
        scaled = amplitude * noise
        corners = cloud[:, ::step, ::step]
        right, below = corners.roll(-1, 2), corners.roll(-1, 1)
        centres = (corners + right + below + below.roll(-1, 2)) / 4
        centres += scaled[:, half::step, half::step]
        cloud[:, half::step, half::step] = centres
        rows = (corners + right + centres + centres.roll(1, 1)) / 4
        cloud[:, ::step, half::step] = rows + scaled[:, ::step, half::step]
        columns = (corners + below + centres + centres.roll(1, 2)) / 4
        cloud[:, half::step, ::step] = columns + scaled[:, half::step, ::step]
        step, amplitude = half, amplitude / decay**2
    flat = cloud.flatten(1)
    low, high = flat.min(1).values.view(n, 1, 1), flat.max(1).values.view(n, 1, 1)
    return (cloud - low) / (high - low).clamp(min=1e-300)


def _smoothing(size: int, sigma: float, truncate: float, mirror: bool) -> Tensor:
    """The blur of a line of pixels as a matrix (size, size)."""
    radius = int(truncate * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (offsets.double() / max(sigma, 1e-12)) ** 2)
    weights /= weights.sum()
    matrix = torch.zeros(size, size, dtype=torch.float64)
    for pixel in range(size):
        at = pixel + offsets
        if mirror:
            at = at.remainder(2 * size)
            at = torch.minimum(at, 2 * size - 1 - at)
        matrix[pixel].index_add_(0, at.clamp(0, size - 1), weights)
    return matrix
