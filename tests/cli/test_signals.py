"""Runs that are stopped from outside, in processes of their own: they go on where they stopped, to
the same last bit.
"""

import json
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

Done = Callable[[str], Any]

PROGRAM = [sys.executable, "-m", "pseudocore"]
REDUCE = (
    "reduce vbpc digits --ipc 1 --model convnet-wide --width 4 --batch-size 16 --pool-size 2 "
    "--max-age 5 --num-steps 100 --checkpoint-every 5 --out run"
)
CHECKPOINT = Path("run/checkpoint.safetensors")


def _start(line: str, **options: Any) -> subprocess.Popen[str]:
    streams = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([*PROGRAM, *shlex.split(line)], text=True, **streams, **options)


def _stop_at_next_checkpoint(
    process: subprocess.Popen[str], number: signal.Signals
) -> tuple[int, str, str]:
    def saved() -> int:
        return CHECKPOINT.stat().st_mtime_ns if CHECKPOINT.exists() else 0

    before = saved()
    return _stop_when(process, lambda: saved() not in (0, before), number)


def _stop_when(
    process: subprocess.Popen[str], ready: Callable[[], bool], number: signal.Signals
) -> tuple[int, str, str]:
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until and not ready():
        time.sleep(0.005)
    process.send_signal(number)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()  # one that ignored the signal
    return process.returncode, out, err


def _status() -> str:
    return str(json.loads(Path("run/manifest.json").read_text())["status"])


def _check_against_uninterrupted(done: Done) -> None:
    assert _status() == "finished"
    assert not CHECKPOINT.exists()
    done(REDUCE.replace("--out run", "--out whole"))
    one, other = (load_file(f"{run}/coreset.safetensors") for run in ("run", "whole"))
    assert all(torch.equal(one[name], other[name]) for name in ("x", "y", "weight"))
    assert Path("run/metrics.jsonl").read_bytes() == Path("whole/metrics.jsonl").read_bytes()


def test_ctrl_c_saves_and_tells_how_to_resume(done: Done) -> None:
    code, out, err = _stop_at_next_checkpoint(_start(REDUCE), signal.SIGINT)
    assert (code, out) == (130, "")
    words, command = err.rstrip("\n").split("; resume with: ")
    assert words.startswith("interrupted after step ")
    assert command == f"pseudocore {REDUCE} --resume"
    assert _status() == "interrupted"
    _try_on_a_full_disk(command.removeprefix("pseudocore "))
    done(command.removeprefix("pseudocore "))
    _check_against_uninterrupted(done)


def _try_on_a_full_disk(line: str) -> None:
    """A limit on file size acts as one: the operating system refuses in the middle of a run."""
    saved = CHECKPOINT.read_bytes()
    limit = resource.RLIMIT_FSIZE, (len(saved) // 2, -1)
    process = _start(line, preexec_fn=lambda: resource.setrlimit(*limit))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    resuming, refusal = err.splitlines()
    assert resuming.startswith("resuming at step ")
    assert refusal.startswith(f"pseudocore: cannot write {CHECKPOINT}: file too large; what was")
    assert CHECKPOINT.read_bytes() == saved


def test_a_polite_stop_works_in_the_background_where_ctrl_c_is_ignored() -> None:
    process = _start(REDUCE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    code, out, err = _stop_at_next_checkpoint(process, signal.SIGTERM)
    assert (code, out) == (130, "")
    assert err.endswith(f"; resume with: pseudocore {REDUCE} --resume\n")
    assert _status() == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR1])
def test_a_polite_stop_of_any_verb_ends_like_ctrl_c(number: signal.Signals) -> None:
    process = _start("testbed --num-steps 1000000")
    said = _stop_when(process, lambda: _catches(process, number), number)
    assert said == (130, "", "interrupted\n")


def test_an_impatient_stop_is_one_stop(done: Done) -> None:
    process = _start(REDUCE)
    while process.poll() is None and not CHECKPOINT.exists():
        time.sleep(0.005)
    for _ in range(4):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, _status()) == (130, "interrupted")
    assert err.count("resume with") == 1
    done(f"{REDUCE} --resume")
    _check_against_uninterrupted(done)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_libraries_are_loaded_a_stop_is_neither_lost_nor_an_exception(
    number: signal.Signals,
) -> None:
    """An exception may be taken by whatever is being loaded for its own, and come out as another
    exit code, or not at all.
    """
    code = """
import os, signal, sys
from pseudocore.cli.main import exit_now, on_stop
before = signal.getsignal(signal.SIGINT)
with on_stop(exit_now):
    pass
assert signal.getsignal(signal.SIGINT) is before
with on_stop(exit_now):
    try:
        os.kill(os.getpid(), int(sys.argv[1]))
    except BaseException:
        pass
print("not stopped")
"""
    command = [sys.executable, "-c", code, str(int(number))]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (said.returncode, said.stdout, said.stderr) == (130, "", "interrupted\n")


def _catches(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_a_run_killed_twice_ends_as_if_never_killed(done: Done) -> None:
    code, out, err = _stop_at_next_checkpoint(_start(REDUCE), signal.SIGKILL)
    assert (code, out, err) == (-signal.SIGKILL, "", "")
    assert _status() == "running"
    code, _, err = _stop_at_next_checkpoint(_start(f"{REDUCE} --resume"), signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert err.startswith("resuming at step ")
    done(f"{REDUCE} --resume")
    _check_against_uninterrupted(done)
