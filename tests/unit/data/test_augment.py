"""Every operation against NumPy or another implementation, its gradient, and the rules of drawing."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.data import augment
from pseudocore.data.augment import DSA, OPERATIONS, Draw

F64 = torch.float64
Change = Callable[[Tensor], Tensor]


def images(n: int = 3, channels: int = 3, height: int = 6, width: int = 5) -> Tensor:
    return torch.randn(
        n, channels, height, width, dtype=F64, generator=torch.Generator().manual_seed(0)
    )


def carried_out(change: DSA, x: Tensor, draw: Draw) -> Tensor:
    return change.apply(x, (draw,))


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def sampled(x: Tensor, matrix: list[list[float]]) -> Tensor:
    """PyTorch's own bilinear warp, in coordinates from -1 to 1."""
    grid = affine_grid(
        torch.tensor([matrix], dtype=F64).expand(len(x), 2, 3), list(x.shape), align_corners=False
    )
    return grid_sample(x, grid, align_corners=False)


def test_flip_mirrors_the_chosen_examples() -> None:
    x = images()
    flipped = augment.flip(x, torch.tensor([True, False, True])).numpy()
    np.testing.assert_array_equal(flipped[0], x[0].numpy()[..., ::-1])
    np.testing.assert_array_equal(flipped[1], x[1].numpy())
    np.testing.assert_array_equal(flipped[2], x[2].numpy()[..., ::-1])


@given(st.integers(-7, 7), st.integers(-7, 7))
def test_crop_is_a_shift_with_zeros(down: int, right: int) -> None:
    x = images(height=5, width=4)
    expected = np.zeros(x.shape)
    for i in range(5):
        for j in range(4):
            if 0 <= i - down < 5 and 0 <= j - right < 4:
                expected[:, :, i, j] = x[:, :, i - down, j - right]
    np.testing.assert_array_equal(
        augment.crop(x, torch.tensor([down]), torch.tensor([right])), expected
    )


def test_crop_shifts_each_example_by_its_own_amount() -> None:
    x = images()
    down, right = torch.tensor([1, 0, -2]), torch.tensor([0, 3, -1])
    each = [augment.crop(x[i : i + 1], down[i : i + 1], right[i : i + 1]) for i in range(3)]
    assert torch.equal(augment.crop(x, down, right), torch.cat(each))


@pytest.mark.parametrize("quarter_turns", [-1, 1, 2, 3])
def test_quarter_turns_are_exact(quarter_turns: int) -> None:
    x = images(height=6, width=6)
    turned = augment.rotate(x, numbers(quarter_turns * math.pi / 2))
    torch.testing.assert_close(turned, torch.rot90(x, quarter_turns, (2, 3)), atol=1e-12, rtol=0)


def test_rotation_and_scaling_match_grid_sample() -> None:
    x, angle = images(height=6, width=6), 0.3
    turn = [[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0]]
    torch.testing.assert_close(
        augment.rotate(x, numbers(angle)), sampled(x, turn), atol=1e-12, rtol=0
    )
    x = images(height=6, width=5)
    stretch = [[1 / 0.8, 0, 0], [0, 1 / 1.2, 0]]
    torch.testing.assert_close(
        augment.scale(x, numbers(1.2), numbers(0.8)), sampled(x, stretch), atol=1e-12, rtol=0
    )


def test_warps_by_nothing_change_nothing_and_act_per_example() -> None:
    x = images()
    torch.testing.assert_close(augment.rotate(x, numbers(0)), x)
    torch.testing.assert_close(augment.scale(x, numbers(1), numbers(1)), x)
    each = torch.cat([augment.rotate(x[i : i + 1], numbers(0.2 * i)) for i in range(3)])
    torch.testing.assert_close(augment.rotate(x, numbers(0, 0.2, 0.4)), each)


