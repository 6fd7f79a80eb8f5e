"""Data sets that need no files: digits, which ship with the package, and two generated sets.

The digits are the 1,797 8×8 images of the *Optical Recognition of Handwritten Digits* test set (E.
Alpaydin and C. Kaynak, 1998, UCI Machine Learning Repository, doi:10.24432/C50P49, CC BY 4.0) as
scikit-learn's `load_digits` distributes them. Grey values 0..16 are stored as round(v · 255 / 16);
the stratified split into 1,437 training and 360 test images was drawn once and is frozen in
`digits.npz`. The generated sets are functions of their arguments alone.
"""

import math
from importlib.resources import files

import numpy as np
import torch

from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples


def digits() -> Dataset:
    """Handwritten digits, uint8 (n, 1, 8, 8): 1,437 to train on, 360 to test on."""
    with (
        files("pseudocore.data").joinpath("digits.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        x, y, test = (torch.from_numpy(arrays[key]) for key in ("x", "y", "test"))
    y = y.long()
    train, held_out = Examples(x[~test], y[~test]), Examples(x[test], y[test])
    return Dataset("digits", train, held_out, 10, tuple("0123456789"))


def logistic(num: int = 200, num_test: int = 200, seed: int = 0) -> Dataset:
    """Logistic regression in the plane: x ~ N(0, I), p(y = 1 | x) = sigmoid(x·θ), θ = (2, −1)."""
    _check_sizes(num, num_test)

    def draw(num: int, rng: Rng) -> Examples:
        x = rng("inputs").normal(num, 2)
        probability = (x @ torch.tensor([2.0, -1.0])).sigmoid()
        return Examples(x, (rng("labels").uniform(num) < probability).long())

    rng = Rng(seed)("logistic")
    return Dataset("logistic", draw(num, rng("train")), draw(num_test, rng("test")), 2)


def moons(num: int = 200, num_test: int = 200, noise: float = 0.1, seed: int = 0) -> Dataset:
    """Two interleaved half circles with Gaussian noise: (n, 2), classes upper and lower."""
    _check_sizes(num, num_test)

    def draw(num: int, rng: Rng) -> Examples:
        y = torch.arange(num) % 2
        angle = math.pi * rng("angles").uniform(num)
        upper = torch.stack([angle.cos(), angle.sin()], 1)
        lower = torch.tensor([1.0, 0.5]) - upper
        x = torch.where(y[:, None] == 0, upper, lower)
        return Examples(x + noise * rng("noise").normal(num, 2), y)

    rng = Rng(seed)("moons")
    train, test = draw(num, rng("train")), draw(num_test, rng("test"))
    return Dataset("moons", train, test, 2, ("upper", "lower"))


def _check_sizes(num: int, num_test: int) -> None:
    if num < 2 or num_test < 1:
        message = f"at least 2 training and 1 test points are needed, not {num} and {num_test}"
        raise ConfigError(message, code="out-of-range")
