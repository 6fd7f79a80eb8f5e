"""Other packages' entry points, in a process of their own: a working plug-in is known, and a broken
one disables itself with one sentence and nothing else.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[3] / "src"
GOOD = '''
"""A plug-in."""
from dataclasses import dataclass
from pseudocore.core.registry import methods

@methods.register("first-two", kind="select", paper="baseline")
@dataclass(frozen=True, kw_only=True)
class FirstTwo:
    """The first two examples."""
    def select(self, problem, rng):
        import torch
        return problem.subset(torch.arange(2))
'''


def install(folder: Path, name: str, code: str, group: str = "methods") -> None:
    """A package as pip leaves it: a module, and metadata with an entry point."""
    (folder / f"{name}.py").write_text(code)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[pseudocore.{group}]\n{name} = {name}\n")


def pseudocore(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), str(SRC)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pseudocore", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_plug_in_is_listed_and_runs(tmp_path: Path) -> None:
    install(tmp_path, "good", GOOD)
    listed = pseudocore(tmp_path, "methods")
    assert listed.returncode == 0
    assert "disabled" not in listed.stderr
    assert "first-two" in listed.stdout
    reduced = pseudocore(tmp_path, "reduce", "first-two", "digits", "--out", "run")
    assert reduced.returncode == 0, reduced.stderr


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise RuntimeError('no\\nGPU')", "RuntimeError: no GPU"),
        ("import not_installed", "ModuleNotFoundError: No module named 'not_installed'"),
        ("def", "SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        (GOOD.replace("first-two", "vbpc"), "ConfigError: two methods are named 'vbpc'"),
    ],
    ids=["raises", "import", "syntax", "exit", "name"],
)
def test_a_broken_one_is_one_sentence(tmp_path: Path, code: str, reason: str) -> None:
    install(tmp_path, "bad", code)
    install(tmp_path, "good", GOOD)
    listed = pseudocore(tmp_path, "methods")
    assert listed.returncode == 0
    assert "first-two" in listed.stdout
    assert "vbpc" in listed.stdout
    refusal, following = listed.stderr.splitlines()
    assert refusal.startswith("pseudocore: the plug-in 'bad' (bad) is disabled: ")
    assert reason in refusal
    assert following.startswith("next: ")


def test_of_every_kind(tmp_path: Path) -> None:
    """Inferences and models have groups of their own; a run that needs neither is silent."""
    install(tmp_path, "bad", "raise ValueError", group="inferences")
    install(tmp_path, "worse", "raise ValueError", group="models")
    reduced = pseudocore(tmp_path, "reduce", "uniform", "digits", "--ipc", "1", "--out", "run")
    assert (reduced.returncode, reduced.stderr.count("disabled")) == (0, 0), reduced.stderr
    evaluated = pseudocore(tmp_path, "evaluate", "run", "--inference", "bad", "--seeds", "1")
    assert evaluated.returncode == 2
    assert "the plug-in 'bad' (bad) is disabled: ValueError" in evaluated.stderr
    assert "Traceback" not in evaluated.stderr
