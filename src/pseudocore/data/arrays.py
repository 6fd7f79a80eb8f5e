"""Arrays in memory, and NumPy archives and folders of `train_x, train_y, test_x, test_y`, or
`X, y, Xt, yt`, with or without the test half.

Images are uint8 (n, height, width), (n, height, width, channels) or (n, channels, height, width);
features are (n, d) numbers. Optional arrays: `class_names`, texts; `layout`, "NCHW" or "NHWC",
where sizes alone do not tell; `task`, "regression" where whole numbers are no classes.
"""

import math
import stat
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from torch import Tensor

from pseudocore.core.errors import DataError, PseudocoreError
from pseudocore.core.likelihood import Task
from pseudocore.core.types import Dataset
from pseudocore.data.limits import check_size
from pseudocore.data.reading import Half, Layout, Raw, Reading
from pseudocore.store.files import replacing, writing

_SPELLINGS = (
    ("train_x", "train_y", "test_x", "test_y"),
    ("X", "y", "Xt", "yt"),
    ("x", "y", "xt", "yt"),
)


_OPTIONAL = ("class_names", "layout", "task")


def is_npz(path: Path) -> bool:
    return path.suffix == ".npz" and path.is_file()


def read_npz(path: Path) -> Raw:
    return raw_of(load_archive(path, _spelt), str(path))


def is_npy(path: Path) -> bool:
    """Whether a path is a folder of `train_x.npy`, `train_y.npy`, … in one of the spellings."""
    return any(
        (path / f"{x}.npy").is_file() and (path / f"{y}.npy").is_file() for x, y, *_ in _SPELLINGS
    )


def read_npy(path: Path) -> Raw:
    """Arrays in a folder, memory-mapped: only the examples that are used come off the disk."""
    names = {name for spelling in _SPELLINGS for name in spelling} | set(_OPTIONAL)
    arrays = {}
    for name in sorted(names):
        file = path / f"{name}.npy"
        if file.is_file():
            arrays[name] = open_array(file)
    return raw_of(arrays, str(path))


def write_npz(path: Path, dataset: Dataset) -> None:
    """The inverse of `read_npz`; whole or not at all, also when two processes write at once."""
    arrays = {f"train_{key}": value.numpy() for key, value in dataset.train._asdict().items()}
    arrays |= {f"test_{key}": value.numpy() for key, value in dataset.test._asdict().items()}
    if dataset.is_images:
        arrays["layout"] = np.array("NCHW")
    if dataset.task == "regression":
        arrays["task"] = np.array(dataset.task)
    if dataset.class_names:
        arrays["class_names"] = np.array(dataset.class_names)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)


def raw_of(arrays: Mapping[str, Any], where: str) -> Raw:
    """The halves among named arrays, under any of the spellings."""
    keys = next((keys for keys in _SPELLINGS if keys[0] in arrays and keys[1] in arrays), None)
    if keys is None:
        needed = "train_x, train_y, test_x, test_y (or X, y, Xt, yt) are needed"
        raise _unfit(where, f"has arrays {sorted(arrays)}; {needed}")
    if (keys[2] in arrays) != (keys[3] in arrays):
        advice = "give both, or neither to have a test set split off"
        raise _unfit(where, f"has only one of {keys[2]} and {keys[3]}; {advice}")
    layout = str(arrays["layout"]) if "layout" in arrays else None
    if layout not in (None, "NCHW", "NHWC"):
        raise _unfit(where, f"has an array 'layout' of {layout!r} beside it; use NCHW or NHWC")
    task = str(arrays["task"]) if "task" in arrays else None
    if task not in (None, *get_args(Task)):
        raise _unfit(where, f"has an array 'task' of {task!r}; use one of {get_args(Task)}")
    names = tuple(map(str, np.atleast_1d(arrays["class_names"]))) if "class_names" in arrays else ()
    halves = [
        Half(arrays[x], arrays[y], f"{y} of {where}", f"{x} of {where}")
        for x, y in (keys[:2], keys[2:])
        if x in arrays
    ]
    return Raw(tuple(halves), names, cast(Layout | None, layout), task=cast(Task | None, task))


