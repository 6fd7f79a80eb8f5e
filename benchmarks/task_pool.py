"""Tasks that need each other's results, in a pool of processes for each device, until time is up.

A task is a plain tuple; what it needs are other tasks. Each free process takes the first task, in
the order given, whose needs are done; what needs a task that failed is left out.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.pool import AsyncResult
from typing import Any, NamedTuple

POLL = 0.05
"""Seconds between looks at what has finished."""


class Task(NamedTuple):
    key: tuple[Any, ...]
    """What the worker is called with."""
    device: str
    needs: tuple[tuple[Any, ...], ...] = ()


def run(
    tasks: Sequence[Task],
    call: Callable[..., Any],
    *,
    processes: Mapping[str, int],
    begin: Callable[..., None],
    arguments: tuple[Any, ...],
    seconds: float,
) -> Iterator[tuple[Task, Any]]:
    """Tasks and their results as they finish; whatever still runs when time is up is ended.

    Args:
        tasks: In the order of importance.
        call: The worker, a function of a module, called with `*task.key`.
        processes: How many for each device; none at all runs every task here, one by one.
        begin: Called first in each process, with `arguments`.
        arguments: See `begin`.
        seconds: After which no task is begun, and with processes none goes on.
    """
    began = time.monotonic()
    if not any(processes.values()):
        yield from _here(tasks, call, began + seconds, begin, arguments)
        return
    context = get_context("spawn")
    pools = {
        device: context.Pool(num, begin, arguments) for device, num in processes.items() if num
    }
    waiting, running = list(tasks), dict[Task, AsyncResult[Any]]()
    done, failed = set[tuple[Any, ...]](), set[tuple[Any, ...]]()
    try:
        while (waiting or running) and time.monotonic() - began < seconds:
            for task in [task for task, result in running.items() if result.ready()]:
                try:
                    found = running.pop(task).get()
                except Exception as error:
                    failed.add(task.key)
                    print(f"{task.key}: {type(error).__name__}: {error}", file=sys.stderr)
                    continue
                done.add(task.key)
                yield task, found
            for task in list(waiting):
                if failed & set(task.needs) or task.device not in pools:
                    waiting.remove(task)
                    failed.add(task.key)
                    continue
                num = sum(other.device == task.device for other in running)
                if num < processes[task.device] and done >= set(task.needs):
                    waiting.remove(task)
                    running[task] = pools[task.device].apply_async(call, task.key)
            time.sleep(POLL)
        if waiting or running:
            print(f"time is up; {len(waiting) + len(running)} tasks are left", file=sys.stderr)
    finally:
        for pool in pools.values():
            pool.terminate()


def _here(
    tasks: Sequence[Task],
    call: Callable[..., Any],
    end: float,
    begin: Callable[..., None],
    arguments: tuple[Any, ...],
) -> Iterator[tuple[Task, Any]]:
    begin(*arguments)
    waiting, done = list(tasks), set[tuple[Any, ...]]()
    while waiting and time.monotonic() < end:
        task = next((one for one in waiting if done >= set(one.needs)), None)
        if task is None:
            break
        waiting.remove(task)
        yield task, call(*task.key)
        done.add(task.key)
    if waiting:
        print(f"{len(waiting)} tasks are left", file=sys.stderr)
