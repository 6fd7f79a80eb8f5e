"""Preprocessing against scikit-learn, NumPy and SciPy, and against itself block by block."""

import json

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import digits, moons
from pseudocore.data.preprocessing import fit_standardise, fit_zca, make

F64 = torch.float64


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Correlated uint8 images (500, 2, 4, 3) with channels of different mean and spread."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(24, 24, generator=generator, dtype=F64)
    x = (torch.randn(500, 24, generator=generator, dtype=F64) @ mix * 6).view(500, 2, 4, 3)
    return (
        (x * torch.tensor([1.0, 0.5]).view(2, 1, 1) + torch.tensor([120.0, 80.0]).view(2, 1, 1))
        .clamp(0, 255)
        .byte()
    )


def pixels(x: Tensor) -> Tensor:
    return x.double() / 255


def dataset(x: Tensor, name: str = "made") -> Dataset:
    examples = Examples(x, torch.arange(len(x)) % 2)
    return Dataset(name, examples, examples, 2)


def test_standardised_channels_have_mean_zero_and_deviation_one(images: Tensor) -> None:
    fitted = fit_standardise(images, dtype=F64)
    per_channel = pixels(images).numpy().transpose(1, 0, 2, 3).reshape(2, -1)
    np.testing.assert_allclose(fitted.mean.flatten(), per_channel.mean(1), rtol=1e-12)
    np.testing.assert_allclose(fitted.std.flatten(), per_channel.std(1), rtol=1e-12)


def test_standardised_features_match_scikit_learn_and_constants_stay_finite() -> None:
    x = moons(num=60).train.x
    x = torch.cat([x, torch.full((60, 1), 0.1), x[:, :1] * 1e-3 + 1e4], 1)
    ours = fit_standardise(x, dtype=F64).apply(x.double())
    np.testing.assert_allclose(ours, StandardScaler().fit_transform(x.double().numpy()), atol=1e-7)
    assert ours[:, 2].abs().max() < 1e-9


def test_a_constant_channel_keeps_its_scale(images: Tensor) -> None:
    x = torch.cat(
        [images, torch.full_like(images[:, :1], 100)], 1
    )  # 100 / 255 summed leaves a rounding error, not zero
    for fitted in (fit_standardise(x, dtype=F64), fit_zca(x, dtype=F64)):
        assert fitted.std[2] == 1
        assert fitted.apply(pixels(x))[:, 2].abs().max() < 1e-9


def test_zca_is_the_inverse_root_of_the_regularised_covariance(images: Tensor) -> None:
    fitted = fit_zca(images, 0.1, dtype=F64)
    x = pixels(images).numpy()
    z = ((x - x.mean(0)) / x.std((0, 2, 3), keepdims=True)[0]).reshape(len(x), -1)
    covariance = np.cov(z.T, bias=True)
    root = np.real(sqrtm(covariance + 0.1 * np.trace(covariance) / 24 * np.eye(24)))
    np.testing.assert_allclose(
        fitted.apply(pixels(images)).flatten(1), z @ np.linalg.inv(root), atol=1e-8
    )


def test_zca_whitens_as_its_regularisation_vanishes(images: Tensor) -> None:
    white = fit_zca(images, 1e-12, dtype=F64).apply(pixels(images)).flatten(1)
    np.testing.assert_allclose(np.cov(white.T.numpy(), bias=True), np.eye(24), atol=1e-6)
    assert white.mean(0).abs().max() < 1e-9


def test_zca_survives_constant_pixels() -> None:
    data = digits()
    fitted = fit_zca(data.train.x, 0.1)
    x = data.test.x.float() / 255
    assert fitted.apply(x).isfinite().all()
    torch.testing.assert_close(fitted.invert(fitted.apply(x)), x, atol=1e-5, rtol=0)


@pytest.mark.parametrize("block", [1, 7, 500])
def test_blocks_do_not_change_the_fit(images: Tensor, block: int) -> None:
    whole, blocked = fit_zca(images, dtype=F64, block=4096), fit_zca(images, dtype=F64, block=block)
    for part in ("mean", "std", "whitening", "colouring"):
        torch.testing.assert_close(
            getattr(blocked, part), getattr(whole, part), rtol=1e-9, atol=1e-11
        )


def test_only_the_triangle_that_is_summed_is_used() -> None:
    """More than one strip of the blocked covariance (d > 512)."""
    x = torch.randint(256, (40, 1, 24, 24), generator=torch.Generator().manual_seed(0)).byte()
    z = pixels(x).flatten(1)
    z = (z - z.mean(0)) / pixels(x).std(unbiased=False)
    covariance = z.T @ z / 40
    shrunk = covariance + 0.1 * covariance.diagonal().mean() * torch.eye(576, dtype=F64)
    whitening = fit_zca(x, 0.1, dtype=F64).whitening
    torch.testing.assert_close(
        whitening @ shrunk @ whitening, torch.eye(576, dtype=F64), atol=1e-8, rtol=0
    )


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("kind", ["none", "standard", "published", "zca"])
def test_round_trip_types_gradients_and_description(
    images: Tensor, kind: str, dtype: torch.dtype
) -> None:
    x = images[:, :1].expand(-1, 3, -1, -1).contiguous() if kind == "published" else images
    preprocess = make(kind, dataset(x, "cifar10"), dtype=dtype)
    for given in (torch.float32, F64):  # tensors follow the input, whatever they were made for
        seen = preprocess.apply(pixels(x).to(given))
        assert seen.dtype == given
        torch.testing.assert_close(preprocess.invert(seen), pixels(x).to(given), atol=2e-5, rtol=0)
    inputs = pixels(x[:2]).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: preprocess.invert(preprocess.apply(t) ** 2), inputs)
    assert preprocess.describe()["kind"] == kind
    assert len(json.dumps(preprocess.describe())) < 300


def test_published_constants_belong_to_cifar(images: Tensor) -> None:
    x = images[:, :1].expand(-1, 3, -1, -1).contiguous()
    seen = make("published", dataset(x, "cifar100")).apply(torch.ones(1, 3, 1, 1))
    expected = [(1 - 0.4914) / 0.2023, (1 - 0.4822) / 0.1994, (1 - 0.4465) / 0.2010]
    torch.testing.assert_close(seen.flatten(), torch.tensor(expected))
    with pytest.raises(ConfigError, match="not of 'digits'"):
        make("published", digits())


def test_bad_requests_are_refused(images: Tensor) -> None:
    with pytest.raises(ConfigError, match="did you mean 'zca'"):
        make("zcaa", digits())
    with pytest.raises(ConfigError, match="above 0"):
        fit_zca(images, 0.0)
    with pytest.raises(ConfigError, match="images"):
        make("zca", moons())
    features = make("standard", moons()).describe()
    assert features == {"kind": "standard", "num_features": 2}
