"""Each measurement in a process of its own, as only that can tell its peak memory.

Loading torch takes seconds, so one process (`python -m
pseudocore.reproduce.bench.subprocess_runner`) loads everything, does nothing else, and forks a
child for every request. Requests and answers are lines of JSON. (The fork server of the standard
library would run the caller's script again.)
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import IO, Any

import torch

from pseudocore.core.errors import ConfigError, PseudocoreError
from pseudocore.reproduce.bench.requests import Measured, NotMeasuredError, Request, fulfil
from pseudocore.runtime.warmup import import_ahead
from pseudocore.store.files import decode_json, encode_json


@contextlib.contextmanager
def subprocess_runner() -> Iterator[Callable[[Request], Measured]]:
    """`fulfil`, in a process of its own for each request."""
    if not hasattr(os, "fork"):
        raise ConfigError(
            "bench measures memory in forked processes, which this system does not have; use Linux,"
            " macOS or WSL, or --device cuda",
            code="needs-posix",
        )
    command = [sys.executable, "-m", __name__]
    # In a session of its own, as Ctrl-C is for the caller, who ends this process; unbuffered, as
    # each request waits for its answer.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
    ) as process:
        try:
            yield lambda request: _ask(process, request)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _ask(process: "subprocess.Popen[bytes]", request: Request) -> Measured:
    assert process.stdin is not None
    assert process.stdout is not None
    line = encode_json({**request.to_json(), "num_threads": torch.get_num_threads()}) + "\n"
    try:
        process.stdin.write(line.encode())
        answer = decode_json(
            process.stdout.readline() or '{"failed": "the process that measures has ended"}'
        )
    except BrokenPipeError:
        raise NotMeasuredError("the process that measures has ended") from None
    if "refused" in answer:
        raise ConfigError(**answer["refused"])
    if "failed" in answer:
        raise NotMeasuredError(answer["failed"])
    return Measured.from_json(answer)


def serve() -> None:
    """Answer requests from standard input until it ends."""
    import_ahead()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # only answers go to standard output
    with contextlib.suppress(BrokenPipeError):  # the caller is gone
        for line in sys.stdin:
            answers.write((_answer_of_child(decode_json(line), sys.stdin) + "\n").encode())


def _answer_of_child(table: dict[str, Any], *callers: IO[str]) -> str:
    """The child's answer; the child is killed if a caller hangs up."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            with os.fdopen(writer, "w") as pipe:
                pipe.write(encode_json(_answer(table)))
        finally:
            os._exit(0)  # even after an error: the loop belongs to the parent
    os.close(writer)
    with os.fdopen(reader) as pipe:
        ready, _, _ = select.select([pipe, *callers], [], [])
        if pipe not in ready:  # a waiting caller sends nothing, so this one has hung up
            os.kill(child, signal.SIGKILL)
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    ended = (
        f"by signal {os.WTERMSIG(status)}, for want of memory perhaps"
        if os.WIFSIGNALED(status)
        else "before it could answer"
    )
    return answer or encode_json({"failed": f"its process was ended {ended}"})


def _answer(table: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(table.pop("num_threads"))
    try:
        return fulfil(Request.from_json(table)).to_json()
    except PseudocoreError as error:
        return {"refused": {"message": str(error), "code": error.code}}
    except NotMeasuredError as error:
        return {"failed": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}".partition("\n")[0]}


if __name__ == "__main__":
    serve()
