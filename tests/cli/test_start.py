"""Starting up: what is loaded when, help for every verb, odd terminals, closed pipes."""

import contextlib
import io
import os
import pty
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest

from pseudocore import __version__
from pseudocore.assembly import Setup
from pseudocore.cli.main import _others_are_computing, main
from pseudocore.core.config import options
from pseudocore.core.registry import inferences, methods

Done = Callable[[str], Any]

PROGRAM = [sys.executable, "-m", "pseudocore"]
VERBS = ("demo", "methods", "data", "reduce", "evaluate", "compare", "report", "export")
STREAMS = ("stdin", "stdout", "stderr")
FLAGS = "out seed preset resume overwrite checkpoint-every device compile json"
LEARN = "reduce vbpc digits --ipc 1 --model convnet-wide --width 4 --batch-size 16 --num-steps 20"


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("pseudocore", "torch numpy rich cyclopts safetensors socket ssl http.client"),
        ("pseudocore.cli.main", "torch numpy safetensors ssl http.client"),
    ],
)
def test_importing_loads_nothing_heavy(module: str, heavy: str) -> None:
    code = f"import {module}, sys; print(*sys.modules)"
    listed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert set(listed.split()).isdisjoint(heavy.split())


@pytest.mark.parametrize(
    ("line", "word"),
    [("", "reduce"), ("--help", "bench"), ("--version", __version__), ("reduce --help", "vbpc")],
)
def test_help_and_version_are_quick_and_open_no_connection(line: str, word: str) -> None:
    lines = (
        "import socket, sys",
        "from pseudocore.cli.main import main",
        "socket.socket.connect = socket.create_connection = None",
        "try: main(sys.argv[1:])",
        "finally: assert not {'torch', 'numpy'} & {*sys.modules}",
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", "\n".join(lines), *line.split()]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert word in said.stdout
    assert said.stderr == ""
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert seconds < 0.9  # of one processor; 0.3 on a quiet machine


@pytest.mark.parametrize(
    ("given", "busy", "spins"),
    [("", True, "1000"), ("", False, None), ("OMP_WAIT", True, None), ("GOMP_SPIN", True, "7")],
)
def test_waiting_threads_give_up_their_core_beside_other_programs(
    done: Done, monkeypatch: pytest.MonkeyPatch, given: str, busy: bool, spins: str | None
) -> None:
    monkeypatch.setattr("pseudocore.cli.main._others_are_computing", lambda: busy)
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "7")  # so that it is put back
        if not given or not name.startswith(given):
            monkeypatch.delenv(name)
    done("data list")
    assert os.environ.get("GOMP_SPINCOUNT") == spins


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")
def test_other_programs_are_noticed() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        deadline = time.monotonic() + 20
        while not (found := _others_are_computing()) and time.monotonic() < deadline:
            pass
        busy.kill()
    assert found


@pytest.mark.parametrize("line", ["", "--help", "-h"])
def test_without_a_verb_help_is_shown(done: Done, line: str) -> None:
    assert set(VERBS) <= set(done(line).out.split())


@pytest.mark.parametrize(
    "verb",
    [
        *VERBS,
        *(f"data {verb}" for verb in ("list", "info", "import")),
        *(f"evaluate --inference {name}" for name in inferences.names()),
    ],
)
def test_every_verb_explains_itself(done: Done, verb: str) -> None:
    said = done(f"{verb} --help")
    assert said.out.startswith(f"Usage: pseudocore {verb.partition(' --')[0]}")
    assert said.err == ""


def _plain(text: str) -> str:
    """A help page without its frames, line breaks and backticks."""
    return " ".join(text.replace("│", " ").replace("`", "").split())


@pytest.mark.parametrize("name", methods.names())
def test_help_names_every_field_with_its_meaning(
    done: Done, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    said = done(f"reduce {name} --help")
    assert said.out.startswith(f"Usage: pseudocore reduce {name} DATA --out RUN")
    assert said.err == ""
    make, text = methods[name].make, _plain(said.out)
    for option in (*options(make), *options(Setup)):
        if option.name == "data":
            continue
        flag = "--ipc" if option.name == "per_class" else f"--{option.name.replace('_', '-')}"
        assert flag in text
        assert option.help
        assert _plain(option.help) in text
    assert all(f"--{flag}" in text for flag in FLAGS.split())


def test_a_narrow_terminal_cuts_nothing(done: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = done("reduce vbpc --help").out
    assert all(len(line) <= 40 for line in text.splitlines())
    assert "…" not in text
    for option in options(methods["vbpc"].make):
        assert all(word in text for word in _plain(option.help).split() if len(word) < 12)


def _on_a_terminal(line: str, **environment: str) -> str:
    """Everything the program writes to an 80-column terminal."""
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **environment}
    process = subprocess.Popen([*PROGRAM, *line.split()], env=env, **dict.fromkeys(STREAMS, slave))
    os.close(slave)
    parts = []
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while part := os.read(master, 65536):
            parts.append(part)
    os.close(master)
    assert process.wait() == 0
    return b"".join(parts).decode()


def test_a_bar_is_drawn_on_a_terminal_without_colour_if_asked() -> None:
    text = _on_a_terminal(f"{LEARN} --out run", NO_COLOR="1")
    bar = next(part for part in reversed(re.split("[\r\n]", text)) if "vbpc on digits" in part)
    assert re.search(r"━ 20/20 .*\d:\d\d:\d\d .*loss [\d.]+", bar)
    assert not re.search("\x1b\\[[0-9;]*3[0-8]", text)  # what sets a colour
    assert "10 points in run" in text


def test_a_reader_that_leaves_early_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [*PROGRAM, "methods", "--json"], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert (process.stderr, process.returncode) == ("", 1)


def _with_output(stream: TextIO, words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as stop:
            main(words)
    return int(stop.value.code or 0)


def test_a_terminal_without_our_signs_gets_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii")
    assert _with_output(stream, ["evaluate", "--help"], monkeypatch) == 0
    assert b"mean ? sd" in b" ".join(written.getvalue().split())


def test_a_stream_without_an_encoding_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    assert _with_output(written, ["data", "list"], monkeypatch) == 0
    assert "digits" in written.getvalue()


def test_pydantic_beside_us_changes_nothing(done: Done, refused: Callable[[str], str]) -> None:
    pytest.importorskip("pydantic")
    assert "10 points" in done("reduce uniform digits --ipc 1 --out run --model linear").out
    done("evaluate run --inference sgd --num-steps 2 --seeds 1 --severity 1 --num-robust 5")
    assert "'none' is not a whole number" in refused("reduce vbpc digits --out x --width none")


def test_a_full_standard_output_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = open("/dev/full", "w")  # noqa: SIM115  (closing it fails too)
    assert _with_output(full, ["methods"], monkeypatch) == 2
    assert "refused: [Errno 28] No space left on device\n" in capsys.readouterr().err
    with contextlib.suppress(OSError):
        full.close()
