"""The fuzzer in small: every reader, the corpus of what once broke one, and that a fault is seen."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def fuzz(harness: Callable[[str], ModuleType]) -> ModuleType:
    return harness("fuzz")


@pytest.fixture(scope="module")
def seeds(fuzz: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> object:
    return fuzz.Seeds(tmp_path_factory.mktemp("seeds"))


@pytest.fixture(autouse=True)
def _limits(fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSEUDOCORE_DATA_LIMIT", str(fuzz.LIMIT_MIB / 1024))


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32), number=st.integers(0, 2**16))
@pytest.mark.filterwarnings("ignore")
def test_any_file_is_read_or_refused(
    fuzz: ModuleType, seeds: "object", seed: int, number: int
) -> None:
    kind, why = seeds.outcome(*seeds.mutant(seed, number))  # type: ignore[attr-defined]
    assert kind in ("read", "refused"), why


@pytest.mark.filterwarnings("ignore")
def test_what_once_broke_a_reader(fuzz: ModuleType, seeds: "object") -> None:
    entries = fuzz.corpus()
    assert entries
    for entry in entries:
        kind, why = seeds.outcome(*fuzz.replayed(entry))  # type: ignore[attr-defined]
        assert kind in ("read", "refused"), (entry.name, why)


def _hang(_: Path) -> None:
    time.sleep(60)


def _crash(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _grow(_: Path) -> None:
    torch.ones(2**27).sum()


def _raise(_: Path) -> None:
    raise KeyError("a bug")


@pytest.mark.parametrize(
    ("read", "kind"),
    [(_hang, "hang"), (_crash, "signal-9"), (_grow, "memory"), (_raise, "traceback")],
)
def test_faults_are_seen(
    fuzz: ModuleType,
    tmp_path: Path,
    read: Callable[[Path], None],
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(folder: Path) -> Path:
        (folder / "file").write_bytes(bytes(100))
        return folder / "file"

    monkeypatch.setattr(fuzz, "HANG", 0.2 if kind == "hang" else 60)
    own = fuzz.Seeds(tmp_path, {"own": fuzz.Reader(write, lambda path: None)})
    own.readers["own"] = fuzz.Reader(write, read)
    found = fuzz.run(own, 0, range(2))
    assert [one["kind"] for one in found] == [kind] * 2
