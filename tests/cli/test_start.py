"""Starting up: what is loaded when, help for every verb, odd terminals, closed pipes."""

import inspect
import os
import pty
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pseudocore import __version__
from pseudocore.core.config import options
from pseudocore.core.registry import inferences, methods
from pseudocore.setup import Setup

Done = Callable[[str], Any]

PROGRAM = [sys.executable, "-m", "pseudocore"]
VERBS = ["demo", "methods", "data", "data list", "data info", "data import", "reduce", "evaluate", "compare", "report", "export"]


def _loaded(code: str) -> set[str]:
    listed = subprocess.run([sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"], check=True, capture_output=True, text=True)
    return set(listed.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = _loaded("import pseudocore")
    assert loaded.isdisjoint({"torch", "numpy", "rich", "cyclopts", "safetensors", "socket", "ssl", "http.client"})


def test_the_entry_point_can_be_interrupted_before_torch_is_loaded() -> None:
    assert _loaded("import pseudocore.cli.main").isdisjoint({"torch", "numpy"})


def test_help_opens_no_connection_and_is_quick() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "import socket; socket.socket.connect = socket.create_connection = None; from pseudocore.cli.main import main; main(['--help'])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "reduce" in said.stdout
    assert said.stderr == ""
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3.5  # of one processor; most of it is torch's


def test_version(done: Done) -> None:
    assert done("--version").out == f"{__version__}\n"


@pytest.mark.parametrize("line", ["", "--help", "-h"])
def test_without_a_verb_help_is_shown(done: Done, line: str) -> None:
    text = done(line).out
    for verb in VERBS:
        assert verb.split()[0] in text


@pytest.mark.parametrize("verb", [*VERBS, *(f"reduce {entry.name}" for entry in methods), *(f"evaluate --inference {e.name}" for e in inferences)])
def test_every_verb_explains_itself(done: Done, verb: str) -> None:
    said = done(f"{verb} --help")
    assert said.out.startswith(f"Usage: pseudocore {verb.partition(' --')[0]}")
    assert said.err == ""


def _plain(text: str) -> str:
    """A help page without its frames and line breaks."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("name", [entry.name for entry in methods])
def test_help_names_every_field_with_its_meaning(done: Done, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    text = _plain(done(f"reduce {name} --help").out)
    for option in (*options(methods[name].make), *options(Setup)):
        if option.name == "data":
            continue
        flag = "--ipc" if option.name == "per_class" else f"--{option.name.replace('_', '-')}"
        assert flag in text
        assert option.help
        assert " ".join(option.help.split()) in text
    for own in inspect.cleandoc("--out --seed --fraction --preset --resume --overwrite --checkpoint-every --device --compile --json").split():
        assert own in text


def test_a_narrow_terminal_cuts_nothing(done: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = done("reduce vbpc --help").out
    assert all(len(line) <= 40 for line in text.splitlines())
    assert "--checkpoint-seconds" in text.replace("│", "").replace("\n", "").replace(" ", "")


def _on_a_terminal(words: list[str], **environment: str) -> str:
    """Everything the program writes to an 80-column terminal."""
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **environment}
    process = subprocess.Popen([*PROGRAM, *words], stdin=slave, stdout=slave, stderr=slave, env=env)
    os.close(slave)
    text = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:
            break
        text += part
    os.close(master)
    assert process.wait() == 0
    return text.decode()


def test_colour_can_be_turned_off() -> None:
    assert "\x1b[1m" in _on_a_terminal(["methods"])
    plain = _on_a_terminal(["methods"], NO_COLOR="1", TERM="dumb")
    assert "\x1b" not in plain
    assert "Variational" in plain


def test_a_bar_is_drawn_on_a_terminal() -> None:
    line = "reduce vbpc digits --ipc 1 --model convnet-wide --width 4 --batch-size 16 --num-steps 20 --out run"
    text = _on_a_terminal(line.split())
    assert "vbpc on digits" in text
    assert "20/20" in text
    assert "10 points in run" in text


@pytest.mark.parametrize("words", [["methods"], ["methods", "--json"], ["reduce", "vbpc", "--help"]])
def test_a_reader_that_leaves_early_is_no_error(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run([*PROGRAM, *words], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert process.stderr == ""
    assert process.returncode == 1


def test_a_terminal_without_our_signs_gets_question_marks(tmp_path: Any) -> None:
    said = subprocess.run([*PROGRAM, "evaluate", "--help"], capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert said.returncode == 0
    assert b"mean ? sd" in b" ".join(said.stdout.replace(b"|", b" ").split())


def test_a_full_standard_output_is_a_sentence() -> None:
    with open("/dev/full", "w") as full:
        said = subprocess.run([*PROGRAM, "methods"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert said.returncode == 2
    assert said.stderr == "pseudocore: the operating system refused: [Errno 28] No space left on device\n"
