"""NCFM's discrepancy against complex numbers, known distributions and finite differences."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from pseudocore.core.rng import Rng
from pseudocore.methods.condense.ncfm import NCFM, discrepancy
from pseudocore.testing.problems import small_problem


def normal(name: str, *shape: int) -> Tensor:
    return Rng(0)(name).normal(*shape, dtype=torch.float64)


def characteristic(features: Tensor, frequencies: Tensor) -> np.ndarray:
    return np.exp(1j * (frequencies @ features.T).numpy()).mean(1)


@pytest.mark.parametrize("amplitude", [0.0, 0.3, 0.5, 0.9])
def test_it_is_the_paper_s_in_complex_numbers(amplitude: float) -> None:
    one, other, t = normal("one", 7, 3), 0.5 + normal("other", 4, 3), normal("t", 50, 3)
    a, b = characteristic(one, t), characteristic(other, t)
    sizes = (abs(a) - abs(b)) ** 2
    phases = 2 * abs(a) * abs(b) * (1 - np.cos(np.angle(a) - np.angle(b)))
    exact = np.sqrt(amplitude * sizes + (1 - amplitude) * phases).mean()
    assert float(discrepancy(one, other, t, amplitude)) == pytest.approx(exact, rel=1e-9)


def test_of_gaussians_it_is_that_of_their_characteristic_functions() -> None:
    """Of N(m, s²I): exp(i⟨t, m⟩ − s²|t|²/2)."""
    mean, num = torch.tensor([0.8, -0.3], dtype=torch.float64), 20_000
    t = normal("t", 100, 2)
    exact = np.exp(-(t**2).sum(1).numpy() / 2) - np.exp(
        1j * (t @ mean).numpy() - 0.49 * (t**2).sum(1).numpy() / 2
    )
    found = discrepancy(normal("one", num, 2), mean + 0.7 * normal("other", num, 2), t, 0.5)
    assert float(found) == pytest.approx(abs(exact).mean() / math.sqrt(2), abs=5 / num**0.5)
    same = discrepancy(normal("one", num, 2), normal("again", num, 2), t, 0.5)
    assert float(same) < 5 / num**0.5


@pytest.mark.parametrize("amplitude", [0.2, 0.5, 1.0])
def test_its_gradient_is_that_of_finite_differences(amplitude: float) -> None:
    one, other, t = normal("one", 6, 3), 0.3 + normal("other", 2, 3), normal("t", 9, 3)
    other.requires_grad_()
    (gradient,) = torch.autograd.grad(discrepancy(one, other, t, amplitude), other)
    step = 1e-5
    for place in np.ndindex(2, 3):
        change = torch.zeros(2, 3, dtype=torch.float64)
        change[place] = step
        up, down = (
            discrepancy(one, other.detach() + sign * change, t, amplitude) for sign in (1, -1)
        )
        assert float(gradient[place]) == pytest.approx(float(up - down) / (2 * step), rel=1e-4)


def test_scales_of_frequencies_climb_and_images_descend() -> None:
    """With the networks of one expert at one epoch and fixed draws, many small steps."""
    problem = small_problem(experts=True)
    options = {"per_class": 2, "max_start": 1, "batch_size": 12, "calibration": 0.0}
    for changes, sign in (({"image_lr": 0.02}, -1), ({"image_lr": 1e-9, "frequency_lr": 0.05}, 1)):
        method = NCFM(**options, num_frequencies=64, **changes)  # type: ignore[arg-type]
        state, losses = method.init(problem, Rng(0)), list[float]()
        for _ in range(15):
            state, info = method.step(problem, state, Rng(1))
            losses.append(float(info.loss))
        assert sign * (losses[-1] - losses[0]) > 0.02 * losses[0], losses
