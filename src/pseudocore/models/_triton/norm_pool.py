r"""Instance norm, ReLU and 2×2 average pool in one pass over memory each way.

Per image and channel, with $\hat x = (x - \bar x) / \sqrt{\mathrm{var}(x) + \varepsilon}$ over its
$n$ pixels,

$$ y_p = \tfrac14 \sum_{i \in p} \max(0, \gamma \hat x_i + \beta), \qquad
   \frac{dJ}{dx_i} = \frac{\gamma}{\sqrt{\mathrm{var}(x) + \varepsilon}}
   \Big( s_i - \tfrac1n \sum_j s_j - \hat x_i \tfrac1n \sum_j s_j \hat x_j \Big), $$

$s_i = \tfrac14 \frac{dJ}{dy_{p(i)}}$ where the ReLU is open and 0 elsewhere; $\frac{dJ}{d\gamma}$
and $\frac{dJ}{d\beta}$ are the two sums, added up over images. A program holds all pixels of some
channels of one image, so what torch reads and writes some ten times is read once and written once.
The four corners of every pooling window are four arrays: pooling is adding them.

As theta moves, so do $x$, $\gamma$ and $\beta$, along $a$, $\dot\gamma$ and $\dot\beta$. Where the
ReLU is open what it sees moves along $\dot\gamma \hat x + \gamma Ja + \dot\beta$, with $r =
(\mathrm{var}(x) + \varepsilon)^{-1/2}$ and, of any $v$, $Jv = r (v - \bar v - \hat x \overline{\hat
x v})$. Forward mode asks for that; reverse mode over it, of slopes $t$ on it, for

$$ \frac{dJ}{da} = \gamma Jt, \qquad \frac{dJ}{dx} = \dot\gamma Jt - \gamma r \Big( \overline{\hat x a} Jt + \overline{\hat x t} Ja
   + \hat x \tfrac{1}{n} \langle t, Ja \rangle \Big), \qquad \frac{dJ}{d\gamma} = \langle t, Ja \rangle . $$
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable


def norm_pool(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Images (n, channels, side, side) to half the side; a side that is a power of two, channels a
    multiple of 16, as `NormPool` checks.
    """
    pooled: Tensor = _NormPool.apply(x, weight, bias, eps)
    return pooled