def is_array(path: Path) -> bool:
    """Whether a path is one array, whose labels are in another file."""
    return path.suffix == ".npy" and path.is_file()


def read_array(path: Path, labels: str | None) -> Raw:
    """Inputs in a .npy file, memory-mapped, and their labels in another."""
    if labels is None:
        message = "holds inputs without labels; name the file of their labels (--labels y.npy)"
        raise _unfit(path, message)
    x, y = (open_array(one) for one in (path, Path(labels).expanduser()))
    half = Half(x, y, f"the labels in {labels}", str(path))
    return Raw((half,), used=("labels",))


def open_array(file: Path) -> np.ndarray:
    """The array of a .npy file, memory-mapped."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # opening a pipe would wait for ever
            raise ValueError
        array: np.ndarray = np.load(file, mmap_mode="c", allow_pickle=False)
        if not isinstance(array, np.ndarray):  # an archive
            array.close()
            raise ValueError
    except MemoryError:
        raise
    except Exception as error:  # a damaged header can fail in any way
        message = "cannot be read as one array of plain values; numpy.save writes one"
        raise _unfit(file, message) from error
    return array


def as_array(value: Any) -> np.ndarray:
    """A numpy or torch array, or what numpy makes one of."""
    if hasattr(value, "toarray"):
        message = "a sparse matrix cannot be read; .toarray() makes it dense"
        raise DataError(message, code="unfit-arrays")
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if isinstance(value, np.ma.MaskedArray):
        if not np.ma.is_masked(value):
            value = value.data
        elif value.dtype.kind == "f":
            value = value.filled(np.nan)
        else:
            message = (
                "a masked array of whole numbers cannot be read; .astype(float) makes its gaps NaN"
            )
            raise DataError(message, code="unfit-arrays")
    array: np.ndarray = np.asanyarray(value)  # a memory map stays one
    return array


def check(x: np.ndarray, what: str) -> None:
    """Refuse what is neither images nor features."""
    if x.dtype.kind not in "biuf":
        advice = "give a frame with named columns to have texts encoded"
        advice = f"images must be uint8 and features numbers; {advice}"
        raise _unfit(what, f"has type {x.dtype}; {advice}")
    if x.ndim not in (2, 3, 4):
        raise _unfit(what, f"has shape {x.shape}; images have 3 or 4 axes, features 2")


def inputs(
    arrays: Sequence[np.ndarray], what: Sequence[str], reading: Reading, layout: Layout | None
) -> tuple[list[Tensor], list[str]]:
    """The inputs of one or two halves as a `Dataset` holds them; also notes on what was decided.

    Memory maps that need no change stay maps.
    """
    pixel_range, notes = reading.pixel_range, []
    if arrays[0].ndim == 2:
        reading.refuse(("pixel_range", "layout", "resize"), what[0], "features are no images")
    elif pixel_range is None and arrays[0].dtype.kind == "f":
        low, high = zip(*map(_extremes, arrays), strict=True)
        if -1 <= min(low) < 0 and max(high) <= 1:
            pixel_range = (-1.0, 1.0)
            notes.append("float images from -1 to 1 are read as (x + 1) / 2")
    layout = reading.layout or layout
    return [
        _inputs(x, where, layout, pixel_range) for x, where in zip(arrays, what, strict=True)
    ], notes


def _unfit(where: object, what: str) -> DataError:
    return DataError(f"{where} {what}", code="unfit-arrays", where=where)


def load_archive(
    path: Path, pick: Callable[[Collection[str]], Sequence[str]]
) -> dict[str, np.ndarray]:
    """The arrays that `pick` needs of those an npz archive names; what else it holds is not
    inflated. Where it needs none, all of them, empty.
    """
    try:
        with path.open("rb") as file:
            if file.read(6) == b"\x93NUMPY":
                raise _unfit(path, "is one NumPy array, not an archive; save it with numpy.savez")
        with zipfile.ZipFile(path) as archive:
            found = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
            wanted = [found[name] for name in pick(found)]
            check_size(path, sum(one.file_size for one in wanted))
            if not wanted:
                return dict.fromkeys(found, np.empty(0))  # `raw_of` names them
            return {one.filename.removesuffix(".npy"): _member(archive, one) for one in wanted}
    except (PseudocoreError, MemoryError):
        raise
    except Exception as error:  # a damaged archive can fail in any way
        reason = str(error) or type(error).__name__
        if reason == "File is not a zip file":
            reason = "it is no archive"
        elif "Object arrays" in reason:  # numpy's advice is to load it unsafely
            reason = "it holds Python objects"
        message = f"cannot be read as an npz archive of plain arrays ({reason})"
        raise _unfit(path, f"{message}; numpy.savez writes one") from error


def _spelt(names: Collection[str]) -> list[str]:
    """The names of a data set's arrays; none where they are in no known spelling."""
    keys = next((keys for keys in _SPELLINGS if {*keys[:2]} <= {*names}), ())
    return [name for name in (*keys, *(_OPTIONAL if keys else ())) if name in names]


