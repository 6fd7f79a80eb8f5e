"""Bilinear shifts, stretches and turns of images, with zeros for all that lies outside.

Each is linear in the image, and so is its gradient, the transpose. Both are made of products and
gathers, without scattered sums. These, the gradient of indexing, have no fixed order on a GPU or
are sorted first, and `grid_sample` has no second derivative.
"""

from itertools import product
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from pseudocore.runtime.execution import indivisible


def crop(x: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Shift by whole pixels (1,) or (n,), integers; zeros move in."""
    rows, columns = _pixels(x, down.dtype)
    return _resampled(x, rows - down.view(-1, 1), columns - right.view(-1, 1))


def scale(x: Tensor, vertical: Tensor, horizontal: Tensor) -> Tensor:
    """Stretch about the centre by factors (1,) or (n,); above one enlarges."""
    (rows, columns), (middle, centre) = _pixels(x, vertical.dtype), _centre(x)
    rows = (rows - middle) / vertical.view(-1, 1) + middle
    columns = (columns - centre) / horizontal.view(-1, 1) + centre
    return _resampled(x, rows, columns)


@indivisible
def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Turn anticlockwise about the centre by radians (1,) or (n,), which get no gradient."""
    angle = angle.to(torch.promote_types(angle.dtype, x.dtype))
    return cast(Tensor, _Turn.apply(x, angle, False))  # type: ignore[no-untyped-call]


def _pixels(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Coordinates of the pixels along each axis, (height,) and (width,)."""
    rows, columns = (torch.arange(n, dtype=dtype, device=x.device) for n in x.shape[2:])
    return rows, columns


def _centre(x: Tensor) -> tuple[float, float]:
    return (x.shape[2] - 1) / 2, (x.shape[3] - 1) / 2


def _resampled(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """x between its pixels, on the grid of rows (b, height) and columns (b, width)."""
    down, across = (
        _hat(places.unsqueeze(2) - pixels).to(x.dtype).unsqueeze(1)  # (b, 1, n, n)
        for places, pixels in zip((rows, columns), _pixels(x, rows.dtype), strict=True)
    )
    # the passes of a network may be in bfloat16, its images are not
    with torch.autocast(x.device.type, enabled=False):
        return down @ x @ across.mT


def _hat(away: Tensor) -> Tensor:
    """The bilinear weight, along one axis, of a pixel so far away."""
    return (1 - away.abs()).clamp(min=0)


class _Turn(torch.autograd.Function):
    """Rotation and its transpose, each the gradient of the other."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, angle: Tensor, back: bool) -> Tensor:
        return _turned(x, angle, back=back)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
        _, angle, ctx.back = inputs
        ctx.save_for_backward(angle)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Turn.apply(gradient, *ctx.saved_tensors, not ctx.back), None, None  # type: ignore[no-untyped-call]


def _turned(x: Tensor, angle: Tensor, *, back: bool) -> Tensor:
    r"""$\sum_q W_{pq} x_q$ for every pixel $p$, where $W_{pq}$ is the bilinear weight of $q$ at
    $Ap$, the source of $p$: that of the four pixels around $Ap$ is not zero.

    With `back`, $\sum_p W_{pq} x_p$ for every $q$: the sources of those $p$ are less than one pixel
    from $q$ along both axes. So $p$ is less than √2 from $A^{-1}q$, one of the nine around it.
    """
    (height, width), (middle, centre) = x.shape[2:], _centre(x)
    cos, sin = angle.cos().view(-1, 1, 1), angle.sin().view(-1, 1, 1)
    rows, columns = _pixels(x, angle.dtype)

    def source(row: Tensor, column: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        row, column = row - middle, column - centre
        return cos * row + sin * column + middle, cos * column - sin * row + centre

    place = source(rows.unsqueeze(1), columns, -sin if back else sin)  # (b, height, width) each
    top, left = (at.round() if back else at.floor() for at in place)
    sources, own = (
        (source(top, left, sin), (rows.unsqueeze(1), columns)) if back else ((top, left), place)
    )
    away = sources[0] - own[0], sources[1] - own[1]
    padded = pad(x, (1, 1, 1, 1)).flatten(2)  # a ring of zeros stands for all that is outside
    result = torch.zeros_like(x).flatten(2)
    for down, right in product((-1, 0, 1) if back else (0, 1), repeat=2):
        further = (cos * down + sin * right, cos * right - sin * down) if back else (down, right)
        weight = _hat(away[0] + further[0]) * _hat(away[1] + further[1])
        index = (top + (down + 1)).clamp(0, height + 1) * (width + 2) + (left + (right + 1)).clamp(
            0, width + 1
        )
        picked = padded.gather(2, index.long().flatten(1).unsqueeze(1).expand(*x.shape[:2], -1))
        result = result + weight.to(x.dtype).flatten(1).unsqueeze(1) * picked
    return result.view_as(x)
