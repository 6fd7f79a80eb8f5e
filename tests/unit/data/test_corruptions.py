"""The corruptions: each against an independent computation, streams per image, damage by severity,
the official files.
"""

import colorsys
import io
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.rng import Rng
from pseudocore.data import corruptions
from pseudocore.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt, official, warp
from pseudocore.data.corruptions.distort import DISTORTIONS

every_kind = pytest.mark.parametrize("kind", CORRUPTIONS)
every_severity = pytest.mark.parametrize("severity", SEVERITIES)


def pictures(
    n: int = 6, channels: int = 3, height: int = 32, width: int = 32, seed: int = 0
) -> Tensor:
    """Smooth colourful pictures with the whole range of values, uint8."""
    noise = Rng(seed)("pictures").normal(n, channels, height, width, dtype=torch.float64).numpy()
    smooth = ndimage.gaussian_filter(noise, (0, 0, 1.5, 1.5), mode="wrap")
    low, high = smooth.min((1, 2, 3), keepdims=True), smooth.max((1, 2, 3), keepdims=True)
    return torch.from_numpy(np.round((smooth - low) / (high - low) * 255).astype(np.uint8))


def distorted(x: Tensor, kind: str, severity: int) -> Tensor:
    """In floats, before pixels are cut to whole numbers in range; `x` in [0, 1]."""
    return DISTORTIONS[kind](x.double(), severity, [Rng(0)(i) for i in range(len(x))])


def as_bytes(x: np.ndarray) -> np.ndarray:
    pixels: np.ndarray = np.floor(np.clip(x, 0, 1) * 255 + 1e-6).astype(np.uint8)
    return pixels


# --- every kind


def test_there_are_the_fifteen() -> None:
    assert len(CORRUPTIONS) == 15


@pytest.mark.parametrize(
    "shape", [(2, 3, 32, 32), (3, 1, 28, 28), (1, 1, 8, 8), (2, 3, 20, 36)], ids=str
)
@every_kind
def test_images_stay_images(kind: str, shape: tuple[int, int, int, int]) -> None:
    x = pictures(*shape)
    before = x.clone()
    for severity in (1, 5):
        out = corrupt(x, kind, severity, Rng(0))
        assert (out.dtype, out.shape) == (torch.uint8, x.shape)
    assert not torch.equal(
        out, x
    )  # at the highest severity: the least of some kinds is nothing on 8×8
    assert torch.equal(x, before)


@every_kind
def test_an_image_depends_on_its_number_alone(kind: str) -> None:
    """Not on the global stream, its neighbours, or the blocks the work is done in."""
    x = pictures(7)
    torch.manual_seed(0)
    whole = corrupt(x, kind, 4, Rng(3))
    torch.manual_seed(1)
    assert torch.equal(corrupt(x, kind, 4, Rng(3), block=2), whole)
    assert torch.equal(corrupt(x[5:], kind, 4, Rng(3), first=5), whole[5:])


RANDOM = [
    kind
    for kind in CORRUPTIONS
    if kind
    not in ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
]


@every_kind
def test_seeds_and_places_matter_where_there_is_chance(kind: str) -> None:
    x = pictures(1).expand(2, -1, -1, -1)
    out, other = corrupt(x, kind, 3, Rng(0)), corrupt(x, kind, 3, Rng(1))
    assert torch.equal(out, other) == (kind not in RANDOM)
    assert torch.equal(out[0], out[1]) == (kind not in RANDOM)


@every_kind
def test_damage_grows_with_severity(kind: str) -> None:
    """By mean absolute difference; three kinds trade one constant for another on the way, in the
    official ones too.
    """
    x = pictures(40)
    damage = [
        float((corrupt(x, kind, severity, Rng(0)).double() - x.double()).abs().mean())
        for severity in SEVERITIES
    ]
    if kind == "elastic_transform":
        assert min(damage) > 3
    elif kind in ("glass_blur", "frost"):
        assert damage[4] > damage[0]
    else:
        assert all(high > 0.99 * low for low, high in itertools.pairwise(damage)), damage
        assert damage[4] > 1.2 * damage[0]


# --- noise

GREY = torch.full((20, 3, 32, 32), 0.5)


