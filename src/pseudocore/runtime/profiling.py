"""What the stages of a piece of work cost: wall time and peak memory, by name.

```python
with recording() as costs:
    with stage("load"):
        ...
costs["load"].seconds
```

Outside a recording a `stage` records nothing. Stages nest: the seconds of one are those not spent in
the stages inside it, so they add up to the whole. Peak memory on a GPU is that of the stage, the
ones inside it included. The operating system knows a process's peak only over its whole life, so on
a CPU it is the high-water mark at the end of the stage. Only a rise can be blamed on a stage.
"""

import gc
import importlib
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch

from pseudocore.runtime.shortage import naming


class Cost(NamedTuple):
    seconds: float
    peak_mib: int


Costs = dict[str, Cost]

# Context variables, as stages are marked deep inside methods and inferences, which should not have
# to pass a recording on; and work in another thread is not part of one.
_recorded: ContextVar[Costs | None] = ContextVar("recorded", default=None)
_spent_inside: ContextVar[list[Cost]] = ContextVar("spent_inside")


@contextmanager
def recording() -> Iterator[Costs]:
    """Collect the stages that follow; within another recording, join it."""
    if (outer := _recorded.get()) is not None:
        yield outer
        return
    costs: Costs = {}
    token = _recorded.set(costs)
    try:
        yield costs
    finally:
        _recorded.reset(token)


@contextmanager
def stage(name: str, device: torch.device | str = "cpu") -> Iterator[None]:
    """Add what is done inside to the cost of `name`; on a GPU this waits for the device, twice.

    Where memory runs out, the error names the stage.
    """
    costs = _recorded.get()
    if costs is None:
        with naming(name):
            yield
        return
    on_gpu = torch.device(device).type == "cuda"
    before = _gpu_peak() if on_gpu else 0
    inside: list[Cost] = []
    token = _spent_inside.set(inside)
    began = time.monotonic()
    try:
        with naming(name):
            yield
    finally:
        peak = max(_gpu_peak() if on_gpu else peak_mib(), *(cost.peak_mib for cost in inside), 0)
        seconds = time.monotonic() - began
        _spent_inside.reset(token)
        if (around := _spent_inside.get(None)) is not None:
            around.append(Cost(seconds, max(before, peak)))
        own = Cost(seconds - sum(cost.seconds for cost in inside), peak)
        costs.update(combined(costs, {name: own}))


def combined(one: Mapping[str, Cost], other: Mapping[str, Cost]) -> Costs:
    """Both together: seconds add up, peaks do not."""
    sums = dict(one)
    for name, cost in other.items():
        known = sums.get(name, Cost(0.0, 0))
        sums[name] = Cost(known.seconds + cost.seconds, max(known.peak_mib, cost.peak_mib))
    return sums


def from_table(table: Mapping[str, Mapping[str, Any]]) -> Costs:
    """The inverse of `to_table`."""
    return {name: Cost(float(row["seconds"]), int(row["peak_mib"])) for name, row in table.items()}


def to_table(costs: Mapping[str, Cost]) -> dict[str, dict[str, Any]]:
    """Plain values for JSON."""
    return {
        name: {"seconds": round(cost.seconds, 3), "peak_mib": cost.peak_mib}
        for name, cost in costs.items()
    }


def peak_mib() -> int:
    """The most memory this process has held so far, in MiB; 0 on Windows, which is not asked."""
    try:
        resource = importlib.import_module("resource")
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024  # macOS reports bytes
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 2**20)


def wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


class PeakMemory:
    """The most memory held since this was made, in MiB: on a GPU, of what torch has allocated.

    On a CPU it is 0 unless this process never held more before, so ask it in one of its own.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            gc.collect()  # what an earlier measurement left in cycles
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_allocated() if self._on_gpu else peak_mib()

    def peak(self) -> int:
        if self._on_gpu:
            torch.cuda.synchronize()
            return int(torch.cuda.max_memory_allocated() - self._before) // 2**20
        return peak_mib() - self._before


def _gpu_peak() -> int:
    """The device's peak in MiB since this was last asked."""
    torch.cuda.synchronize()
    peak = int(torch.cuda.max_memory_allocated() // 2**20)
    torch.cuda.reset_peak_memory_stats()
    return peak
