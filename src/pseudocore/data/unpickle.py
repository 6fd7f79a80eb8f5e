"""The only door through which a pickle comes in: CIFAR's official Python version is made of them.

Unpickling is dangerous because a pickle names functions to call. This reader answers such a request
only for the handful of names a NumPy array is made of, each looked up in a table and never
imported; any other name stops it before anything is called. What comes out are numbers, texts,
bytes, plain containers and arrays.
"""

import _codecs
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from pseudocore.core.errors import DataError


def unpickle(path: Path) -> Any:
    """The plain data in a pickle file; Python 2's byte strings become bytes."""
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(file, encoding="bytes").load()
    except _ForbiddenNameError as error:
        raise DataError(
            f"{path} asks for {error}, which no data set needs; it was refused and nothing in it was run"
        ) from error
    except Exception as error:  # a damaged pickle can fail in any way the machine's opcodes can
        raise DataError(
            f"{path} is no readable pickle of a data set ({type(error).__name__}: {error})"
        ) from error


class _ForbiddenNameError(Exception):
    pass


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _ForbiddenNameError(f"{module}.{name}") from None


_RECONSTRUCT = np.empty(0).__reduce__()[
    0
]  # NumPy's own array constructor, whichever private module it lives in today
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _codecs.encode,
}
