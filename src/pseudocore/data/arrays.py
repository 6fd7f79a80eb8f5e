"""Arrays in memory, and NumPy archives of `train_x, train_y, test_x, test_y`, or `X, y, Xt, yt`,
with or without the test half.

Images are uint8 (n, height, width), (n, height, width, channels) or (n, channels, height, width);
features are (n, d) numbers. Optional arrays: `class_names`, texts; `layout`, "NCHW" or "NHWC",
where sizes alone do not tell.
"""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pseudocore.core.errors import DataError
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import reading
from pseudocore.data.splits import TEST_FRACTION, split
from pseudocore.store.files import replacing, writing

_SPELLINGS = (
    ("train_x", "train_y", "test_x", "test_y"),
    ("X", "y", "Xt", "yt"),
    ("x", "y", "xt", "yt"),
)


def dataset(
    x: Any,
    y: Any,
    *,
    test: tuple[Any, Any] | None = None,
    name: str = "arrays",
    class_names: Sequence[str] = (),
    layout: Literal["NCHW", "NHWC"] | None = None,
) -> Dataset:
    """A data set from arrays.

    Args:
        x: Training inputs, numpy or torch: images as uint8 or as floats from 0 to 1, (n, height,
            width), (n, height, width, channels) or (n, channels, height, width); or features
            (n, d).
        y: Integer labels (n,).
        test: Test inputs and labels. Defaults to a fifth of the training set.
        name: What to call it.
        class_names: Names of the classes. Defaults to none.
        layout: Where the channels of images are. By default found from the shape.

    Returns:
        The data set, checked.
    """
    given = {"train_x": x, "train_y": y}
    if test is not None:
        given["test_x"], given["test_y"] = test
    arrays = {key: _as_array(value) for key, value in given.items()}
    if class_names:
        arrays["class_names"] = np.array(class_names)
    if layout is not None:
        arrays["layout"] = np.array(layout)
    return _from_arrays(arrays, name, f"data set {name!r}")


def is_npz(path: Path) -> bool:
    return path.suffix == ".npz" and path.is_file()


def read_npz(path: Path, name: str) -> Dataset:
    """A set from one archive; without a test half, a fifth of it is split off."""
    return _from_arrays(_load(path), name, str(path))


def write_npz(path: Path, dataset: Dataset) -> None:
    """The inverse of `read_npz`; whole or not at all, also when two processes write at once."""
    arrays = {f"train_{key}": value.numpy() for key, value in dataset.train._asdict().items()}
    arrays |= {f"test_{key}": value.numpy() for key, value in dataset.test._asdict().items()}
    if dataset.is_images:
        arrays["layout"] = np.array("NCHW")
    if dataset.class_names:
        arrays["class_names"] = np.array(dataset.class_names)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)


