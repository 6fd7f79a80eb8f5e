"""Data that ships inside the package, so that everything can be tried without a download.

The digits are the 1,797 8×8 images of the *Optical Recognition of Handwritten Digits* test set (E.
Alpaydin and C. Kaynak, 1998, UCI Machine Learning Repository, doi:10.24432/C50P49, CC BY 4.0) as
scikit-learn's `load_digits` distributes them. Grey values 0..16 are stored as round(v · 255 / 16);
the stratified split into 1,437 training and 360 test images was drawn once and is frozen in
`digits.npz`.
"""

from importlib.resources import files

import numpy as np
import torch

from pseudocore.core.types import Dataset, Examples
from pseudocore.data.names import class_names


def digits() -> Dataset:
    """Handwritten digits, uint8 (n, 1, 8, 8): 1,437 to train on, 360 to test on."""
    with (
        files("pseudocore.data").joinpath("digits.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        x, y, test = (torch.from_numpy(arrays[key]) for key in ("x", "y", "test"))
    y = y.long()
    return Dataset(
        "digits",
        Examples(x[~test], y[~test]),
        Examples(x[test], y[test]),
        10,
        class_names("digits", 10),
    )
