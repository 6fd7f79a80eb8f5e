"""What files of `torch.save` hold, without running anything that they name.

Tensors, plain values and containers of them are read. Of NumPy's scalars and arrays and of parsed
command lines, which training scripts save beside their tensors, only the place is kept.
"""

import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pseudocore.core.errors import DataError
from pseudocore.data.limits import check_size

SUFFIXES = (".pt", ".pth", ".tar")


class Omitted:
    """Stands for an object that is not read."""

    def __new__(cls, *_: Any, **__: Any) -> "Omitted":
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


_OMITTED = (
    "numpy.dtype",
    "numpy.ndarray",
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    "argparse.Namespace",
)  # fmt: skip


def read_torch(path: Path) -> Any:
    """The content of a file of `torch.save`, on the CPU."""
    try:
        check_size(path, _size(path), "its content")
        with torch.serialization.safe_globals([(Omitted, name) for name in _OMITTED]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (MemoryError, DataError, FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:  # a damaged file can fail in any way
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        if named:
            reason = f"it holds {named[1]}, and only tensors and plain values are read"
        else:
            reason = " ".join(str(error).split("\n")[0].split())[:100] or type(error).__name__
        message = f"{path} cannot be read as a file of torch.save ({reason})"
        raise DataError(message, code="unfit-file", path=path) from error


def dense(tensor: Tensor, path: Path) -> Tensor:
    """A tensor as one of its own memory, if that is within the limit."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex():
        message = f"{path} holds a {tensor.layout} tensor of {tensor.dtype}; save a plain one"
        raise DataError(message, code="unfit-file", path=path)
    check_size(path, 4 * tensor.numel(), "its tensors")
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _size(path: Path) -> int:
    """Bytes that the members of a file inflate to."""
    if not zipfile.is_zipfile(path):
        return path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        return sum(one.file_size for one in archive.infolist())
