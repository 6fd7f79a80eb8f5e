"""Sets as their authors distribute them: MNIST-style idx files, CIFAR-10 and CIFAR-100 (fine
labels) in the binary and the Python version, and SVHN's cropped digits.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pseudocore.core.types import Dataset, Examples
from pseudocore.data.limits import check_size, gunzip, read_bytes
from pseudocore.data.matlab import read_matlab
from pseudocore.data.reading import class_names, damaged, existing
from pseudocore.data.unpickle import unpickle

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def is_idx(folder: Path) -> bool:
    return _idx_path(folder, IDX_FILES[0]).is_file()


def read_idx(folder: Path, name: str) -> Dataset:
    """The four files of a folder, also spelt `.idx3-ubyte`, plain or gzipped."""
    train_x, train_y, test_x, test_y = (_read_idx(folder, file) for file in IDX_FILES)
    num_classes = int(max(train_y.max(initial=0), test_y.max(initial=0))) + 1
    train, test = _examples(train_x[:, None], train_y), _examples(test_x[:, None], test_y)
    return Dataset(name, train, test, num_classes, class_names(name, num_classes))


def is_cifar(folder: Path) -> bool:
    return _cifar(folder) is not None


def read_cifar(folder: Path, name: str = "") -> Dataset:
    """Either set in either version; its name defaults to cifar10 or cifar100."""
    version = _cifar(folder)
    if version is None:
        raise damaged(folder, "holds no CIFAR files")
    train = [_read_cifar(folder / file, version) for file in version.train]
    test = _read_cifar(folder / version.test, version)
    return Dataset(
        name or version.name,
        Examples(torch.cat([part.x for part in train]), torch.cat([part.y for part in train])),
        test,
        version.num_classes,
        class_names(version.name, version.num_classes) or _fine_names(folder, version),
    )


def is_svhn(folder: Path) -> bool:
    return (folder / "train_32x32.mat").is_file()


def read_svhn(folder: Path, name: str = "") -> Dataset:
    """`train_32x32.mat` and `test_32x32.mat`; their label 10 is the digit 0."""
    train, test = (_read_svhn(folder / f"{part}_32x32.mat") for part in ("train", "test"))
    return Dataset(name or "svhn", train, test, 10, class_names("svhn", 10))


_SVHN_LABELS = range(1, 11)


def _examples(x: np.ndarray, y: np.ndarray) -> Examples:
    images, labels = np.ascontiguousarray(x), y.astype(np.int64)
    return Examples(torch.from_numpy(images), torch.from_numpy(labels))


def _idx_path(folder: Path, file: str) -> Path:
    spellings = (file, file.replace("-idx", ".idx"))
    paths = [folder / f"{spelling}{suffix}" for spelling in spellings for suffix in ("", ".gz")]
    return next((path for path in paths if path.is_file()), paths[0])


def _read_idx(folder: Path, file: str) -> np.ndarray:
    """Bytes 0, 0, 8 (unsigned bytes) and the number of axes; a 32-bit size per axis; values."""
    path = existing(_idx_path(folder, file), f"an idx folder holds {', '.join(IDX_FILES)}")
    is_gzipped = path.suffix == ".gz"
    num_axes = 3 if "idx3" in file else 1
    magic, header = bytes([0, 0, 8, num_axes]), 4 + 4 * num_axes
    content = gunzip(path, header - 1) if is_gzipped else read_bytes(path)
    start = content[:header]
    if start[:4] != magic[: len(start)]:
        raise damaged(path, f"begins with {start[:4].hex()}, not with {magic.hex()}")
    if len(start) < header:
        raise damaged(path, f"has {len(start)} bytes, fewer than the {header} of its header")
    shape = tuple(np.frombuffer(start, ">u4", num_axes, offset=4).tolist())
    expected = header + math.prod(shape)
    if is_gzipped:
        check_size(path, expected, "what its header says")
        content = gunzip(path, expected)
    if len(content) != expected:
        size = f"more than {expected}" if is_gzipped and len(content) > expected else len(content)
        message = f"has {size} bytes, but its header says {shape}, that is {expected}"
        raise damaged(path, message)
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()


class _Cifar(NamedTuple):
    name: str
    num_classes: int
    is_binary: bool
    train: tuple[str, ...]
    test: str
    marks: tuple[str, ...]
    """Files by which a folder is recognised."""


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_BINARY_BATCHES = tuple(f"{file}.bin" for file in _BATCHES)
_CIFARS = (
    _Cifar("cifar10", 10, True, _BINARY_BATCHES, "test_batch.bin", _BINARY_BATCHES[:1]),
    _Cifar("cifar10", 10, False, _BATCHES, "test_batch", _BATCHES[:1]),
    _Cifar("cifar100", 100, True, ("train.bin",), "test.bin", ("train.bin",)),
    _Cifar("cifar100", 100, False, ("train",), "test", ("train", "meta")),
)


def _cifar(folder: Path) -> _Cifar | None:
    for version in _CIFARS:
        if all((folder / mark).is_file() for mark in version.marks):
            return version
    return None


def _read_cifar(path: Path, version: _Cifar) -> Examples:
    read = _read_binary if version.is_binary else _read_pickle
    pixels, labels = read(existing(path), version.num_classes)
    if len(labels) and (labels.min() < 0 or labels.max() >= version.num_classes):
        raise damaged(path, f"holds label {labels.max()} of classes 0..{version.num_classes - 1}")
    return _examples(pixels.reshape(-1, 3, 32, 32), labels)


def _read_binary(path: Path, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of label bytes (CIFAR-100: coarse, then fine) and 3 · 32 · 32 pixels."""
    num_labels = 2 if num_classes == 100 else 1
    content, row = read_bytes(path), num_labels + 3072
    size = len(content)
    if size == 0 or size % row:
        raise damaged(path, f"has {size} bytes, which is no whole number of {row}-byte records")
    rows = np.frombuffer(content, np.uint8).reshape(-1, row)
    return rows[:, num_labels:], rows[:, num_labels - 1]