def _from_arrays(arrays: Mapping[str, np.ndarray], name: str, where: str) -> Dataset:
    keys = next((keys for keys in _SPELLINGS if keys[0] in arrays and keys[1] in arrays), None)
    if keys is None:
        needed = "train_x, train_y, test_x, test_y (or X, y, Xt, yt) are needed"
        raise _unfit(where, f"has arrays {sorted(arrays)}; {needed}")
    if (keys[2] in arrays) != (keys[3] in arrays):
        advice = "give both, or neither to have a test set split off"
        raise _unfit(where, f"has only one of {keys[2]} and {keys[3]}; {advice}")
    layout = str(arrays["layout"]) if "layout" in arrays else None
    x = [_inputs(arrays[key], f"{key} of {where}", layout) for key in keys[::2] if key in arrays]
    y = [_labels(arrays[key], f"{key} of {where}") for key in keys[1::2] if key in arrays]
    if set(torch.cat(y).tolist()) == {-1, 1}:
        y = [(part + 1) // 2 for part in y]
    if len(x) == 1:
        parts = _split(x[0], y[0], where)
        x, y = [x[0][part] for part in parts], [y[0][part] for part in parts]
    num_classes = 1 + max(int(part.max()) if len(part) else 0 for part in y)
    names = tuple(map(str, np.atleast_1d(arrays["class_names"]))) if "class_names" in arrays else ()
    if len(names) != num_classes:
        names = reading.class_names(name, num_classes)
    return Dataset(name, Examples(x[0], y[0]), Examples(x[1], y[1]), num_classes, names)


def _as_array(value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    array: np.ndarray = np.asarray(value)
    return array


def _unfit(where: object, what: str) -> DataError:
    return DataError(f"{where} {what}", code="unfit-arrays", where=where)


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file:  # opened here, because numpy.load leaves a damaged file open
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise _unfit(path, "is one NumPy array, not an archive; save it with numpy.savez")
            return {key: archive[key] for key in archive}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error)
        if "pickle" in reason:  # numpy's advice is to load it unsafely
            reason = "it holds Python objects" if zipfile.is_zipfile(path) else "it is no archive"
        message = f"cannot be read as an npz archive of plain arrays ({reason})"
        raise _unfit(path, f"{message}; numpy.savez writes one") from error


def _inputs(x: np.ndarray, what: str, layout: str | None) -> Tensor:
    if x.dtype.kind not in "biuf":
        raise _unfit(what, f"has type {x.dtype}; images must be uint8 and features numbers")
    if x.ndim == 2:
        with np.errstate(over="ignore"):  # `Dataset` refuses what becomes infinite
            return torch.from_numpy(x.astype(np.float32))
    if x.ndim not in (3, 4):
        raise _unfit(what, f"has shape {x.shape}; images have 3 or 4 axes, features 2")
    if x.dtype.kind == "f":
        _check_range(x[np.isfinite(x)], 1, what)  # `Dataset` refuses NaN and the infinities
        x = x.astype(np.float32)
    else:
        _check_range(x, 255, what)
        x = x.astype(np.uint8)
    return torch.from_numpy(np.ascontiguousarray(_channels_first(x, what, layout)))


def _check_range(values: np.ndarray, high: int, what: str) -> None:
    if values.size and (values.min() < 0 or values.max() > high):
        allowed = "whole-number images must lie in 0..255 and float images in 0..1"
        raise _unfit(what, f"runs from {values.min():g} to {values.max():g}; {allowed}")


def _channels_first(x: np.ndarray, what: str, layout: str | None) -> np.ndarray:
    if x.ndim == 3:
        return x[:, None]
    if layout not in (None, "NCHW", "NHWC"):
        raise _unfit(what, f"has an array 'layout' of {layout!r} beside it; use NCHW or NHWC")
    first, last = x.shape[1] in (1, 3), x.shape[3] in (1, 3)
    if layout is None and first == last:
        which = "both the second and" if first else "neither the second nor"
        which = f"{which} the last axis could be 1 or 3 channels"
        advice = "add an array layout = 'NCHW' or 'NHWC'"
        raise _unfit(what, f"has shape {x.shape}, where {which}; {advice}")
    return x.transpose(0, 3, 1, 2) if layout == "NHWC" or (layout is None and last) else x


def _labels(y: np.ndarray, what: str) -> Tensor:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "biuf":
        raise _unfit(what, f"must be one whole number per example, not {y.dtype} {y.shape}")
    allowed = "labels are 0, 1, 2, ... (or -1 and 1)"
    if y.dtype.kind == "f" and not (np.isfinite(y).all() and (y == np.rint(y)).all()):
        raise _unfit(what, f"holds values that are not whole numbers; {allowed}")
    if y.size and (int(y.min()) < -1 or int(y.max()) > 2**31):
        raise _unfit(what, f"holds labels from {y.min()} to {y.max()}; {allowed}")
    return torch.from_numpy(y.astype(np.int64))


def _split(x: Tensor, y: Tensor, where: str) -> tuple[Tensor, Tensor]:
    if len(x) != len(y):
        raise _unfit(where, f"has {len(x)} inputs but {len(y)} labels")
    if len(y) and y.min() < 0:
        raise _unfit(where, "holds the label -1 beside others than 1; labels are 0, 1, 2, ...")
    return split(y, TEST_FRACTION)
