"""The only reader of pickles: CIFAR's official Python version is made of them.

Unpickling is dangerous because a pickle names functions to call and states to set. Here every name
stands for a plain class of this file, so that nothing of NumPy or of any other module is called.
Arrays are made at the end from bytes whose number is checked. The results are numbers, texts,
bytes, lists, tuples, tables and numeric arrays; anything else stops the reader.
"""

import functools
import io
import math
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np

from pseudocore.core.errors import DataError
from pseudocore.data.limits import read_bytes
from pseudocore.data.reading import damaged

_NUMERIC = re.compile(r"[<>=|]?[iuf][1248]|[|]?b1")
"""Names of the types an array may have."""


_MOST_VALUES = 3_000_000
"""Instructions of a file: CIFAR-100's labels and names take half a million."""


def unpickle(path: Path) -> Any:
    """The plain data in a pickle file; Python 2's byte strings become bytes."""
    try:
        content = read_bytes(path)
        budget = _Budget(2 * len(content))  # Python 3 writes Python 2's bytes as encoded texts
        return _plain(_PlainUnpickler(io.BytesIO(content), budget).load(), {}, budget)
    except DataError:
        raise
    except _ForbiddenError as error:
        message = f"{path} asks for {error}, which no data set needs; nothing in it was run"
        raise DataError(message, code="forbidden-pickle", path=path) from error
    except Exception as error:  # a damaged pickle can fail in any way
        message = f"is no readable pickle of a data set ({type(error).__name__}: {error})"
        raise damaged(path, message) from error


class _ForbiddenError(Exception):
    pass


class _Type:
    """Stands for `numpy.dtype`."""

    def __init__(self, name: str | bytes, *_: Any) -> None:
        self.name = name.decode("latin1") if isinstance(name, bytes) else str(name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        self.name = f"{order}{self.name}"  # what else a state holds belongs to other types

    def dtype(self) -> "np.dtype[Any]":
        if not _NUMERIC.fullmatch(self.name):
            raise _ForbiddenError(f"an array of type {self.name[:40]!r}")
        return np.dtype(self.name)


class _Array:
    """Stands for `numpy.ndarray` and for what makes one."""

    def __init__(self, *_: Any) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def plain(self, budget: "_Budget") -> "np.ndarray[Any, Any]":
        _, shape, kind, is_fortran, content = self.state
        if not isinstance(kind, _Type) or not isinstance(content, bytes):
            raise _ForbiddenError("an array of objects")
        sizes = [int(size) for size in shape]
        dtype = kind.dtype()
        if min(sizes, default=0) < 0 or math.prod(sizes) * dtype.itemsize != len(content):
            raise ValueError(f"an array of shape {shape} has {len(content)} bytes")
        budget.take(len(content))
        return np.frombuffer(content, dtype).reshape(sizes, order="F" if is_fortran else "C").copy()


def _encode(budget: "_Budget", text: str, encoding: str) -> bytes:
    """Stands for `_codecs.encode`, by which Python 3 writes bytes for Python 2."""
    if encoding not in ("latin1", b"latin1"):
        raise _ForbiddenError(f"the codec {encoding!r}")
    budget.take(len(text))
    return text.encode("latin1")


class _Budget:
    """Bytes that arrays and texts may still be made of: one text may be named many times."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self, num_bytes: int) -> None:
        self._left -= num_bytes
        if self._left < 0:
            raise _ForbiddenError("more bytes than it holds")


class _Counted(dict[int, Any]):
    """Instructions by number, so many times in all."""

    left = _MOST_VALUES

    def __getitem__(self, code: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise _ForbiddenError(f"more than {_MOST_VALUES} values")
        return super().__getitem__(code)


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
}


_PythonUnpickler: Any = pickle._Unpickler
"""The reader written in Python, whose instructions can be replaced."""


class _PlainUnpickler(_PythonUnpickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, budget: _Budget) -> None:
        super().__init__(file, encoding="bytes")
        self.dispatch = _Counted(self.dispatch)
        self.allowed = _ALLOWED | {("_codecs", "encode"): functools.partial(_encode, budget)}

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.allowed[module, name]
        except KeyError:
            raise _ForbiddenError(f"{module}.{name}") from None

    def load_build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Type | _Array) or not isinstance(state, tuple):
            raise _ForbiddenError("the state of an object")
        self.stack[-1].__setstate__(state)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set(self.stack[-1], [key, value])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self._set(self.stack[-1], items)

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._set(self.stack[-1], items)

    def refuse(self) -> None:
        raise _ForbiddenError("a kind of value")

    def _set(self, table: Any, items: list[Any]) -> None:
        """Plain keys alone: hashing nested tuples may take for ever."""
        keys = items[::2]
        if not isinstance(table, dict) or not all(isinstance(key, str | bytes) for key in keys):
            raise _ForbiddenError("a table with keys other than texts")
        table.update(zip(keys, items[1::2], strict=True))

    dispatch = _PythonUnpickler.dispatch | {
        pickle.BUILD[0]: load_build,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.DICT[0]: load_dict,
        # Sets hash their elements; a byte array is allocated before it is read.
        **dict.fromkeys(
            (code[0] for code in (pickle.ADDITEMS, pickle.FROZENSET, pickle.BYTEARRAY8)), refuse
        ),
    }


def _plain(value: Any, known: dict[int, Any], budget: _Budget) -> Any:
    """The value with its placeholders replaced by arrays; each object once."""
    if id(value) not in known:
        if isinstance(value, _Type):
            known[id(value)] = value.dtype()
        elif isinstance(value, _Array):
            known[id(value)] = value.plain(budget)
        elif isinstance(value, dict):
            plain = {key: _plain(one, known, budget) for key, one in value.items()}
            known[id(value)] = plain
        elif isinstance(value, list | tuple):
            known[id(value)] = type(value)(_plain(one, known, budget) for one in value)
        elif value is None or isinstance(value, str | bytes | int | float):
            return value
        else:
            raise _ForbiddenError("a kind of value")
    return known[id(value)]
