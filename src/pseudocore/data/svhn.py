"""Street View House Numbers, cropped digits: `train_32x32.mat` and `test_32x32.mat`; their label 10
means the digit 0.
"""

from pathlib import Path

import numpy as np
import torch

from pseudocore.core.errors import DataError
from pseudocore.core.types import Dataset, Examples
from pseudocore.data.names import class_names


def recognise(folder: Path) -> bool:
    return (folder / "train_32x32.mat").is_file()


def read(folder: Path, name: str = "") -> Dataset:
    name = name or "svhn"
    train, test = (_read_file(folder / f"{part}_32x32.mat") for part in ("train", "test"))
    return Dataset(name, train, test, 10, class_names("svhn", 10))


def _read_file(path: Path) -> Examples:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise DataError(
            'reading SVHN\'s .mat files needs SciPy; pip install "pseudocore[svhn]"'
        ) from error
    if not path.is_file():
        raise DataError(f"{path} is missing; SVHN is train_32x32.mat and test_32x32.mat")
    try:
        content = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # SciPy meets a damaged file with whatever its parser stumbles over
        raise DataError(
            f"{path} cannot be read as a MATLAB file ({type(error).__name__}: {error})"
        ) from error
    pixels, labels = content.get("X"), content.get("y")
    if pixels is None or pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[2] != 3:
        raise DataError(
            f"{path} has no uint8 array X of (height, width, 3, n); it is not SVHN's cropped-digit format"
        )
    if labels is None or labels.size != pixels.shape[3] or labels.min() < 1 or labels.max() > 10:
        raise DataError(
            f"{path} has no array y of {pixels.shape[3]} labels in 1..10; it is not SVHN's cropped-digit format"
        )
    x = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return Examples(torch.from_numpy(x), torch.from_numpy(labels.ravel().astype(np.int64) % 10))