@given(st.integers(0, 5), st.integers(0, 4), st.floats(0, 1))
def test_cutout_zeroes_a_clipped_square(row: int, column: int, fraction: float) -> None:
    x = images()
    tall, wide = round(fraction * 6), round(fraction * 5)
    expected = x.numpy().copy()
    top, left = row - tall // 2, column - wide // 2
    expected[:, :, max(top, 0) : max(top + tall, 0), max(left, 0) : max(left + wide, 0)] = 0
    np.testing.assert_array_equal(
        augment.cutout(x, torch.tensor([row]), torch.tensor([column]), fraction), expected
    )


def test_colour_operations_keep_what_they_should() -> None:
    x, factor = images(), numbers(0.5, 1.0, 2.0)
    shape = (3, 1, 1, 1)
    torch.testing.assert_close(augment.brightness(x, factor) - x, factor.view(shape).expand_as(x))
    saturated, contrasted = augment.saturation(x, factor), augment.contrast(x, factor)
    torch.testing.assert_close(saturated.mean(1), x.mean(1))
    torch.testing.assert_close(saturated.std(1), x.std(1) * factor.view(3, 1, 1))
    torch.testing.assert_close(contrasted.mean((1, 2, 3)), x.mean((1, 2, 3)))
    torch.testing.assert_close(contrasted.std((1, 2, 3)), x.std((1, 2, 3)) * factor)
    grey = images(channels=1)
    torch.testing.assert_close(augment.saturation(grey, factor), grey)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_has_first_and_second_derivatives(operation: str, channels: int) -> None:
    x = images(2, channels, 4, 4).requires_grad_()
    change = DSA(operation, siamese=False)
    draw = change.draw(Rng(3), 2)
    apply: Change = lambda t: change.apply(t, draw)  # noqa: E731
    assert torch.autograd.gradcheck(apply, x)
    assert torch.autograd.gradgradcheck(lambda t: apply(t).pow(3), x)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_siamese_batches_share_their_change(operation: str) -> None:
    x, change, rng = images(5), DSA(operation), Rng(7)("step", 3)
    whole = change(x, rng)
    torch.testing.assert_close(torch.cat([change(x[i : i + 1], rng) for i in range(5)]), whole)
    assert whole.shape == x.shape
    assert whole.dtype == x.dtype


@pytest.mark.parametrize("operation", OPERATIONS)
def test_independent_draws_differ_between_examples(operation: str) -> None:
    x = images(1).expand(40, -1, -1, -1)
    changed = DSA(operation, siamese=False)(x, Rng(1))
    assert len({row.numpy().tobytes() for row in changed}) >= (2 if operation == "flip" else 5)


def test_draws_depend_on_rng_alone() -> None:
    x, change = images(), DSA()
    first = change(x, Rng(0)("a"))
    torch.manual_seed(123)
    torch.rand(10)
    assert torch.equal(first, change(x, Rng(0)("a")))
    drawn = [change.draw(Rng(0)(i), 1)[0].operation for i in range(600)]
    assert {drawn.count(operation) > 60 for operation in OPERATIONS} == {True}
    assert set(drawn) == set(OPERATIONS)


@pytest.mark.parametrize("siamese", [True, False])
def test_strategies_joined_by_plus_are_followed_in_turn(siamese: bool) -> None:
    x, change, rng = images(4), DSA("flip+color+crop_rotate", siamese=siamese), Rng(3)
    expected, places = x, []
    for place, part in enumerate(("flip", "color", "crop_rotate")):
        single = DSA(part, siamese=siamese)
        draws = single.draw(rng("choice", place), 4)
        expected = single.apply(expected, draws)
        places.append(draws[0].operation)
    assert torch.equal(change(x, rng), expected)
    assert places[:2] == ["flip", "color"]
    drawn = {change.draw(Rng(seed), 4)[2].operation for seed in range(30)}
    assert drawn == {"crop", "rotate"}
    assert len({change(x, Rng(seed)).numpy().tobytes() for seed in range(8)}) == 8