class _NormPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        given, x = x, x.contiguous(memory_format=torch.channels_last)
        num, channels, side, _ = x.shape
        pooled = x.new_empty(num, side // 2, side // 2, channels).permute(0, 3, 1, 2)
        block, warps = _shape(side, channels)
        _forward[(num, channels // block)](
            x, weight, bias, pooled, eps, channels, side, block, num_warps=warps
        )
        ctx.save_for_backward(x, weight, bias)
        ctx.save_for_forward(given, weight, bias)
        ctx.eps = eps
        return pooled

    @staticmethod
    def jvp(ctx: Any, along_x: Tensor, along_weight: Tensor, along_bias: Tensor, _: None) -> Tensor:
        moved: Tensor = _Tangent.apply(
            *ctx.saved_tensors, along_x, along_weight, along_bias, ctx.eps
        )
        return moved

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


class _Tangent(torch.autograd.Function):
    """How the pooled image moves; as a function of x, weight and along_x, for the other directions
    are given.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        along_x: Tensor,
        along_weight: Tensor,
        along_bias: Tensor,
        eps: float,
    ) -> Tensor:
        x, along_x = (one.contiguous(memory_format=torch.channels_last) for one in (x, along_x))
        num, channels, side, _ = x.shape
        moved = x.new_empty(num, side // 2, side // 2, channels).permute(0, 3, 1, 2)
        warps = 8 if side == 32 else 4
        vectors = (weight, bias, along_weight)
        _tangent[(num, channels // 16)](
            x, along_x, *vectors, along_bias, moved, eps, channels, side, 16, num_warps=warps
        )
        ctx.save_for_backward(x, along_x, *vectors)
        ctx.eps, ctx.warps = eps, warps
        return moved

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, along_x, *vectors = ctx.saved_tensors
        slope = slope.contiguous(memory_format=torch.channels_last)
        num, channels, side, _ = x.shape
        in_x, in_along = torch.empty_like(x), torch.empty_like(along_x)
        sums = x.new_empty(num, channels, dtype=torch.float32)
        _tangent_backward[(num, channels // 16)](
            x,
            along_x,
            *vectors,
            slope,
            in_x,
            in_along,
            sums,
            ctx.eps,
            channels,
            side,
            16,
            num_warps=ctx.warps,
        )
        return in_x, sums.sum(0), None, in_along, None, None, None


def _shape(side: int, channels: int) -> tuple[int, int]:
    """Channels a program and warps a program, by measurement on an H200; more channels a warp at
    side 32 no longer fit its registers.
    """
    block, warps = {32: (32, 8), 16: (64, 4)}.get(side, (16, 4))
    return (block if channels % block == 0 else 16), warps


@triton.jit
def _forward(x, weight, bias, pooled, eps, channels, side: tl.constexpr, block: tl.constexpr):
    area: tl.constexpr = side * side
    _image, channel, corner, place = _places(channels, side, block)
    a, b, c, d = _corners(x + corner, channels, side)
    mean = tl.sum(a + b + c + d, 0)[None, :] / area
    a, b, c, d = a - mean, b - mean, c - mean, d - mean
    variance = tl.sum(a * a + b * b + c * c + d * d, 0)[None, :] / area
    gain = tl.load(weight + channel) * tl.rsqrt(variance + eps)
    shift = tl.load(bias + channel)
    total = tl.maximum(a * gain + shift, 0.0) + tl.maximum(b * gain + shift, 0.0)
    total += tl.maximum(c * gain + shift, 0.0) + tl.maximum(d * gain + shift, 0.0)
    tl.store(
        pooled + place,
        (total / 4).to(pooled.dtype.element_ty),
    )


@triton.jit
def _backward(
    x,
    weight,
    bias,
    slope,
    in_x,
    sums,
    eps,
    channels,
    side: tl.constexpr,
    block: tl.constexpr,
    with_weights: tl.constexpr,
):
    area: tl.constexpr = side * side
    image, channel, corner, place = _places(channels, side, block)
    a, b, c, d = _corners(x + corner, channels, side)
    from_above = tl.load(slope + place).to(tl.float32) / 4
    a, b, c, d, rate = _normalised(a, b, c, d, eps, area)
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
    _put(
        in_x + corner,
        scale * (at_a - level - a * tilt),
        scale * (at_b - level - b * tilt),
        scale * (at_c - level - c * tilt),
        scale * (at_d - level - d * tilt),
        channels,
        side,
    )


@triton.jit
def _tangent(
    x,
    along_x,
    weight,
    bias,
    along_weight,
    along_bias,
    moved,
    eps,
    channels,
    side: tl.constexpr,
    block: tl.constexpr,
):
    area: tl.constexpr = side * side
    _image, channel, corner, place = _places(channels, side, block)
    a, b, c, d = _corners(x + corner, channels, side)
    a, b, c, d, rate = _normalised(a, b, c, d, eps, area)
    va, vb, vc, vd = _corners(along_x + corner, channels, side)
    va, vb, vc, vd, _ = _pushed(va, vb, vc, vd, a, b, c, d, rate, area)
    gain, shift = tl.load(weight + channel), tl.load(bias + channel)
    along_gain, along_shift = tl.load(along_weight + channel), tl.load(along_bias + channel)
    total = tl.where(a * gain + shift > 0, along_gain * a + gain * va + along_shift, 0.0)
    total += tl.where(b * gain + shift > 0, along_gain * b + gain * vb + along_shift, 0.0)
    total += tl.where(c * gain + shift > 0, along_gain * c + gain * vc + along_shift, 0.0)
    total += tl.where(d * gain + shift > 0, along_gain * d + gain * vd + along_shift, 0.0)
    tl.store(
        moved + place,
        (total / 4).to(moved.dtype.element_ty),
    )


@triton.jit
def _tangent_backward(
    x, along_x, weight, bias, along_weight, slope, in_x, in_along, sums, eps, channels, side: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    area: tl.constexpr = side * side
    image, channel, corner, place = _places(channels, side, block)
    a, b, c, d = _corners(x + corner, channels, side)
    a, b, c, d, rate = _normalised(a, b, c, d, eps, area)
    va, vb, vc, vd = _corners(along_x + corner, channels, side)
    va, vb, vc, vd, of_along = _pushed(va, vb, vc, vd, a, b, c, d, rate, area)
    gain, shift = tl.load(weight + channel), tl.load(bias + channel)
    from_above = tl.load(slope + place).to(tl.float32) / 4
    ta = tl.where(a * gain + shift > 0, from_above, 0.0)
    tb = tl.where(b * gain + shift > 0, from_above, 0.0)
    tc = tl.where(c * gain + shift > 0, from_above, 0.0)
    td = tl.where(d * gain + shift > 0, from_above, 0.0)
    product = tl.sum(ta * va + tb * vb + tc * vc + td * vd, 0)[None, :]
    tl.store(sums + image * channels + channel, product)
    ta, tb, tc, td, of_slope = _pushed(ta, tb, tc, td, a, b, c, d, rate, area)
    direct = tl.load(along_weight + channel) - gain * rate * of_along
    bend, turn = gain * rate * of_slope, gain * rate * product / area
    _put(in_x + corner, direct * ta - bend * va - turn * a, direct * tb - bend * vb - turn * b,
         direct * tc - bend * vc - turn * c, direct * td - bend * vd - turn * d, channels, side)  # fmt: skip
    _put(in_along + corner, gain * ta, gain * tb, gain * tc, gain * td, channels, side)


@triton.jit
def _places(channels, side: tl.constexpr, block: tl.constexpr):
    """The image and channels (1, block) of this program, and where the first corner of every window
    and its pooled value lie, (windows, block).
    """
    half: tl.constexpr = side // 2
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * block + tl.arange(0, block)[None, :]
    window = tl.arange(0, half * half)[:, None]
    pixel = 2 * (window // half) * side + 2 * (window % half)
    corner = image * side * side * channels + pixel * channels + channel
    return image, channel, corner, (image * half * half + window) * channels + channel


@triton.jit
def _corners(place, channels, side: tl.constexpr):
    """The four corners of every window, (windows, channels) each."""
    a, b = tl.load(place).to(tl.float32), tl.load(place + channels).to(tl.float32)
    c, d = (
        tl.load(place + side * channels).to(tl.float32),
        tl.load(place + (side + 1) * channels).to(tl.float32),
    )
    return a, b, c, d


@triton.jit
def _put(place, a, b, c, d, channels, side: tl.constexpr):
    target = place.dtype.element_ty
    tl.store(place, a.to(target))
    tl.store(place + channels, b.to(target))
    tl.store(place + side * channels, c.to(target))
    tl.store(place + (side + 1) * channels, d.to(target))


@triton.jit
def _normalised(a, b, c, d, eps, area: tl.constexpr):
    mean = tl.sum(a + b + c + d, 0)[None, :] / area
    a, b, c, d = a - mean, b - mean, c - mean, d - mean
    rate = tl.rsqrt(tl.sum(a * a + b * b + c * c + d * d, 0)[None, :] / area + eps)
    return a * rate, b * rate, c * rate, d * rate, rate


@triton.jit
def _pushed(va, vb, vc, vd, a, b, c, d, rate, area: tl.constexpr):
    """Jv, and the mean of v times the normalised x."""
    mean = tl.sum(va + vb + vc + vd, 0)[None, :] / area
    share = tl.sum(va * a + vb * b + vc * c + vd * d, 0)[None, :] / area
    va, vb = rate * (va - mean - a * share), rate * (vb - mean - b * share)
    vc, vd = rate * (vc - mean - c * share), rate * (vd - mean - d * share)
    return va, vb, vc, vd, share