@every_severity
def test_gaussian_noise_has_its_scale(severity: int) -> None:
    noise = distorted(GREY, "gaussian_noise", severity) - 0.5
    scale, n = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1], noise.numel()
    assert abs(noise.std() / scale - 1) < 4 / math.sqrt(2 * n)
    assert abs(noise.mean()) < 4 * scale / math.sqrt(n)


@every_severity
def test_shot_noise_is_poisson(severity: int) -> None:
    photons = (500, 250, 100, 75, 50)[severity - 1]
    out = distorted(GREY, "shot_noise", severity)
    counts = out * photons
    torch.testing.assert_close(counts, counts.round())
    n = counts.numel()
    assert abs(counts.mean() - photons / 2) < 4 * math.sqrt(photons / 2 / n)
    assert abs(counts.var() / (photons / 2) - 1) < 4 * math.sqrt(2 / n) * 1.1
    assert (distorted(GREY * 0, "shot_noise", severity) == 0).all()


@every_severity
def test_impulse_noise_strikes_its_share(severity: int) -> None:
    share, out = (
        (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1],
        distorted(GREY, "impulse_noise", severity),
    )
    n = out.numel()
    for value in (0, 1):
        assert abs((out == value).double().mean() - share / 2) < 4 * math.sqrt(share / 2 / n)
    assert ((out == 0) | (out == 1) | (out == 0.5)).all()


# --- blur


@pytest.mark.parametrize(
    "kind", ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "elastic_transform"]
)
@every_severity
def test_blurs_leave_an_even_image_alone_and_stay_between_its_extremes(
    kind: str, severity: int
) -> None:
    torch.testing.assert_close(
        distorted(GREY[:2], kind, severity), GREY[:2].double(), rtol=0, atol=1 / 255
    )  # glass works on bytes
    x = pictures(3).double() / 255
    out = distorted(x, kind, severity)
    assert (out.amax((2, 3)) <= x.amax((2, 3)) + 1e-9).all()
    assert (out.amin((2, 3)) >= x.amin((2, 3)) - 1 / 255).all()


@pytest.mark.parametrize(
    ("sigma", "truncate", "mirror"),
    [(0.4, 4.0, False), (1.3, 4.0, False), (6.4, 3.0, True), (3.0, 3.0, True)],
)
def test_gaussian_blur_is_scipys(sigma: float, truncate: float, mirror: bool) -> None:
    x = pictures(2, 3, 20, 32).double()
    mode = "reflect" if mirror else "nearest"
    expected = ndimage.gaussian_filter(
        x.numpy(), (0, 0, sigma, sigma), truncate=truncate, mode=mode
    )
    torch.testing.assert_close(
        warp.blur(x, sigma, truncate=truncate, mirror=mirror), torch.from_numpy(expected)
    )


@every_severity
def test_defocus_is_a_softened_disc(severity: int) -> None:
    radius, soften = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[severity - 1]
    x = pictures(2).double() / 255
    row, column = np.mgrid[-8:9, -8:9]
    disc = (row**2 + column**2 <= radius**2) * 1.0
    line = np.exp(-(np.arange(-1, 2) ** 2) / (2 * soften**2))
    kernel = ndimage.convolve(
        disc / disc.sum(), np.outer(line, line) / line.sum() ** 2, mode="constant"
    )
    expected = ndimage.convolve(x.numpy(), kernel[None, None], mode="mirror")
    torch.testing.assert_close(distorted(x, "defocus_blur", severity), torch.from_numpy(expected))


def test_glass_copies_neighbours() -> None:
    """At severity 1 the blur is none: every pixel holds its own value or that of one above, to the
    left, or both; a frame stays.
    """
    x = torch.arange(32 * 32, dtype=torch.float64).view(1, 1, 32, 32) % 251 / 255
    out = (distorted(x, "glass_blur", 1) * 255).round().long()[0, 0]
    whole = (x * 255).round().long()[0, 0]
    assert torch.equal(out[:2], whole[:2])
    assert torch.equal(out[:, :2], whole[:, :2])
    sources = [whole[2 - up : 32 - up, 2 - left : 32 - left] for up in (0, 1) for left in (0, 1)]
    taken = torch.stack([out[2:, 2:] == source for source in sources])
    assert taken.any(0).all()
    assert ((taken.double().mean((1, 2)) - 0.25).abs() < 4 * math.sqrt(0.25 * 0.75 / 900)).all()


