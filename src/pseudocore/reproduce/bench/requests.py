"""One measurement: something to time, a way of running it, and where."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

import torch

from pseudocore.core import config
from pseudocore.core.problem import Problem
from pseudocore.core.types import Model
from pseudocore.reproduce.bench import baseline as plain
from pseudocore.reproduce.bench import measure, tasks
from pseudocore.reproduce.bench.measure import CountingModel, Timing, Work
from pseudocore.reproduce.bench.workload import Workload
from pseudocore.runtime import Compile
from pseudocore.runtime.profiling import PeakMemory

Way = Literal["ours", "eager", "plain"]
"""As asked by `compile`; our step with nothing captured or compiled; a plain loop of the same maths
(`plain.py`).
"""


class Request(NamedTuple):
    name: str
    way: Way
    workload: Workload
    device: str
    """cpu or cuda."""
    compile: Compile
    seconds: float
    """To read the clock for."""
    counting: bool = False
    """Whether operations, bytes and images are counted too, by one more eager step."""

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "workload": config.to_dict(self.workload)}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> "Request":
        return cls(**{**table, "workload": config.build(Workload, table["workload"])})


class Measured(NamedTuple):
    """Of a step of a method, or of one of a part."""

    timing: Timing
    peak_mib: int
    note: str
    work: Work | None

    def to_json(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "timing": self.timing._asdict(),
            "work": self.work and self.work._asdict(),
        }

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> "Measured":
        return cls(
            **{
                **table,
                "timing": Timing(**table["timing"]),
                "work": table["work"] and Work(**table["work"]),
            }
        )


class NotMeasuredError(Exception):
    """A measurement that could not be made, for want of memory above all."""


def runs_eagerly(device: str, compile: Compile) -> bool:
    """Whether ours is the eager step itself: nothing is captured on a CPU, nor compiled unless
    asked.
    """
    return compile == "off" or (compile == "auto" and device == "cpu")


def fulfil(request: Request) -> Measured:
    """The measurement, made here and now."""
    try:
        if (
            request.device == "cpu"
        ):  # the code of what is called counts as memory from when it is first called
            tiny = request._replace(workload=_tiny(request.workload), compile="off")
            _task(tiny, tasks.problem_of(tiny.name, tiny.workload, "cpu")).take(0)
        problem = tasks.problem_of(request.name, request.workload, request.device)
        memory = PeakMemory(problem.device)
        task = _task(request, problem)
        timing = measure.timed(task.take, problem.device, seconds=request.seconds)
        peak, note, num = memory.peak(), task.note(), task.num_inside
        del task  # a captured graph holds memory
        work = _work(request, problem).over(num) if request.counting else None
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise NotMeasuredError(str(error).strip().partition("\n")[0] or "out of memory") from error
    return Measured(timing.over(num), peak, note, work)


def _tiny(workload: Workload) -> Workload:
    sizes = {
        "num_train": workload.num_classes,
        "per_class": 1,
        "num_inner_steps": 1,
        "num_draws": 2,
        "batch_size": 8,
        "width": 2,
    }
    return replace(workload, **cast(dict[str, Any], sizes))


def _task(request: Request, problem: Problem) -> tasks.Task:
    if request.way == "plain":
        return plain.make(request.name, problem, request.workload)
    return tasks.make(
        request.name, problem, request.workload, request.compile if request.way == "ours" else "off"
    )


def _work(request: Request, problem: Problem) -> Work:
    model = CountingModel(problem.model)
    task = tasks.make(
        request.name, replace(problem, model=cast(Model, model)), request.workload, "off"
    )
    return measure.counted(task.take, lambda: model.images)