@pytest.mark.parametrize(
    ("operation", "low", "high"),
    [
        (
            "rotate",
            lambda x: augment.rotate(x, numbers(math.radians(-15))),
            lambda x: augment.rotate(x, numbers(math.radians(15))),
        ),
        (
            "scale",
            lambda x: augment.scale(x, *numbers(1 / 1.2, 1 / 1.2).unsqueeze(1)),
            lambda x: augment.scale(x, *numbers(1.2, 1.2).unsqueeze(1)),
        ),
        (
            "crop",
            lambda x: augment.crop(x, torch.tensor([-2]), torch.tensor([-2])),
            lambda x: augment.crop(x, torch.tensor([2]), torch.tensor([2])),
        ),
        (
            "color",
            lambda x: augment.contrast(augment.saturation(x - 0.5, numbers(0.0)), numbers(0.5)),
            lambda x: augment.contrast(augment.saturation(x + 0.5, numbers(2.0)), numbers(1.5)),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_defaults_span_the_reference_ranges(operation: str, low: Change, high: Change) -> None:
    """Extremes of the uniform numbers give the extremes of the published settings."""
    x, change = images(2, 3, 16, 16), DSA()
    for u, expected in ((0.0, low(x)), (1 - 2.0**-24, high(x))):
        found = carried_out(change, x, Draw(operation, torch.full((1, 3), u)))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_cutout_at_the_corner_is_clipped() -> None:
    corner = carried_out(
        DSA(), images(2, 3, 16, 16), Draw("cutout", torch.full((1, 3), 1 - 2.0**-24))
    )
    assert (corner == 0).sum() == 2 * 3 * 5 * 5  # 8×8 around the last pixel


def test_the_largest_uniform_number_gives_the_last_whole_one() -> None:
    largest = torch.tensor([1 - 2.0**-24])
    assert all(int(augment._whole(largest, high)) == high - 1 for high in range(1, 2000))


def test_flip_probability_is_respected() -> None:
    x = torch.tensor([0.0, 1.0]).view(1, 1, 1, 2).expand(4000, -1, -1, -1)
    for probability in (0.0, 0.25, 1.0):
        share = DSA("flip", siamese=False, flip=probability)(x, Rng(0))[:, 0, 0, 0].mean()
        assert abs(float(share) - probability) < 0.03


def test_low_precision_stays_low() -> None:
    x = images().bfloat16()
    assert all(DSA(operation)(x, Rng(0)).dtype == torch.bfloat16 for operation in OPERATIONS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "color_rotat"}, "unknown augmentation 'rotat'.*did you mean 'rotate'"),
        ({"strategy": ""}, "unknown augmentation ''"),
        ({"strategy": "flip_flip"}, "twice"),
        ({"strategy": "crop_flip+flip"}, "twice"),
        ({"strategy": "crop+"}, "unknown augmentation ''"),
        ({"scale": 0.5}, "scale = 0.5 must be at least 1"),
        ({"flip": 2.0, "cutout": -1.0}, "flip = 2.0 .*; cutout = -1.0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DSA(**settings)


def test_features_cannot_be_augmented() -> None:
    with pytest.raises(ConfigError, match=r"images .*\(4, 2\)"):
        DSA()(torch.zeros(4, 2), Rng(0))


@pytest.mark.parametrize("place", range(len(OPERATIONS)))
def test_an_operation_chosen_on_the_device_is_the_same_operation(place: int) -> None:
    x, change = images(3), DSA()
    (drawn,) = change.draw(Rng(2)("step", 1), len(x))
    by_name = carried_out(change, x, drawn._replace(operation=change.operations[place]))
    by_place = carried_out(change, x, drawn._replace(operation=torch.tensor(place)))
    assert torch.equal(by_name, by_place)
    assert not torch.equal(by_place, x) or change.operations[place] == "flip"