def test_motion_blur_by_a_loop() -> None:
    x = pictures(3, 1, 12, 16).double()
    degrees = torch.tensor([0.0, 30.0, -100.0])
    out = warp.motion_blur(x, 2, 1.5, degrees)
    weights = [math.exp(-(i**2) / (2 * 1.5**2)) for i in range(5)]
    for image, angle in enumerate(map(math.radians, degrees.tolist())):
        for r, c in [(0, 0), (5, 7), (11, 15), (11, 0), (6, 15)]:
            total = 0.0
            for i, weight in enumerate(weights):
                rr = min(max(r + math.ceil(i * math.sin(angle) - 0.5), 0), 11)
                cc = min(max(c + math.ceil(i * math.cos(angle) - 0.5), 0), 15)
                total += weight * float(x[image, 0, rr, cc])
            assert float(out[image, 0, r, c]) == pytest.approx(total / sum(weights), rel=1e-5)


@every_severity
def test_zoom_blur_is_the_mean_of_scipys_zooms(severity: int) -> None:
    x = (pictures(1).double() / 255)[0].numpy()
    factors = np.arange(1, (1.06, 1.11, 1.16, 1.21, 1.26)[severity - 1] - 1e-9, 0.01)
    total = x.copy()
    for factor in factors:
        part = math.ceil(32 / round(factor, 2))
        top = (32 - part) // 2
        large = ndimage.zoom(
            x[:, top : top + part, top : top + part],
            (1, round(factor, 2), round(factor, 2)),
            order=1,
        )
        trim = (large.shape[1] - 32) // 2
        total += large[:, trim : trim + 32, trim : trim + 32]
    got = distorted(torch.from_numpy(x)[None], "zoom_blur", severity)[0]
    torch.testing.assert_close(
        got, torch.from_numpy(total / (len(factors) + 1)), rtol=1e-6, atol=1e-6
    )


# --- weather


def test_plasma_by_loops() -> None:
    """Diamond-square on a torus of side 8, one point at a time."""
    noise = 2 * Rng(0).uniform(1, 8, 8, dtype=torch.float64) - 1
    z, r = np.zeros((8, 8)), noise[0].numpy()
    step, size = 8, 1.0
    while step > 1:
        half = step // 2
        for i in range(half, 8, step):
            for j in range(half, 8, step):
                z[i, j] = (
                    np.mean(
                        [z[(i + a) % 8, (j + b) % 8] for a in (-half, half) for b in (-half, half)]
                    )
                    + size * r[i, j]
                )
        for i in range(0, 8, half):
            for j in range(0, 8, half):
                if (i + j) // half % 2:
                    around = [
                        z[(i + a) % 8, (j + b) % 8]
                        for a, b in ((-half, 0), (half, 0), (0, -half), (0, half))
                    ]
                    z[i, j] = np.mean(around) + size * r[i, j]
        step, size = half, size / 1.75**2
    torch.testing.assert_close(
        warp.plasma(noise, 1.75)[0], torch.from_numpy((z - z.min()) / (z.max() - z.min()))
    )


@every_severity
def test_fog_keeps_the_brightest_at_most_as_bright_and_adds_one_grey_layer(severity: int) -> None:
    x = pictures(4).double() / 255
    thickness = (0.2, 0.5, 0.75, 1.0, 1.5)[severity - 1]
    brightest = x.amax((1, 2, 3), keepdim=True)
    layer = distorted(x, "fog", severity) * (brightest + thickness) / brightest - x
    torch.testing.assert_close(layer, layer[:, :1].expand_as(layer))
    torch.testing.assert_close(
        layer.amax((1, 2, 3)), torch.full((4,), thickness, dtype=torch.float64)
    )
    torch.testing.assert_close(layer.amin((1, 2, 3)), torch.zeros(4, dtype=torch.float64))


