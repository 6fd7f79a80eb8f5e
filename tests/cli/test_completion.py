"""Completion, asked of the shell it is for; and how much is said."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pseudocore.workflows.progress import progress

from .conftest import Cli

ASK = """
source script.bash
ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _pseudocore; echo "${COMPREPLY[@]}"; }
ask pseudocore ev
ask pseudocore reduce vb
ask pseudocore reduce vbpc digits --pool-
ask pseudocore evaluate runs/x --fid
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_verbs_methods_and_flags(done: Cli, own_world: Path) -> None:
    said = done("completion install bash --path script.bash")
    assert "script.bash" in said.err
    answers = subprocess.run(["bash", "-c", ASK], capture_output=True, text=True, check=True)
    assert answers.stdout.splitlines() == [
        "evaluate",
        "vbpc",
        "--pool-size --pool-lr",
        "--fidelity",
    ]
    assert not list(own_world.glob(".bash*"))


def test_a_shell_that_is_not_known_is_a_sentence(cli: Cli) -> None:
    said = cli("completion show tcsh")
    assert said.code == 2
    assert said.err.count("\n") == 1


@pytest.fixture
def _levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSEUDOCORE_VERBOSITY", "")  # restored after the test


@pytest.mark.usefixtures("_levels")
def test_quiet_leaves_results_and_errors(done: Cli, cli: Cli) -> None:
    line = "reduce uniform digits --ipc 1 --model linear --out {}"
    assert "next:" in (said := done(line.format("a"))).out + said.err
    evaluate = "evaluate a --num-steps 2 --seeds 1"
    assert "saved in" in done(evaluate).err
    said = done(f"{evaluate} --quiet")
    assert "accuracy" in said.out
    assert said.err == ""
    with progress("p", 10) as advance:
        advance(10, {})
    said = cli("reduce nothing digits --out b --quiet")
    assert said.code == 2
    assert said.err.startswith("pseudocore: unknown method")


@pytest.mark.usefixtures("_levels")
def test_verbose_says_where_an_error_came_from(cli: Cli) -> None:
    said = cli("evaluate nowhere --verbose")
    assert said.code == 2
    assert "Traceback" in said.err
    assert said.err.splitlines()[-1].startswith("pseudocore: ")