def _member(archive: zipfile.ZipFile, one: zipfile.ZipInfo) -> np.ndarray:
    """One array, whose header must agree with its size before room is made for it."""
    with archive.open(one) as file:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read_header is None:
            raise ValueError(f"{one.filename} is of an unknown version")
        shape, _, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError(f"{one.filename}: Object arrays cannot be read")
        if file.tell() + math.prod(shape) * dtype.itemsize != one.file_size:
            raise ValueError(f"{one.filename} has {one.file_size} bytes for shape {shape}")
    with archive.open(one) as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _inputs(
    x: np.ndarray, what: str, layout: str | None, pixel_range: tuple[float, float] | None
) -> Tensor:
    if x.ndim == 2:
        if _is_map(x) and x.dtype == np.float16:  # half the size: batches become float32
            return torch.from_numpy(x)
        with np.errstate(over="ignore"):  # `Dataset` refuses what becomes infinite
            return torch.from_numpy(x.astype(np.float32, copy=not _is_map(x)))
    is_float, own = x.dtype.kind == "f", (0, 1) if x.dtype.kind == "f" else (0, 255)
    low, high = pixel_range or own
    _check_range(x, low, high, what)
    x = x.astype(np.float32 if is_float or (low, high) != own else np.uint8, copy=not _is_map(x))
    if (low, high) != own:
        x = (x - np.float32(low)) / np.float32(high - low)
    x = _channels_first(x, what, layout)
    return torch.from_numpy(x if _is_map(x) else np.ascontiguousarray(x))


def _is_map(x: np.ndarray) -> bool:
    return isinstance(x, np.memmap)


def _check_range(x: np.ndarray, low: float, high: float, what: str) -> None:
    least, most = _extremes(x)
    if least < low or most > high:
        allowed = (
            "whole-number images must lie in 0..255 and float images in 0..1 or -1..1;"
            " pixel_range=(black, white) declares another range"
        )
        raise _unfit(what, f"runs from {least:g} to {most:g}; {allowed}")


def _extremes(x: np.ndarray, block: int = 1024) -> tuple[float, float]:
    """The smallest and the largest finite value; `Dataset` refuses NaN and the infinities."""
    least, most = np.inf, -np.inf
    for start in range(0, len(x), block):
        part = x[start : start + block]
        part = part[np.isfinite(part)] if x.dtype.kind == "f" else part
        if part.size:
            least, most = min(least, float(part.min())), max(most, float(part.max()))
    return least, most


def _channels_first(x: np.ndarray, what: str, layout: str | None) -> np.ndarray:
    if x.ndim == 3:
        return x[:, None]
    first, last = x.shape[1] in (1, 3), x.shape[3] in (1, 3)
    if layout is None and first == last:
        which = "both the second and" if first else "neither the second nor"
        which = f"{which} the last axis could be 1 or 3 channels"
        advice = "add an array layout = 'NCHW' or 'NHWC'"
        raise _unfit(what, f"has shape {x.shape}, where {which}; {advice}")
    return x.transpose(0, 3, 1, 2) if layout == "NHWC" or (layout is None and last) else x
