"""Shared by all tests: one torch thread, since results must not depend on the count; a cache of the
test's own; full precision on a GPU; signals as at a terminal.
"""

import importlib.util
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pseudocore.core.registry import methods

torch.set_num_threads(1)
# nohup and background jobs ignore these, and so would the processes that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.getbasetemp() / "cache"  # made only if something is kept
    monkeypatch.setenv("PSEUDOCORE_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _full_precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ways to run a step compare equal only where convolutions do not round to tf32."""
    if request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder and an empty user folder; one thread in subprocesses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("PSEUDOCORE_DATA", raising=False)
    return tmp_path


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Imports code as a module of a plug-in, which is unregistered when the test is over."""
    for table in ("_entries", "_classes"):
        monkeypatch.setattr(methods, table, dict(getattr(methods, table)))

    def load(code: str, name: str = "plugin") -> ModuleType:
        path = tmp_path / f"{name}.py"  # docstrings of fields are read from the source
        path.write_text(code)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load