@every_severity
def test_frost_dims_the_image_and_adds_ice_within_bounds(severity: int) -> None:
    image, ice = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    x = pictures(4).double() / 255
    layer = (distorted(x, "frost", severity) - image * x) / ice
    assert ((layer >= 0.3) & (layer <= 1)).all()
    assert (layer.amax((1, 2, 3)) > 0.9).all()
    assert (layer[:, 2] > layer[:, 0]).all()


@every_severity
def test_snow_only_ever_brightens_and_its_flakes_mirror(severity: int) -> None:
    keep = (0.95, 0.9, 0.9, 0.85, 0.8)[severity - 1]
    x = pictures(4).double() / 255
    grey = x[:, :1] * 0.299 + x[:, 1:2] * 0.587 + x[:, 2:] * 0.114
    flakes = (
        distorted(x, "snow", severity) - keep * x - (1 - keep) * torch.maximum(x, 1.5 * grey + 0.5)
    )
    assert (flakes > -1e-12).all()
    assert flakes.max() > 0.05
    torch.testing.assert_close(flakes, flakes.flip(2, 3))
    torch.testing.assert_close(flakes, flakes[:, :1].expand_as(flakes))


# --- digital


@every_severity
def test_brightness_is_that_of_hsv(severity: int) -> None:
    x = pictures(1, 3, 10, 10)
    x[0, :, 0, 0] = 0  # black has neither hue nor saturation
    more = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    expected = np.empty((3, 10, 10))
    for r in range(10):
        for c in range(10):
            hue, saturation, value = colorsys.rgb_to_hsv(*(x[0, :, r, c].double() / 255).tolist())
            expected[:, r, c] = colorsys.hsv_to_rgb(hue, saturation, min(value + more, 1))
    assert np.array_equal(corrupt(x, "brightness", severity, Rng(0))[0].numpy(), as_bytes(expected))


def test_brightness_of_grey_is_added() -> None:
    x = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8) * 4
    assert np.array_equal(
        corrupt(x, "brightness", 4, Rng(0)).numpy(), as_bytes(x.numpy() / 255 + 0.2)
    )


