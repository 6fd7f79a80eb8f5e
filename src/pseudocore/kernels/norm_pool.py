r"""Instance norm, ReLU and 2×2 average pool in one pass over memory each way.

Per image and channel, with $\hat x = (x - \bar x) / \sqrt{\mathrm{var}(x) + \varepsilon}$ over its $n$ pixels,

$$ y_p = \tfrac14 \sum_{i \in p} \max(0, \gamma \hat x_i + \beta), \qquad
   \frac{dJ}{dx_i} = \frac{\gamma}{\sqrt{\mathrm{var}(x) + \varepsilon}}
   \Big( s_i - \tfrac1n \sum_j s_j - \hat x_i \tfrac1n \sum_j s_j \hat x_j \Big), $$

$s_i = \tfrac14 \frac{dJ}{dy_{p(i)}}$ where the ReLU is open and 0 elsewhere; $\frac{dJ}{d\gamma}$ and $\frac{dJ}{d\beta}$ are the two sums,
added up over images. A program holds all pixels of some channels of one image, so what torch reads and writes some ten times is
read once and written once. The four corners of every pooling window are four arrays: pooling is adding them.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["norm_pool"]


def norm_pool(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Images (n, channels, side, side) to half the side; a side that is a power of two, channels a multiple of 16, as `NormPool` checks."""
    pooled: Tensor = _NormPool.apply(x, weight, bias, eps)
    return pooled


class _NormPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        num, channels, side, _ = x.shape
        pooled = x.new_empty(num, side // 2, side // 2, channels).permute(0, 3, 1, 2)
        block, warps = _shape(side, channels)
        _forward[(num, channels // block)](x, weight, bias, pooled, eps, channels, side, block, num_warps=warps)
        ctx.save_for_backward(x, weight, bias)
        ctx.eps = eps
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        x, weight, bias = ctx.saved_tensors
        slope = slope.contiguous(memory_format=torch.channels_last)
        num, channels, side, _ = x.shape
        in_x = torch.empty_like(x)
        with_weights = any(ctx.needs_input_grad[1:3])
        sums = x.new_empty(num, 2, channels, dtype=torch.float32) if with_weights else x
        block, warps = _shape(side, channels)
        _backward[(num, channels // block)](
            x, weight, bias, slope, in_x, sums, ctx.eps, channels, side, block, with_weights, num_warps=warps
        )  # fmt: skip
        in_weight, in_bias = sums.sum(0) if with_weights else (None, None)
        return in_x, in_weight, in_bias, None


def _shape(side: int, channels: int) -> tuple[int, int]:
    """Channels a program and warps a program, by measurement on an H200; more channels a warp at side 32 no longer fit its registers."""
    block, warps = {32: (32, 8), 16: (64, 4)}.get(side, (16, 4))
    return (block if channels % block == 0 else 16), warps


@triton.jit
def _forward(x, weight, bias, pooled, eps, channels, side: tl.constexpr, block: tl.constexpr):
    half: tl.constexpr = side // 2
    area: tl.constexpr = side * side
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * block + tl.arange(0, block)[None, :]
    window = tl.arange(0, half * half)[:, None]
    corner = x + image * area * channels + (2 * (window // half) * side + 2 * (window % half)) * channels + channel
    a = tl.load(corner).to(tl.float32)
    b = tl.load(corner + channels).to(tl.float32)
    c = tl.load(corner + side * channels).to(tl.float32)
    d = tl.load(corner + (side + 1) * channels).to(tl.float32)
    mean = tl.sum(a + b + c + d, 0)[None, :] / area
    a, b, c, d = a - mean, b - mean, c - mean, d - mean
    variance = tl.sum(a * a + b * b + c * c + d * d, 0)[None, :] / area
    gain = tl.load(weight + channel) * tl.rsqrt(variance + eps)
    shift = tl.load(bias + channel)
    total = tl.maximum(a * gain + shift, 0.0) + tl.maximum(b * gain + shift, 0.0)
    total += tl.maximum(c * gain + shift, 0.0) + tl.maximum(d * gain + shift, 0.0)
    tl.store(pooled + (image * half * half + window) * channels + channel, (total / 4).to(pooled.dtype.element_ty))


@triton.jit
def _backward(x, weight, bias, slope, in_x, sums, eps, channels, side: tl.constexpr, block: tl.constexpr, with_weights: tl.constexpr):
    half: tl.constexpr = side // 2
    area: tl.constexpr = side * side
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * block + tl.arange(0, block)[None, :]
    window = tl.arange(0, half * half)[:, None]
    corner = image * area * channels + (2 * (window // half) * side + 2 * (window % half)) * channels + channel
    a = tl.load(x + corner).to(tl.float32)
    b = tl.load(x + corner + channels).to(tl.float32)
    c = tl.load(x + corner + side * channels).to(tl.float32)
    d = tl.load(x + corner + (side + 1) * channels).to(tl.float32)
    from_above = tl.load(slope + (image * half * half + window) * channels + channel).to(tl.float32) / 4
    mean = tl.sum(a + b + c + d, 0)[None, :] / area
    a, b, c, d = a - mean, b - mean, c - mean, d - mean
    rate = tl.rsqrt(tl.sum(a * a + b * b + c * c + d * d, 0)[None, :] / area + eps)
    a, b, c, d = a * rate, b * rate, c * rate, d * rate
    gain, shift = tl.load(weight + channel), tl.load(bias + channel)
    at_a = tl.where(a * gain + shift > 0, from_above, 0.0)
    at_b = tl.where(b * gain + shift > 0, from_above, 0.0)
    at_c = tl.where(c * gain + shift > 0, from_above, 0.0)
    at_d = tl.where(d * gain + shift > 0, from_above, 0.0)
    in_gain = tl.sum(at_a * a + at_b * b + at_c * c + at_d * d, 0)[None, :]
    in_shift = tl.sum(at_a + at_b + at_c + at_d, 0)[None, :]
    if with_weights:
        tl.store(sums + image * 2 * channels + channel, in_gain)
        tl.store(sums + (image * 2 + 1) * channels + channel, in_shift)
    scale, tilt, level = gain * rate, in_gain / area, in_shift / area
    target = in_x.dtype.element_ty
    tl.store(in_x + corner, (scale * (at_a - level - a * tilt)).to(target))
    tl.store(in_x + corner + channels, (scale * (at_b - level - b * tilt)).to(target))
    tl.store(in_x + corner + side * channels, (scale * (at_c - level - c * tilt)).to(target))
    tl.store(in_x + corner + (side + 1) * channels, (scale * (at_d - level - d * tilt)).to(target))
