"""JSON that any reader accepts: NaN and the infinities travel as the strings "NaN", "Infinity",
"-Infinity".

`decode` turns exactly these three strings back into floats, so a text that happens to be one of
them comes back a number.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pseudocore.core.errors import ArtifactError
from pseudocore.store.files import StrPath, reason_of, write_bytes

_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Text of nested mappings, sequences, strings, numbers, booleans, None, paths and one-element
    arrays or tensors.
    """
    return json.dumps(_plain(value), indent=indent, sort_keys=sort_keys, allow_nan=False)


def decode(text: str | bytes) -> Any:
    """The value behind the text; `ValueError` for anything that is not JSON, however it is broken."""
    try:
        return _restored(json.loads(text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write(path: StrPath, value: Any) -> None:
    """Replace a JSON file atomically."""
    write_bytes(path, (encode(value, indent=2) + "\n").encode())


def read(path: StrPath) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        value = decode(Path(path).read_bytes())
    except OSError as error:
        raise ArtifactError(f"cannot read {os.fspath(path)}: {reason_of(error)}") from error
    except ValueError as error:
        raise ArtifactError(f"{os.fspath(path)} is damaged: it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ArtifactError(
            f"{os.fspath(path)} is damaged: it should hold a JSON object, not {type(value).__name__}"
        )
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.generic | Tensor):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _restored(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_restored(entry) for entry in value]
    return _NUMBERS.get(value, value) if isinstance(value, str) else value