def _read_pickle(path: Path, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    content, key = unpickle(path), "fine_labels" if num_classes == 100 else "labels"
    table: dict[bytes, Any] = content if isinstance(content, dict) else {}
    pixels, labels = table.get(b"data"), table.get(key.encode())
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.shape[1:] != (3072,)
    ):
        raise damaged(path, "has no uint8 array 'data' of rows of 3072 pixels")
    is_list = isinstance(labels, list) and all(type(label) is int for label in labels)
    if labels is None or not is_list or len(labels) != len(pixels):
        raise damaged(path, f"has no list {key!r} of {len(pixels)} whole numbers")
    return pixels, np.array(labels)


def _fine_names(folder: Path, version: _Cifar) -> tuple[str, ...]:
    """CIFAR-100's class names from the file beside the data, if it is there."""
    names: list[str] = []
    if not version.is_binary:
        meta = unpickle(folder / "meta")
        table = meta if isinstance(meta, dict) else {}
        listed = table.get(b"fine_label_names")
        for name in listed if isinstance(listed, list | tuple) else ():
            names.append(_name(folder / "meta", name))
    elif (folder / "fine_label_names.txt").is_file():
        path = folder / "fine_label_names.txt"
        names = _name(path, read_bytes(path)).split()
    return tuple(names) if len(names) == version.num_classes else ()


def _name(path: Path, name: Any) -> str:
    if not isinstance(name, bytes):
        raise damaged(path, "has class names that are not strings")
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise damaged(path, "has class names that are not UTF-8") from error


def _read_svhn(path: Path) -> Examples:
    content = read_matlab(existing(path, "SVHN is train_32x32.mat and test_32x32.mat"), ("X", "y"))
    pixels, labels = content.get("X"), content.get("y")
    if pixels is None or pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[2] != 3:
        raise damaged(path, "has no uint8 array X of (height, width, 3, n)")
    if labels is None or labels.size != pixels.shape[3] or not np.isin(labels, _SVHN_LABELS).all():
        raise damaged(path, f"has no array y of {pixels.shape[3]} labels in 1..10")
    return _examples(pixels.transpose(3, 2, 0, 1), labels.ravel().astype(np.int64) % 10)
