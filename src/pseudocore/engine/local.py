"""Processes of this machine, one per group of cores or per GPU.

Workers are started afresh (nothing is forked) and spoken to in lines of JSON.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence

import torch

from pseudocore.engine.items import Call, Done, Item, died, result_of, search_path
from pseudocore.engine.settings import Engine, Resources

GRACE = 20.0
"""Seconds that workers have to save what they were doing when the work is stopped."""


def run_all(
    calls: Sequence[tuple[Item, Call]], engine: Engine, resources: Resources, retries: int
) -> Iterator[Done]:
    """Results as they finish."""
    pool = _Pool(calls, retries)
    number = engine.num_workers(resources, len(calls))
    threads = [
        threading.Thread(target=pool.serve, args=(environment(resources, place),), daemon=True)
        for place in range(number)
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in calls:
            found = pool.answers.get()
            if isinstance(found, BaseException):
                raise found
            item, text = found
            yield result_of(text, item)
    finally:
        pool.stop()
        for thread in threads:
            thread.join()


def environment(resources: Resources, place: int) -> dict[str, str]:
    """The environment of the worker in that place: its threads, its GPUs, its modules."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(resources.cores))
    gpus = ""
    if resources.gpus:
        each = max(1, round(resources.gpus))
        first = place * each if resources.gpus >= 1 else int(place * resources.gpus)
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        known = named.split(",") if named else list(map(str, range(torch.cuda.device_count())))
        gpus = ",".join(known[first : first + each])
    return {
        **os.environ,
        **threads,
        "CUDA_VISIBLE_DEVICES": gpus,
        "PYTHONPATH": os.pathsep.join(search_path()),
    }


class _Pool:
    """Calls that wait, the workers' processes, and what they answered."""

    def __init__(self, calls: Sequence[tuple[Item, Call]], retries: int) -> None:
        self.answers: queue.SimpleQueue[tuple[Item, str] | BaseException] = queue.SimpleQueue()
        self._waiting = deque((item, call, 0) for item, call in calls)
        self._retries = retries
        self._processes: set[subprocess.Popen[str]] = set()
        self._guard, self._stopped = threading.Lock(), False

    def serve(self, environment: dict[str, str]) -> None:
        """Keep one worker busy until nothing waits; a dead one is replaced."""
        process = None
        try:
            while (taken := self._take()) is not None:
                item, call, deaths = taken
                if process is None and (process := self._start(environment)) is None:
                    return
                if answer := _ask(process, call):
                    self.answers.put((item, answer))
                    continue
                code = _end(process)
                self._processes.discard(process)
                process = None
                if deaths >= self._retries:
                    self.answers.put(died(item, deaths + 1, _how(code)))
                else:
                    self._waiting.appendleft((item, call, deaths + 1))
        except BaseException as error:
            self.answers.put(error)
        finally:
            if process is not None:
                _end(process)

    def stop(self) -> None:
        """End the workers: first as Ctrl-C does, then for good."""
        with self._guard:
            self._stopped = True
            self._waiting.clear()
        running = [process for process in self._processes if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGINT if os.name != "nt" else signal.SIGTERM)
        end = time.monotonic() + GRACE
        for process in running:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()

    def _take(self) -> tuple[Item, Call, int] | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _start(self, environment: dict[str, str]) -> "subprocess.Popen[str] | None":
        with self._guard:
            if self._stopped:
                return None
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pseudocore.engine.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches them through `stop` alone
            )
            self._processes.add(process)
            return process


def _ask(process: "subprocess.Popen[str]", call: Call) -> str:
    """The worker's answer; empty if it died."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(call.to_json() + "\n")
        process.stdin.flush()
        return process.stdout.readline()
    except OSError:
        return ""


def _end(process: "subprocess.Popen[str]") -> int:
    """Let the worker end, if it has not, as its input ends; its exit code."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what it did not read any more
                pipe.close()
    return process.wait()


def _how(code: int) -> str:
    if code < 0:
        return f"by signal {-code}"
    return f"with exit code {code}"
