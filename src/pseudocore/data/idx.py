"""MNIST-family idx files, plain or gzipped: a magic number, big-endian sizes, bytes."""

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch

from pseudocore.core.errors import DataError
from pseudocore.core.types import Dataset, Examples
from pseudocore.data.names import class_names

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def recognise(folder: Path) -> bool:
    return _find(folder, FILES[0]) is not None


def read(folder: Path, name: str) -> Dataset:
    """The four files of a folder, in either spelling (`-idx3-ubyte`, `.idx3-ubyte`), with or
    without `.gz`.
    """
    train_x, train_y, test_x, test_y = (_read_file(folder, file) for file in FILES)
    num_classes = int(max(train_y.max(initial=0), test_y.max(initial=0))) + 1
    train, test = (
        Examples(torch.from_numpy(x).unsqueeze(1), torch.from_numpy(y).long())
        for x, y in ((train_x, train_y), (test_x, test_y))
    )
    return Dataset(name, train, test, num_classes, class_names(name, num_classes))


def _read_file(folder: Path, file: str) -> np.ndarray:
    path = _find(folder, file)
    if path is None:
        raise DataError(
            f"{folder} has no {file} (or {file}.gz); an MNIST-style folder holds {', '.join(FILES)}"
        )
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); it is damaged or not gzip") from error
    return _parse(content, path, num_axes=3 if "idx3" in file else 1)


def _find(folder: Path, file: str) -> Path | None:
    spellings = (file, file.replace("-idx", ".idx"))
    places = (folder / f"{spelling}{suffix}" for spelling in spellings for suffix in ("", ".gz"))
    return next((place for place in places if place.is_file()), None)


def _parse(content: bytes, path: Path, num_axes: int) -> np.ndarray:
    """Bytes 0, 0, 8 (unsigned bytes), the number of axes; one 32-bit size per axis; the values."""
    magic, header = bytes([0, 0, 8, num_axes]), 4 + 4 * num_axes
    if content[:4] != magic[: len(content)]:
        raise DataError(
            f"{path} begins with {content[:4].hex()}, not with {magic.hex()}: it is no idx file of {num_axes} axes"
        )
    if len(content) < header:
        raise DataError(
            f"{path} has {len(content)} bytes, fewer than the {header} of its header; it is damaged"
        )
    shape = tuple(np.frombuffer(content, ">u4", num_axes, offset=4).tolist())
    expected = header + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise DataError(
            f"{path} has {len(content)} bytes, but its header promises {shape}, that is {expected}; it is damaged"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()
