"""One measurement: something to time, a variant of it, and where."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch

from pseudocore.core import config
from pseudocore.core.problem import Problem
from pseudocore.reproduce.bench import baseline, measure, tasks
from pseudocore.reproduce.bench.measure import CountingModel, Timing, Work
from pseudocore.reproduce.bench.workload import Workload
from pseudocore.runtime import Compile
from pseudocore.runtime.profiling import PeakMemory

Variant = Literal["ours", "eager", "plain"]
"""As `compile` says; our step neither captured nor compiled; a plain loop (`baseline.py`)."""


class Request(NamedTuple):
    name: str
    variant: Variant
    workload: Workload
    device: str
    """cpu or cuda."""
    compile: Compile
    seconds: float
    """To take readings for."""
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
        work = self.work and self.work._asdict()
        return {**self._asdict(), "timing": self.timing._asdict(), "work": work}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> "Measured":
        work = table["work"] and Work(**table["work"])
        return cls(**{**table, "timing": Timing(**table["timing"]), "work": work})


class NotMeasuredError(Exception):
    """A measurement that could not be made, for want of memory above all."""


def runs_eagerly(device: str, compile: Compile) -> bool:
    """Whether ours is the eager step: a CPU captures nothing, and compiles only when asked."""
    return compile == "off" or (compile == "auto" and device == "cpu")


def fulfil(request: Request) -> Measured:
    """Make a measurement in this process."""
    try:
        if request.device == "cpu":  # code counts as memory from when it is first called
            tiny = request._replace(workload=_tiny(request.workload), compile="off")
            _task(tiny, tasks.problem_of(tiny.name, tiny.workload, "cpu")).take(0)
        problem = tasks.problem_of(request.name, request.workload, request.device)
        memory = PeakMemory(problem.device)
        task = _task(request, problem)
        timing = measure.timed(task.take, problem.device, seconds=request.seconds)
        peak, note, num = memory.peak(), task.note(), task.num_inside
        del task  # a captured graph holds memory
        work = count_work(request, problem).over(num) if request.counting else None
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise NotMeasuredError(str(error).strip().partition("\n")[0] or "out of memory") from error
    return Measured(timing.over(num), peak, note, work)


def count_work(request: Request, problem: Problem) -> Work:
    """The work of one call of the task, `num_inside` things."""
    model: Any = CountingModel(problem.model)
    counting = replace(problem, model=model)
    task = tasks.make(request.name, counting, request.workload, "off")
    return measure.counted(task.take, lambda: model.images)


def _tiny(workload: Workload) -> Workload:
    return replace(
        workload,
        num_train=workload.num_classes,
        per_class=1,
        num_inner_steps=1,
        num_draws=2,
        batch_size=8,
        width=2,
    )


def _task(request: Request, problem: Problem) -> tasks.Task:
    if request.variant == "plain":
        return baseline.make(request.name, problem, request.workload)
    compile = request.compile if request.variant == "ours" else "off"
    return tasks.make(request.name, problem, request.workload, compile)
