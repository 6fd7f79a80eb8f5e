r"""The first block of a convolutional network, 3×3 convolution, instance norm, ReLU and 2×2 average
pool, without its activations.

Its convolution is the cheapest of the network and its output the largest: 128 channels are 40 times
the image. A norm seems to need all of that output before any of it can go on. But a convolution is
linear in what it sees: with $p_i$ the nine neighbours of pixel $i$ written out as one row, $\bar p$
and $C$ their mean and covariance over an image's $n$ pixels, a filter $f$ has $y_i = f \cdot p_i$
and

$$ \bar y = f \cdot \bar p, \qquad \mathrm{var}(y) = f^\top C f . $$

So every window can be convolved, normalised, rectified and pooled by itself. The way back convolves
again, and all it needs of an image are the sums $g = \sum_i s_i p_i$ and $S = \sum_i s_i$ of the
slopes $s_i$ that the open ReLUs let through: with $r = (\mathrm{var}(y) + \varepsilon)^{-1/2}$,

$$ \frac{dJ}{d\gamma} = r\,(f \cdot g - \bar y S), \qquad \frac{dJ}{d\beta} = S, \qquad
   \frac{dJ}{df} = \gamma r \Big( g - S \bar p - r \tfrac{dJ}{d\gamma} C f \Big), $$

$$ \frac{dJ}{dp_i} = \sum_f \gamma r f \Big( s_i - \tfrac1n S \Big)
   - \Big( \sum_f \tfrac{\gamma r^2}{n} \tfrac{dJ}{d\gamma} f f^\top \Big) (p_i - \bar p) . $$

Rows are kept as four planes, one for every corner of the pooling windows, so that pooling is adding
planes. Behind the last neighbour stands a 1, whose $g$ is $S$. Rows and filters are rounded first
as the matrix unit would, so that moments and products are of the same numbers.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from pseudocore.models._triton import first_block_kernels as kernels

CHANNELS = 32
"""Of a tile."""
WINDOWS = {"bf16": 128, "tf32": 128, "ieee": 64}
"""Of a tile: as many as fit the registers."""


def first_block(
    x: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor, padding: int, eps: float
) -> Tensor:
    """Images (n, inputs, height, width) by a kernel (channels, inputs, 3, 3), normalised, rectified
    and pooled, channels last in memory.

    At most 3 inputs, a multiple of 16 channels, an even size after the convolution. Products are
    rounded as those of torch would be here: to bfloat16 under autocast, to tf32 where that is
    allowed.
    """
    pooled: Tensor = _FirstBlock.apply(x, kernel, weight, bias, padding, eps)
    return pooled


class _FirstBlock(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor, padding: int, eps: float
    ) -> Tensor:
        rounding = (
            "bf16"
            if torch.is_autocast_enabled("cuda")
            else "tf32"
            if torch.backends.cuda.matmul.allow_tf32
            else "ieee"
        )
        num, inputs, height, width = x.shape
        down, across = (height + 2 * padding - 2) // 2, (width + 2 * padding - 2) // 2
        channels, num_taps = len(kernel), triton.next_power_of_2(9 * inputs + 1)
        sizes = {"num_windows": down * across, "channels": channels, "num_taps": num_taps}
        block = CHANNELS if channels % CHANNELS == 0 else 16
        dtype, tile = torch.bfloat16 if rounding == "bf16" else torch.float32, WINDOWS[rounding]

        x = x.contiguous(memory_format=torch.channels_last)
        rows = x.new_empty(num, 4, down * across, num_taps, dtype=dtype)
        kernels.unfold[(triton.cdiv(rows.numel() // num_taps, tile),)](
            x,
            rows,
            rows.numel() // num_taps,
            inputs,
            height,
            width,
            padding,
            num_taps,
            rounding,
            tile,
        )
        filters = x.new_empty(num_taps, channels, dtype=dtype)
        kernels.lay_out[(channels // 16,)](
            kernel, filters, inputs, channels, num_taps, rounding, 16
        )
        mean_row, mean, rate = (
            x.new_empty(num, num_taps),
            x.new_empty(num, channels),
            x.new_empty(num, channels),
        )
        pulled = x.new_empty(num, num_taps, channels)
        most = channels & -channels  # the largest power of two that divides them
        kernels.moments[(num, channels // most)](
            rows, filters, mean_row, mean, rate, pulled, eps, **sizes, block=most, tile=tile
        )
        pooled = x.new_empty(num, down, across, channels, dtype=dtype).permute(0, 3, 1, 2)
        grid = (num, channels // block, triton.cdiv(down * across, tile))
        kernels.forward[grid](
            rows,
            filters,
            mean,
            rate,
            weight,
            bias,
            pooled,
            **sizes,
            rounding=rounding,
            block=block,
            tile=tile,
        )
        ctx.save_for_backward(rows, filters, mean_row, mean, rate, pulled, weight, bias)
        ctx.rest = x.shape, padding, sizes, rounding, block, tile
        return pooled

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, slope: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor, None, None]:
        rows, filters, mean_row, mean, rate, pulled, weight, bias = ctx.saved_tensors
        (num, inputs, height, width), padding, sizes, rounding, block, tile = ctx.rest
        slope = slope.contiguous(memory_format=torch.channels_last)
        num_windows, channels, num_taps = sizes.values()
        num_parts = triton.cdiv(num_windows, tile)
        in_filters = mean.new_empty(num, num_parts, num_taps, channels)
        sums = mean.new_empty(num, num_parts, 2, channels)
        grid = (num, channels // block, num_parts)
        kernels.backward[grid](
            rows, filters, mean_row, mean, rate, pulled, weight, bias, slope, in_filters, sums, 9 * inputs, **sizes, rounding=rounding,
            block=block, tile=tile
        )  # fmt: skip
        in_kernel = (
            in_filters.sum((0, 1))[: 9 * inputs].view(3, 3, inputs, channels).permute(3, 2, 0, 1)
        )
        in_x = None
        if ctx.needs_input_grad[0]:
            in_gain, in_shift = sums.sum(1).unbind(1)  # of every image
            scale = weight * rate / (4 * num_windows)
            plain = filters.float()
            shift = (scale * in_shift) @ plain.mT
            bend = ((scale * rate * in_gain)[:, None, :] * plain) @ plain.mT
            in_rows = torch.empty_like(rows)
            kernels.in_rows[(num, 4, num_parts)](
                rows, filters, mean_row, mean, rate, weight, bias, slope, shift, bend, in_rows, **sizes, rounding=rounding, block=block,
                tile=tile
            )  # fmt: skip
            in_x = mean.new_empty(num, height, width, inputs)
            kernels.fold[(triton.cdiv(in_x.numel(), 128),)](
                in_rows, in_x, in_x.numel(), inputs, height, width, padding, num_taps, 128
            )
            in_x = in_x.permute(0, 3, 1, 2)
        in_weight, in_bias = sums.sum((0, 1))
        return in_x, in_kernel, in_weight, in_bias, None, None