@every_severity
def test_contrast_shrinks_towards_each_channels_mean(severity: int) -> None:
    x, factor = pictures(5), (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    pixels = x.numpy() / 255
    mean = pixels.mean((2, 3), keepdims=True)
    assert np.array_equal(
        corrupt(x, "contrast", severity, Rng(0)).numpy(), as_bytes(mean + factor * (pixels - mean))
    )


def test_elastic_transform_of_the_first_severity_is_affine() -> None:
    """On a picture of column numbers; away from the mirrored edges, where second differences
    vanish.
    """
    x = (torch.arange(32).double() / 31).expand(5, 1, 32, 32)
    out = distorted(x, "elastic_transform", 1)[:, 0, 12:20, 12:20] * 31
    assert out.diff(n=2, dim=1).abs().max() < 1e-9
    assert out.diff(n=2, dim=2).abs().max() < 1e-9
    shift = out - torch.arange(12.0, 20.0)
    assert 0.05 < shift.abs().mean() < 0.08 * 32 * 2


@pytest.mark.parametrize(("about_edge_pixels", "mode"), [(True, "mirror"), (False, "reflect")])
def test_displacement_is_scipys(about_edge_pixels: bool, mode: str) -> None:
    x = pictures(1, 1, 12, 16).double()
    rows = torch.arange(12.0).double()[:, None] + 4 * Rng(0).normal(12, 16, dtype=torch.float64)
    columns = torch.arange(16.0).double() + 4 * Rng(1).normal(12, 16, dtype=torch.float64)
    expected = ndimage.map_coordinates(
        x[0, 0].numpy(), [rows.numpy(), columns.numpy()], order=1, mode=mode
    )
    got = warp.displace(x, rows[None], columns[None], about_edge_pixels=about_edge_pixels)[0, 0]
    torch.testing.assert_close(got, torch.from_numpy(expected), rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
@every_severity
def test_jpeg_and_pixelate_are_pillows(severity: int, channels: int) -> None:
    x = pictures(2, channels)
    quality, side = (80, 65, 58, 50, 40)[severity - 1], (30, 28, 27, 24, 20)[severity - 1]
    jpeg, boxes = (
        corrupt(x, "jpeg_compression", severity, Rng(0)),
        corrupt(x, "pixelate", severity, Rng(0)),
    )
    for i in range(2):
        array = x[i].permute(1, 2, 0).numpy()
        picture = Image.fromarray(array if channels == 3 else array[..., 0])
        file = io.BytesIO()
        picture.save(file, format="jpeg", quality=quality)
        small = picture.resize((side, side), Image.Resampling.BOX).resize(
            (32, 32), Image.Resampling.BOX
        )
        for got, expected in ((jpeg, Image.open(file)), (boxes, small)):
            assert np.array_equal(got[i].permute(1, 2, 0).numpy().squeeze(), np.asarray(expected))


# --- refusals


def test_unknown_words_are_refused_with_a_suggestion() -> None:
    x = pictures(1)
    with pytest.raises(ConfigError, match="did you mean 'gaussian_noise'"):
        corrupt(x, "gausian_noise", 1, Rng(0))
    for severity in (0, 6, 2.0, True):
        with pytest.raises(ConfigError, match="whole number from 1 to 5, not"):
            corrupt(x, "fog", severity, Rng(0))  # type: ignore[arg-type]


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(DataError, match=r"uint8 images .*not on torch.float32 \(1, 3, 32, 32\)"):
        corrupt(pictures(1).float(), "fog", 1, Rng(0))
    with pytest.raises(DataError, match=r"not on torch.uint8 \(3, 32, 32\)"):
        corrupt(pictures(1)[0], "fog", 1, Rng(0))
    with pytest.raises(DataError, match=r"at least 8×8, not on torch.uint8 \(1, 1, 4, 8\)"):
        corrupt(pictures(1, 1, 4, 8), "fog", 1, Rng(0))
    with pytest.raises(DataError, match="grey or RGB images, not on 4 channels"):
        corrupt(pictures(1, 4), "pixelate", 1, Rng(0))


def test_nothing_in_nothing_out() -> None:
    assert corrupt(pictures(1)[:0], "fog", 1, Rng(0)).shape == (0, 3, 32, 32)


# --- official files


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Official files as they would be with two images a severity."""
    monkeypatch.setattr(corruptions, "_OFFICIAL_SIZE", 2)
    monkeypatch.setenv("PSEUDOCORE_DATA", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "fog.npy", pictures(10).permute(0, 2, 3, 1).numpy())
    np.save(folder / "labels.npy", (np.arange(10) % 2).astype(np.uint8))
    return tmp_path


def test_official_files_are_read_where_present(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for severity in SEVERITIES:
        found = official("cifar10", "fog", severity, root=root)
        assert found is not None
        assert torch.equal(found.x, pictures(10)[2 * severity - 2 : 2 * severity])
        assert found.y.tolist() == [0, 1]
        assert (found.x.dtype, found.y.dtype) == (torch.uint8, torch.int64)
    assert official("cifar10", "fog", 1) is None
    assert official("cifar100", "fog", 1, root=root) is None
    assert official("digits", "fog", 1, root=root) is None
    monkeypatch.setenv("PSEUDOCORE_DATA", str(root))
    assert official("cifar10", "fog", 1) is not None


def test_damaged_official_files_are_refused(root: Path) -> None:
    with pytest.raises(DataError, match=r"snow.npy cannot be read as an array"):
        official("cifar10", "snow", 1, root=root)
    folder = root / "CIFAR-10-C"
    (folder / "snow.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match=r"snow.npy cannot be read as an array \(it is none\)"):
        official("cifar10", "snow", 1, root=root)
    np.save(folder / "snow.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"snow.npy cannot be read as an array"):
        official("cifar10", "snow", 1, root=root)
    np.save(folder / "snow.npy", np.zeros((3, 32, 32, 3), np.uint8))
    with pytest.raises(
        DataError, match=r"holds uint8 \(3, 32, 32, 3\), not whole numbers \(10, 32, 32, 3\)"
    ):
        official("cifar10", "snow", 1, root=root)
    with pytest.raises(ConfigError, match="did you mean 'snow'"):
        official("cifar10", "snoww", 1, root=root)
