"""Spectra against Parseval, single waves, and noise, whose spectra are known."""

import math

import pytest
import torch

from pseudocore.core.errors import DataError
from pseudocore.core.rng import Rng
from pseudocore.evaluation.spectrum import spectrum


@pytest.mark.parametrize("shape", [(3, 1, 8, 8), (300, 3, 9, 9), (2, 3, 6, 10)])
def test_power_adds_up_to_the_squares_of_the_pixels(shape: tuple[int, ...]) -> None:
    images = Rng(0).normal(*shape, dtype=torch.float64)
    got = spectrum(images)
    assert int(got.size.sum()) == shape[2] * shape[3]
    assert float((got.size * got.power).sum()) == pytest.approx(
        float(images.square().sum((2, 3)).mean()), rel=1e-12
    )


@pytest.mark.parametrize("waves", [0, 1, 3, 8])
def test_a_wave_has_power_at_its_frequency_alone(waves: int) -> None:
    ramp = torch.arange(16, dtype=torch.float64)
    image = torch.cos(2 * math.pi * waves * ramp / 16).expand(16, 16)
    for one in (image, image.mT):
        got = spectrum(one[None, None])
        assert int(got.power.argmax()) == waves
        assert float(got.frequency[waves]) == pytest.approx(waves / 16)
        others = torch.arange(len(got.power)) != waves
        assert float(got.power[others].abs().max()) < 1e-20


def test_noise_is_flat() -> None:
    got = spectrum(0.3 * Rng(1).normal(2000, 1, 16, 16))
    assert torch.allclose(got.power, torch.full_like(got.power, 0.09), rtol=0.1)


def test_bytes_are_pixels() -> None:
    images = Rng(2).integers(256, 5, 3, 8, 8).to(torch.uint8)
    assert torch.allclose(spectrum(images).power, spectrum(images.double() / 255).power, rtol=1e-12)


@pytest.mark.parametrize("shape", [(4, 7), (0, 1, 8, 8)])
def test_features_have_no_spectrum(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="a spectrum is one of images"):
        spectrum(torch.zeros(shape))
