"""The numeric arrays of a MATLAB 5 file, as SVHN is distributed.

A file is a header of 128 bytes and then elements: a type and a number of bytes, 4 each, and the
bytes, padded to a multiple of 8. An element of up to 4 bytes may be packed into 8. An array is an
element of elements (flags, sizes, name, values), which may be compressed by zlib. Every number in a
file is checked against what is left of it before it is used.
"""

import math
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pseudocore.data.limits import check_size, read_bytes
from pseudocore.data.reading import damaged

_HEADER = 128
_MATRIX, _COMPRESSED, _INT8, _INT32, _UINT32 = 14, 15, 1, 5, 6
_VALUES = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
"""Types of values in a file."""
_CLASSES = {
    6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8",
}  # fmt: skip
"""Classes of arrays: what the values are in memory."""
_COMPLEX = 0x0800
_MAX_AXES, _MAX_NAME = 8, 63
_PROBE = 4096
"""Bytes of a compressed array in which its flags, sizes and name lie."""


class _Element(NamedTuple):
    kind: int
    data: memoryview
    end: int
    """Where the next one begins."""


def read_matlab(path: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """The arrays of these names; arrays of other names are not inflated."""
    content = read_bytes(path)
    mark = content[126:128]
    if len(content) < _HEADER or mark not in (b"IM", b"MI"):
        message = "cannot be read as a MATLAB file: it has no header of version 5"
        raise damaged(path, message)
    order = "<" if mark == b"IM" else ">"
    arrays: dict[str, np.ndarray] = {}
    try:
        view, place = memoryview(content), _HEADER
        while place < len(view):
            kind, data, place = _element(view, place, order, is_padded=False)
            found = _matrix(path, kind, data, order, names)
            if found is not None:
                arrays[found[0]] = found[1]
    except (ValueError, zlib.error) as error:
        raise damaged(path, f"cannot be read as a MATLAB file ({error})") from error
    return arrays


def _matrix(
    path: Path, kind: int, data: memoryview, order: str, names: Collection[str]
) -> tuple[str, np.ndarray] | None:
    """Name and values of a numeric array; None for another name or kind."""
    if kind == _COMPRESSED:
        head = memoryview(zlib.decompressobj().decompress(data, _PROBE))
        kind, num_bytes = _tag(head, 0, order)
        if kind != _MATRIX or _name(head[8:], order) not in names:
            return None
        check_size(path, num_bytes, "one array")
        inflated = zlib.decompressobj().decompress(data, num_bytes + 8)
        data = memoryview(inflated)[8:]
        if len(data) != num_bytes:
            raise ValueError("an array is cut short")
    elif kind != _MATRIX or _name(data, order) not in names:
        return None
    flags, place = _integers(data, 0, order, _UINT32, 2)
    shape, place = _integers(data, place, order, _INT32, None)
    if (code := flags[0] & 0xFF) not in _CLASSES or flags[0] & _COMPLEX:
        raise ValueError(f"an array of class {code} is not of real numbers")
    if not 2 <= len(shape) <= _MAX_AXES or min(shape) < 0:
        raise ValueError(f"an array has shape {tuple(shape)}")
    name = _element(data, place, order)
    values = _element(data, name.end, order)
    if values.kind not in _VALUES:
        raise ValueError(f"values are of type {values.kind}")
    stored = np.dtype(order + _VALUES[values.kind])
    if math.prod(shape) * stored.itemsize != len(values.data):
        raise ValueError(f"an array of shape {tuple(shape)} has {len(values.data)} bytes")
    dtype = np.dtype(_CLASSES[code])
    check_size(path, math.prod(shape) * dtype.itemsize, "one array")
    array = np.frombuffer(values.data, stored).astype(dtype).reshape(shape, order="F")
    return bytes(name.data).decode("latin1"), array


def _name(matrix: memoryview, order: str) -> str:
    """The third element of an array, which begins in `matrix`."""
    place = 0
    for _ in range(2):
        place = _element(matrix, place, order).end
    kind, data, _ = _element(matrix, place, order)
    if kind != _INT8 or len(data) > _MAX_NAME:
        raise ValueError("an array has no name")
    return bytes(data).decode("latin1")


def _integers(
    data: memoryview, place: int, order: str, kind: int, number: int | None
) -> tuple[list[int], int]:
    found = _element(data, place, order)
    size = len(found.data)
    if found.kind != kind or size % 4 or size > 4 * _MAX_AXES or number not in (None, size // 4):
        raise ValueError("an array has no flags or sizes")
    return np.frombuffer(found.data, f"{order}{'u' if kind == _UINT32 else 'i'}4").tolist(), (
        found.end
    )


def _element(data: memoryview, place: int, order: str, *, is_padded: bool = True) -> _Element:
    kind, num_bytes = _tag(data, place, order)
    if kind >> 16:  # up to 4 bytes, in the tag itself
        start, num_bytes, kind = place + 4, kind >> 16, kind & 0xFFFF
        if num_bytes > 4:
            raise ValueError("a packed element of more than 4 bytes")
        return _Element(kind, data[start : start + num_bytes], place + 8)
    start, end = place + 8, place + 8 + num_bytes
    if end > len(data):
        raise ValueError(f"an element of {num_bytes} bytes goes beyond the end")
    return _Element(kind, data[start:end], end + (-num_bytes % 8 if is_padded else 0))


def _tag(data: memoryview, place: int, order: str) -> tuple[int, int]:
    """Type and number of bytes."""
    if place + 8 > len(data):
        raise ValueError("it is cut short")
    kind, num_bytes = np.frombuffer(data[place : place + 8], f"{order}u4").tolist()
    return kind, num_bytes
