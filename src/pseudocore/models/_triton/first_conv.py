"""A 3×3 convolution of images of few channels, as matrix products.

The libraries' convolutions are made for many channels on either side. With the three of an image
they leave most of the matrix units idle, above all on the way back. The gradient in 100 images
takes 119 µs where reading what it needs takes 11. Here every pixel's nine neighbours are written
out as one row, and all three passes are products of large matrices with aligned rows:

    Y = P F',    dJ/dF' = P' S,    dJ/dP = S F,    P (pixels, taps), F (channels, taps), S = dJ/dY
    (pixels, channels).

`_unfold` makes P of the images and `_fold` is its transpose.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 128


def first_conv(x: Tensor, kernel: Tensor, padding: int) -> Tensor:
    """Images (n, inputs, height, width) by a kernel (channels, inputs, 3, 3), channels last in
    memory; bfloat16 under autocast.
    """
    y: Tensor = _FirstConv.apply(x, kernel, padding)
    return y


class _FirstConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, padding: int) -> Tensor:
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cuda") else x.dtype
        num, inputs, height, width = x.shape
        num_taps = triton.next_power_of_2(
            9 * inputs
        )  # the ones beyond 9 an input are 0: rows begin where a matrix unit can load
        filters = F.pad(
            kernel.permute(0, 2, 3, 1).reshape(len(kernel), -1), (0, num_taps - 9 * inputs)
        ).to(dtype)
        ctx.shape = num, inputs, height, width, padding
        patches = _patches(x, ctx.shape, num_taps, dtype)
        ctx.save_for_backward(patches, filters)
        ctx.save_for_forward(x, kernel)
        return (
            (patches @ filters.mT)
            .view(num, height + 2 * padding - 2, width + 2 * padding - 2, -1)
            .permute(0, 3, 1, 2)
        )

    @staticmethod
    def jvp(ctx: Any, along_x: Tensor | None, along_kernel: Tensor | None, _: None) -> Tensor:
        x, kernel = ctx.saved_tensors
        of_kernel = first_conv(x, along_kernel, ctx.shape[-1]) if along_kernel is not None else None
        of_x = first_conv(along_x, kernel, ctx.shape[-1]) if along_x is not None else None
        moved = of_x if of_kernel is None else of_kernel if of_x is None else of_x + of_kernel
        assert moved is not None  # torch asks for what moves alone
        return moved

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        patches, filters = ctx.saved_tensors
        slope = slope.permute(0, 2, 3, 1).reshape(len(patches), -1)
        in_x = _folded(slope @ filters, ctx.shape) if ctx.needs_input_grad[0] else None
        in_kernel = _in_kernel(patches, slope, ctx.shape) if ctx.needs_input_grad[1] else None
        return in_x, in_kernel, None


def _patches(x: Tensor, shape: tuple[int, ...], num_taps: int, dtype: torch.dtype) -> Tensor:
    num, inputs, height, width, padding = shape
    x = x.contiguous(memory_format=torch.channels_last)
    num_rows = num * (height + 2 * padding - 2) * (width + 2 * padding - 2)
    patches = x.new_empty(num_rows, num_taps, dtype=dtype)
    _unfold[(triton.cdiv(num_rows, BLOCK),)](
        x, patches, num_rows, inputs, height, width, padding, num_taps, BLOCK
    )
    return patches


def _folded(in_patches: Tensor, shape: tuple[int, ...]) -> Tensor:
    num, inputs, height, width, padding = shape
    in_x = in_patches.new_empty(num, height, width, inputs, dtype=torch.float32)
    num_taps = in_patches.shape[1]
    _fold[(triton.cdiv(in_x.numel(), BLOCK),)](
        in_patches, in_x, in_x.numel(), inputs, height, width, padding, num_taps, BLOCK
    )
    return in_x.permute(0, 3, 1, 2)


def _in_kernel(patches: Tensor, slope: Tensor, shape: tuple[int, ...]) -> Tensor:
    """P' S as many products of a few hundred pixels each, added up: as one, a long sum of a small
    matrix, it would keep few units busy.
    """
    num, inputs, *_ = shape
    parts = num * 4 if len(patches) % (num * 4) == 0 else num
    total = torch.bmm(
        patches.view(parts, -1, patches.shape[1]).mT, slope.view(parts, -1, slope.shape[1])
    ).sum(0, dtype=torch.float32)
    return total[: 9 * inputs].view(3, 3, inputs, -1).permute(3, 2, 0, 1)


@triton.jit
def _unfold(
    x,
    patches,
    num_rows,
    inputs: tl.constexpr,
    height,
    width,
    padding,
    num_taps: tl.constexpr,
    block: tl.constexpr,
):
    across, down = width + 2 * padding - 2, height + 2 * padding - 2
    number = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)[:, None]
    tap = tl.arange(0, num_taps)[None, :]
    row = (number // across) % down + tap // (3 * inputs) - padding
    column = number % across + (tap // inputs) % 3 - padding
    inside = (
        (row >= 0)
        & (row < height)
        & (column >= 0)
        & (column < width)
        & (tap < 9 * inputs)
        & (number < num_rows)
    )
    place = ((number // (across * down) * height + row) * width + column) * inputs + tap % inputs
    seen = tl.load(x + place, mask=inside, other=0.0)
    tl.store(
        patches + number * num_taps + tap, seen.to(patches.dtype.element_ty), mask=number < num_rows
    )


@triton.jit
def _fold(
    in_patches,
    in_x,
    num_values,
    inputs: tl.constexpr,
    height,
    width,
    padding,
    num_taps: tl.constexpr,
    block: tl.constexpr,
):
    across, down = width + 2 * padding - 2, height + 2 * padding - 2
    number = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    channel, column, row = (
        number % inputs,
        (number // inputs) % width,
        (number // (inputs * width)) % height,
    )
    image = number // (inputs * width * height)
    total = tl.zeros((block,), tl.float32)
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            above, left = row - i + padding, column - j + padding
            inside = (
                (above >= 0)
                & (above < down)
                & (left >= 0)
                & (left < across)
                & (number < num_values)
            )
            place = (
                ((image * down + above) * across + left) * num_taps + (3 * i + j) * inputs + channel
            )
            total += tl.load(in_patches + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(in_x + number, total, mask=number < num_values)
