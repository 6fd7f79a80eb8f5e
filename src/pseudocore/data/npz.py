"""NumPy archives: `train_x, train_y, test_x, test_y`, or `X, y, Xt, yt`, with or without the test
half.

Images are uint8 (n, height, width), (n, height, width, channels) or (n, channels, height, width);
features are (n, d) numbers. Optional arrays: `class_names`, texts; `layout`, "NCHW" or "NHWC",
where sizes alone do not tell.
"""

import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pseudocore.core.errors import DataError
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import names
from pseudocore.data.splits import split

TEST_FRACTION = 0.2
_SPELLINGS = (
    ("train_x", "train_y", "test_x", "test_y"),
    ("X", "y", "Xt", "yt"),
    ("x", "y", "xt", "yt"),
)


def recognise(path: Path) -> bool:
    return path.suffix == ".npz" and path.is_file()


def read(path: Path, name: str) -> Dataset:
    """A set from one archive; without a test half, a fifth of it chosen by `splits.split` with seed
    0.
    """
    return _from_arrays(_load(path), name, str(path))


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
            width), (n, height, width, channels) or (n, channels, height, width); or features (n, d).
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


def _as_array(value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    found: np.ndarray = np.asarray(value)
    return found


def _from_arrays(arrays: dict[str, np.ndarray], name: str, path: str) -> Dataset:
    keys = next((keys for keys in _SPELLINGS if keys[0] in arrays and keys[1] in arrays), None)
    if keys is None:
        raise DataError(
            f"{path} has arrays {sorted(arrays)}; train_x, train_y, test_x, test_y (or X, y, Xt, yt) are needed"
        )
    if (keys[2] in arrays) != (keys[3] in arrays):
        raise DataError(
            f"{path} has only one of {keys[2]} and {keys[3]}; give both, or neither to have a test set split off"
        )
    layout = str(arrays["layout"]) if "layout" in arrays else None
    x = _inputs(arrays[keys[0]], f"{keys[0]} of {path}", layout)
    labels = [
        _integers(arrays[key], f"{key} of {path}") for key in (keys[1], keys[3]) if key in arrays
    ]
    y, *rest = _from_zero(labels)
    if rest:
        train, test = (
            Examples(x, y),
            Examples(_inputs(arrays[keys[2]], f"{keys[2]} of {path}", layout), rest[0]),
        )
    else:
        kept, held_out = _split(x, y, path)
        train, test = Examples(x[kept], y[kept]), Examples(x[held_out], y[held_out])
    num_classes = 1 + max(int(part.max()) if len(part) else 0 for part in (train.y, test.y))
    words = tuple(map(str, np.atleast_1d(arrays["class_names"]))) if "class_names" in arrays else ()
    return Dataset(
        name,
        train,
        test,
        num_classes,
        words if len(words) == num_classes else names.class_names(name, num_classes),
    )


def write(path: Path, dataset: Dataset) -> None:
    """The inverse of `read`; whole or not at all."""
    arrays = {
        f"{part}_{key}": tensor.numpy()
        for part, examples in (("train", dataset.train), ("test", dataset.test))
        for key, tensor in examples._asdict().items()
    }
    if dataset.is_images:
        arrays["layout"] = np.array("NCHW")
    if dataset.class_names:
        arrays["class_names"] = np.array(dataset.class_names)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            np.savez_compressed(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file:  # opened here, because numpy.load leaves a damaged file open
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise DataError(
                    f"{path} is one NumPy array, not an archive of several; save it with numpy.savez"
                )
            return {key: archive[key] for key in archive}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error)
        if "pickle" in reason:  # numpy's advice is to load it unsafely
            reason = "it holds Python objects" if zipfile.is_zipfile(path) else "it is no archive"
        raise DataError(
            f"{path} cannot be read as an npz archive of plain arrays ({reason}); numpy.savez writes one"
        ) from error


def _inputs(x: np.ndarray, what: str, layout: str | None) -> Tensor:
    if x.dtype.kind not in "biuf":
        raise DataError(f"{what} has type {x.dtype}; images must be uint8 and features numbers")
    if x.ndim == 2:
        with np.errstate(
            over="ignore"
        ):  # what float32 cannot hold gets the data set's own complaint
            return torch.from_numpy(x.astype(np.float32))
    if x.ndim not in (3, 4):
        raise DataError(f"{what} has shape {x.shape}; images have 3 or 4 axes, features 2")
    if x.dtype.kind == "f":
        _check_range(x[np.isfinite(x)], 1, what)  # NaN and inf get the data set's own complaint
        x = x.astype(np.float32)
    else:
        _check_range(x, 255, what)
        x = x.astype(np.uint8)
    return torch.from_numpy(np.ascontiguousarray(_channels_first(x, what, layout)))


def _check_range(values: np.ndarray, high: int, what: str) -> None:
    if values.size and (values.min() < 0 or values.max() > high):
        raise DataError(
            f"{what} runs from {values.min():g} to {values.max():g}; whole-number images must lie in 0..255 and float images in 0..1"
        )


def _channels_first(x: np.ndarray, what: str, layout: str | None) -> np.ndarray:
    if x.ndim == 3:
        return x[:, None]
    if layout not in (None, "NCHW", "NHWC"):
        raise DataError(f"the array 'layout' beside {what} says {layout!r}; it can be NCHW or NHWC")
    first, last = x.shape[1] in (1, 3), x.shape[3] in (1, 3)
    if layout is None and first == last:
        which = (
            "both the second and the last axis" if first else "neither the second nor the last axis"
        )
        raise DataError(
            f"{what} has shape {x.shape}, where {which} could be 1 or 3 channels; add an array layout = 'NCHW' or 'NHWC'"
        )
    return x.transpose(0, 3, 1, 2) if layout == "NHWC" or (layout is None and last) else x


def _integers(y: np.ndarray, what: str) -> Tensor:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "biuf":
        raise DataError(
            f"{what} must be one whole number per example, not {y.dtype} of shape {y.shape}"
        )
    if y.dtype.kind == "f" and not (np.isfinite(y).all() and (y == np.rint(y)).all()):
        raise DataError(
            f"{what} holds values that are not whole numbers; labels are 0, 1, 2, ... (or -1 and 1)"
        )
    if y.size and (int(y.min()) < -1 or int(y.max()) > 2**31):
        raise DataError(
            f"{what} holds labels from {y.min()} to {y.max()}; labels are 0, 1, 2, ... (or -1 and 1)"
        )
    return torch.from_numpy(y.astype(np.int64))


def _from_zero(labels: list[Tensor]) -> list[Tensor]:
    """Labels -1 and 1 become 0 and 1; others stay."""
    signs = set(torch.cat(labels).tolist()) == {-1, 1}
    return [(part + 1) // 2 for part in labels] if signs else labels


def _split(x: Tensor, y: Tensor, path: str) -> tuple[Tensor, Tensor]:
    if len(x) != len(y):
        raise DataError(f"{path} has {len(x)} inputs but {len(y)} labels")
    if len(y) and y.min() < 0:
        raise DataError(
            f"{path} holds the label -1 beside others than 1; labels are 0, 1, 2, ... (or -1 and 1)"
        )
    return split(y, TEST_FRACTION, seed=0)
