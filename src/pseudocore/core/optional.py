"""Packages that are only needed by some."""

import importlib
from typing import Any

from pseudocore.core.errors import DataError


def optional_module(name: str, package: str, extra: str) -> Any:
    """A module of an optional package, imported on first use."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        message = f'this needs {package}; pip install "pseudocore[{extra}]"'
        raise DataError(message, code="missing-package", package=package) from error
