"""The harnesses are scripts in this folder; tests import them by name."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

HERE = str(Path(__file__).parent)


@pytest.fixture(scope="session")
def harness() -> Callable[[str], ModuleType]:
    """A script of this folder as a module."""

    def load(name: str) -> ModuleType:
        sys.path.insert(0, HERE)
        try:
            return importlib.import_module(name)
        finally:
            sys.path.remove(HERE)

    return load
