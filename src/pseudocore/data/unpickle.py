"""The only reader of pickles: CIFAR's official Python version is made of them.

Unpickling is dangerous because a pickle names functions to call. This reader allows only the
names that a NumPy array needs, taken from a table and never imported; any other name stops it
before anything is called. The results are numbers, texts, bytes, plain containers and arrays.
"""

import _codecs
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from pseudocore.core.errors import DataError
from pseudocore.data.reading import damaged


def unpickle(path: Path) -> Any:
    """The plain data in a pickle file; Python 2's byte strings become bytes."""
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(file, encoding="bytes").load()
    except _ForbiddenNameError as error:
        message = f"{path} asks for {error}, which no data set needs; nothing in it was run"
        raise DataError(message, code="forbidden-pickle", path=path) from error
    except Exception as error:  # a damaged pickle can fail in any way
        message = f"is no readable pickle of a data set ({type(error).__name__}: {error})"
        raise damaged(path, message) from error


class _ForbiddenNameError(Exception):
    pass


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _ForbiddenNameError(f"{module}.{name}") from None


# NumPy's own array constructor, in whichever private module it is
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _codecs.encode,
}
