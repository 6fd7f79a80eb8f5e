"""CIFAR-10 and CIFAR-100 (fine labels) as their authors distribute them: the binary and the Python
version.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pseudocore.core.errors import DataError
from pseudocore.core.types import Dataset, Examples
from pseudocore.data.names import class_names
from pseudocore.data.unpickle import unpickle


def recognise(folder: Path) -> bool:
    return _version(folder) is not None


def read(folder: Path, name: str = "") -> Dataset:
    """Either set in either version; it is called cifar10 or cifar100 unless `name` says otherwise."""
    version = _version(folder)
    if version is None:
        raise DataError(
            f"{folder} holds no CIFAR files; data_batch_1.bin, data_batch_1, train.bin or train and meta were looked for"
        )
    read_file = _read_binary if version.binary else _read_pickle
    train = _join(
        [read_file(_existing(folder / file), version.num_classes) for file in version.train]
    )
    test = read_file(_existing(folder / version.test), version.num_classes)
    words = class_names(version.name, version.num_classes) or _fine_names(folder, version)
    return Dataset(name or version.name, train, test, version.num_classes, words)


class _Version(NamedTuple):
    name: str
    num_classes: int
    binary: bool
    train: tuple[str, ...]
    test: str
    marks: tuple[str, ...]
    """Files that tell a folder of this version from others."""


_VERSIONS = (
    _Version(
        "cifar10",
        10,
        True,
        tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        "test_batch.bin",
        ("data_batch_1.bin",),
    ),
    _Version(
        "cifar10",
        10,
        False,
        tuple(f"data_batch_{i}" for i in range(1, 6)),
        "test_batch",
        ("data_batch_1",),
    ),
    _Version("cifar100", 100, True, ("train.bin",), "test.bin", ("train.bin",)),
    _Version("cifar100", 100, False, ("train",), "test", ("train", "meta")),
)


def _version(folder: Path) -> _Version | None:
    return next(
        (
            version
            for version in _VERSIONS
            if all((folder / mark).is_file() for mark in version.marks)
        ),
        None,
    )


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DataError(
            f"{path} is missing beside the other files of its set; unpack the archive again"
        )
    return path


def _read_binary(path: Path, num_classes: int) -> Examples:
    """Rows of label bytes (CIFAR-100: coarse, then fine) and 3 · 32 · 32 pixels."""
    num_labels = 2 if num_classes == 100 else 1
    size, row = path.stat().st_size, num_labels + 3072
    if size == 0 or size % row:
        raise DataError(
            f"{path} has {size} bytes, which is no whole number of {row}-byte records; it is damaged or another file"
        )
    rows = np.fromfile(path, np.uint8).reshape(-1, row)
    return _examples(rows[:, num_labels:], rows[:, num_labels - 1], path, num_classes)


def _read_pickle(path: Path, num_classes: int) -> Examples:
    content, key = unpickle(path), b"fine_labels" if num_classes == 100 else b"labels"
    pixels, labels = (
        (content.get(k) for k in (b"data", key)) if isinstance(content, dict) else (None, None)
    )
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.ndim != 2
        or pixels.shape[1] != 3072
    ):
        raise DataError(
            f"{path} has no uint8 array 'data' of rows of 3072 pixels; it is no file of CIFAR's Python version"
        )
    if (
        not isinstance(labels, list)
        or len(labels) != len(pixels)
        or not all(type(label) is int for label in labels)
    ):
        raise DataError(
            f"{path} has no list {key.decode()!r} of {len(pixels)} whole numbers; it is no file of CIFAR's Python version"
        )
    return _examples(pixels, np.array(labels), path, num_classes)


def _examples(pixels: np.ndarray, labels: np.ndarray, path: Path, num_classes: int) -> Examples:
    if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        raise DataError(
            f"{path} holds label {labels.max()}, but its classes are 0..{num_classes - 1}; it is damaged or another file"
        )
    x = np.ascontiguousarray(pixels).reshape(-1, 3, 32, 32)
    return Examples(torch.from_numpy(x), torch.from_numpy(labels.astype(np.int64)))


def _join(parts: Sequence[Examples]) -> Examples:
    return Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


def _fine_names(folder: Path, version: _Version) -> tuple[str, ...]:
    """CIFAR-100's class names from the file beside the data; a set without it merely goes unnamed."""
    names: Any = ()
    if version.binary and (folder / "fine_label_names.txt").is_file():
        names = (folder / "fine_label_names.txt").read_text().split()
    elif not version.binary:
        meta = unpickle(folder / "meta")
        names = (
            [word.decode() for word in meta.get(b"fine_label_names", ())]
            if isinstance(meta, dict)
            else ()
        )
    return tuple(names) if len(names) == version.num_classes else ()
