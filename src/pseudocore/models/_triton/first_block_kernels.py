"""The kernels of `first_block.py`, whose docstring has their equations."""

import triton
import triton.language as tl


@triton.jit
def _rounded(value, rounding: tl.constexpr):
    """As the matrix unit takes it: tf32 has 10 bits behind the point."""
    if rounding == "bf16":
        value = value.to(tl.bfloat16)
    elif rounding == "tf32":
        value = ((value.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return value


@triton.jit
def _product(a, b, rounding: tl.constexpr):
    return tl.dot(a, b, input_precision="ieee" if rounding == "ieee" else "tf32")


@triton.jit
def _affine(weight, bias, mean, rate, first, channel):
    """Gain and shift that normalise some channels of an image, whose moments begin at `first`; the
    moments too.
    """
    centre, height = tl.load(mean + first + channel), tl.load(rate + first + channel)
    gain = tl.load(weight + channel) * height
    return gain, tl.load(bias + channel) - gain * centre, centre, height


@triton.jit
def unfold(
    x,
    rows,
    num_rows,
    inputs: tl.constexpr,
    height,
    width,
    padding,
    num_taps: tl.constexpr,
    rounding: tl.constexpr,
    tile: tl.constexpr,
):
    down, across = (height + 2 * padding - 2) // 2, (width + 2 * padding - 2) // 2
    number = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)[:, None]
    tap = tl.arange(0, num_taps)[None, :]
    window, corner, image = (
        number % (down * across),
        (number // (down * across)) % 4,
        number // (4 * down * across),
    )
    row = 2 * (window // across) + corner // 2 + tap // (3 * inputs) - padding
    column = 2 * (window % across) + corner % 2 + (tap // inputs) % 3 - padding
    inside = (
        (row >= 0)
        & (row < height)
        & (column >= 0)
        & (column < width)
        & (tap < 9 * inputs)
        & (number < num_rows)
    )
    seen = tl.load(
        x + ((image * height + row) * width + column) * inputs + tap % inputs,
        mask=inside,
        other=0.0,
    )
    seen = tl.where(tap == 9 * inputs, 1.0, seen)
    tl.store(rows + number * num_taps + tap, _rounded(seen, rounding), mask=number < num_rows)


@triton.jit
def lay_out(
    kernel,
    filters,
    inputs: tl.constexpr,
    channels,
    num_taps: tl.constexpr,
    rounding: tl.constexpr,
    block: tl.constexpr,
):
    """Filters (taps, channels), 0 behind the last neighbour, of a kernel (channels, inputs, 3, 3)."""
    channel = tl.program_id(0) * block + tl.arange(0, block)[None, :]
    tap = tl.arange(0, num_taps)[:, None]
    place = (channel * inputs + tap % inputs) * 9 + tap // inputs
    tl.store(
        filters + tap * channels + channel,
        _rounded(tl.load(kernel + place, mask=tap < 9 * inputs, other=0.0), rounding),
    )


@triton.jit
def moments(
    rows, filters, mean_row, mean, rate, pulled, eps,
    num_windows: tl.constexpr, channels: tl.constexpr, num_taps: tl.constexpr, block: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Of an image's rows the mean, and of some channels' outputs the mean, one over the deviation,
    and C f; exact in float32.
    """
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * block + tl.arange(0, block)[None, :]
    tap = tl.arange(0, num_taps)
    rows += image * 4 * num_windows * num_taps
    num_rows: tl.constexpr = 4 * num_windows
    total = tl.zeros((num_taps,), tl.float32)
    for start in range(0, num_rows, tile):
        number = start + tl.arange(0, tile)[:, None]
        total += tl.sum(
            tl.load(rows + number * num_taps + tap[None, :], mask=number < num_rows, other=0.0).to(
                tl.float32
            ),
            0,
        )
    middle = total / num_rows
    covariance = tl.zeros((num_taps, num_taps), tl.float32)
    for start in range(0, num_rows, tile):
        number = start + tl.arange(0, tile)[:, None]
        part = (
            tl.load(rows + number * num_taps + tap[None, :], mask=number < num_rows, other=0.0).to(
                tl.float32
            )
            - middle[None, :]
        )
        part = tl.where(number < num_rows, part, 0.0)
        covariance += tl.dot(tl.trans(part), part, input_precision="ieee")
    covariance /= num_rows
    filter = tl.load(filters + tap[:, None] * channels + channel).to(tl.float32)
    bent = tl.dot(covariance, filter, input_precision="ieee")
    variance = tl.maximum(tl.sum(bent * filter, 0)[None, :], 0.0)
    tl.store(mean_row + image * num_taps + tap, middle)
    tl.store(mean + image * channels + channel, tl.sum(middle[:, None] * filter, 0)[None, :])
    tl.store(rate + image * channels + channel, tl.rsqrt(variance + eps))
    tl.store(pulled + (image * num_taps + tap[:, None]) * channels + channel, bent)


@triton.jit
def forward(
    rows, filters, mean, rate, weight, bias, pooled,
    num_windows: tl.constexpr, channels: tl.constexpr, num_taps: tl.constexpr,
    rounding: tl.constexpr, block: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * block + tl.arange(0, block)[None, :]
    window = tl.program_id(2) * tile + tl.arange(0, tile)[:, None]
    tap = tl.arange(0, num_taps)
    filter = tl.load(filters + tap[:, None] * channels + channel)
    gain, shift, _, _ = _affine(weight, bias, mean, rate, image * channels, channel)
    total = tl.zeros((tile, block), tl.float32)
    for corner in tl.static_range(4):
        row = rows + ((image * 4 + corner) * num_windows + window) * num_taps + tap[None, :]
        y = _product(tl.load(row, mask=window < num_windows, other=0.0), filter, rounding)
        total += tl.maximum(y * gain + shift, 0.0)
    tl.store(
        pooled + (image * num_windows + window) * channels + channel,
        (total / 4).to(pooled.dtype.element_ty),
        mask=window < num_windows,
    )


@triton.jit
def backward(
    rows, filters, mean_row, mean, rate, pulled, weight, bias, slope, in_filters, sums, one: tl.constexpr,
    num_windows: tl.constexpr, channels: tl.constexpr, num_taps: tl.constexpr,
    rounding: tl.constexpr, block: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """What some windows of an image add to the gradients of some channels; all of it is linear in
    their slopes.
    """
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * block + tl.arange(0, block)[None, :]
    window = tl.program_id(2) * tile + tl.arange(0, tile)[:, None]
    tap = tl.arange(0, num_taps)
    filter = tl.load(filters + tap[:, None] * channels + channel)
    gain, shift, centre, height = _affine(weight, bias, mean, rate, image * channels, channel)
    inside = window < num_windows
    from_above = (
        tl.load(
            slope + (image * num_windows + window) * channels + channel, mask=inside, other=0.0
        ).to(tl.float32)
        / 4
    )
    g = tl.zeros((num_taps, block), tl.float32)
    for corner in range(4):
        row = tl.load(
            rows + ((image * 4 + corner) * num_windows + window) * num_taps + tap[None, :],
            mask=inside,
            other=0.0,
        )
        open = _product(row, filter, rounding) * gain + shift > 0
        g += _product(tl.trans(row), _rounded(tl.where(open, from_above, 0.0), rounding), rounding)
    in_shift = tl.sum(tl.where(tap[:, None] == one, g, 0.0), 0)[None, :]
    in_gain = height * (tl.sum(filter.to(tl.float32) * g, 0)[None, :] - centre * in_shift)
    bent = tl.load(pulled + (image * num_taps + tap[:, None]) * channels + channel)
    middle = tl.load(mean_row + image * num_taps + tap)[:, None]
    part = image * tl.num_programs(2) + tl.program_id(2)
    tl.store(
        in_filters + (part * num_taps + tap[:, None]) * channels + channel,
        gain * (g - middle * in_shift - in_gain * height * bent),
    )
    tl.store(sums + part * 2 * channels + channel, in_gain)
    tl.store(sums + (part * 2 + 1) * channels + channel, in_shift)


@triton.jit
def in_rows(
    rows, filters, mean_row, mean, rate, weight, bias, slope, shift, bend, in_rows,
    num_windows: tl.constexpr, channels: tl.constexpr, num_taps: tl.constexpr,
    rounding: tl.constexpr, block: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    corner = tl.program_id(1)
    window = tl.program_id(2) * tile + tl.arange(0, tile)[:, None]
    tap = tl.arange(0, num_taps)
    inside = window < num_windows
    place = ((image * 4 + corner) * num_windows + window) * num_taps + tap[None, :]
    row = tl.load(rows + place, mask=inside, other=0.0)
    total = tl.zeros((tile, num_taps), tl.float32)
    for start in range(0, channels, block):
        channel = start + tl.arange(0, block)[None, :]
        filter = tl.load(filters + tap[:, None] * channels + channel)
        gain, level, _, _ = _affine(weight, bias, mean, rate, image * channels, channel)
        from_above = (
            tl.load(
                slope + (image * num_windows + window) * channels + channel, mask=inside, other=0.0
            ).to(tl.float32)
            / 4
        )
        open = _product(row, filter, rounding) * gain + level > 0
        total += _product(
            _rounded(tl.where(open, gain * from_above, 0.0), rounding), tl.trans(filter), rounding
        )
    away = row.to(tl.float32) - tl.load(mean_row + image * num_taps + tap)[None, :]
    bent = tl.load(bend + (image * num_taps + tap[:, None]) * num_taps + tap[None, :])
    total -= tl.load(shift + image * num_taps + tap)[None, :] + tl.dot(
        away, bent, input_precision="ieee"
    )
    tl.store(in_rows + place, total.to(in_rows.dtype.element_ty), mask=inside)


@triton.jit
def fold(
    in_rows,
    in_x,
    num_values,
    inputs: tl.constexpr,
    height,
    width,
    padding,
    num_taps: tl.constexpr,
    tile: tl.constexpr,
):
    down, across = (height + 2 * padding - 2) // 2, (width + 2 * padding - 2) // 2
    number = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    channel, column, row = (
        number % inputs,
        (number // inputs) % width,
        (number // (inputs * width)) % height,
    )
    image = number // (inputs * width * height)
    total = tl.zeros((tile,), tl.float32)
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            above, left = row - i + padding, column - j + padding
            inside = (
                (above >= 0)
                & (above < 2 * down)
                & (left >= 0)
                & (left < 2 * across)
                & (number < num_values)
            )
            corner = 2 * (above % 2) + left % 2
            place = (image * 4 + corner) * down * across + (above // 2) * across + left // 2
            total += tl.load(
                in_rows + place * num_taps + (3 * i + j) * inputs + channel, mask=inside, other=0.0
            ).to(tl.float32)
    tl.store(in_x + number, total, mask=number < num_values)
