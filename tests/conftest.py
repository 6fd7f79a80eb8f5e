"""Shared by all tests: one torch thread a process, since pytest runs one process a core and results
must not depend on the count; and
a shelf of the test's own, so that nothing is kept in the user's folders or found there. On a GPU,
full precision."""

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_shelf(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.getbasetemp() / "shelf"  # made only if something is kept
    monkeypatch.setenv("PSEUDOCORE_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _full_precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch lets a GPU's convolutions round to tf32 unless told, which comparisons of two ways to
    run a step do not survive.
    """
    if request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
