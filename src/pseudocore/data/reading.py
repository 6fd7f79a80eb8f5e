"""What the readers of data sets share: class names of well-known sets, and refusals."""

import importlib
from pathlib import Path
from typing import Any

from pseudocore.core.errors import DataError

_NUMERALS = tuple("0123456789")
_CLASS_NAMES = {
    "mnist": _NUMERALS,
    "svhn": _NUMERALS,
    "fashion-mnist": (
        "T-shirt/top", "trouser", "pullover", "dress", "coat",
        "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ),
    "cifar10": (
        "airplane", "automobile", "bird", "cat", "deer",
        "dog", "frog", "horse", "ship", "truck",
    ),
}  # fmt: skip


def class_names(name: str, num_classes: int) -> tuple[str, ...]:
    """Class names of a well-known set; none if it is unknown or has another number of classes."""
    names = _CLASS_NAMES.get(name, ())
    return names if len(names) == num_classes else ()


def existing(path: Path, hint: str = "unpack the archive again") -> Path:
    """The path of a file that must be there."""
    if not path.is_file():
        raise DataError(f"{path} is missing; {hint}", code="missing-file", path=path)
    return path


def damaged(path: Path, what: str) -> DataError:
    """A `DataError` about the contents of a file."""
    return DataError(
        f"{path} {what}; it is damaged or another file", code="damaged-data", path=path
    )


def optional_module(name: str, package: str, extra: str) -> Any:
    """A module of an optional package, imported on first use."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        message = f'this needs {package}; pip install "pseudocore[{extra}]"'
        raise DataError(message, code="missing-package", package=package) from error
