"""How the step being taken is executed, and what depends on it.

`StepRunner` plans one `Execution` and makes it current while it takes a step; outside a step the
default holds. Other rooms use the functions below, which do the plain thing unless the current
execution allows something faster.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.runtime import Compile, compiling, graph

Result = TypeVar("Result")

MIN_STEPS_TO_COMPILE = 5000
"""Steps from which `auto` compiles: about half a minute once, for about 2 ms a step."""


@dataclass(frozen=True)
class Execution:
    """How steps are executed; the default is eagerly, with custom kernels."""

    captured: bool = False
    """Recorded as a CUDA graph after a few steps, and replayed from then on."""
    compiled: Literal["nothing", "step", "regions", "all but passes"] = "nothing"
    """What `torch.compile` is given: the whole step, the functions it repeats, or those of them
    that do not pass through a network with custom kernels, which are faster.
    """
    custom_kernels: bool = True
    """Networks may use the kernels of `models/_triton`."""
    host_reads: bool = False
    """The host may wait for a value on the device, as nothing will be captured."""


class _Current(threading.local):
    execution = Execution()


_current = _Current()


def plan(compile: Compile, problem: Problem, num_steps: int, *, repeats_passes: bool) -> Execution:
    """`auto` captures on a GPU, and compiles too when `num_steps` is large; `on` does both, on a
    CPU the latter alone; `off` neither, nor does it use custom kernels.

    A step that `repeats_passes` takes too long to compile whole: its regions are compiled.
    """
    on_gpu = problem.device.type == "cuda"
    if compile == "off":
        return Execution(custom_kernels=False, host_reads=True)
    if compile == "auto" and (not on_gpu or num_steps < MIN_STEPS_TO_COMPILE):
        return Execution(captured=on_gpu)
    if not repeats_passes:
        return Execution(captured=on_gpu, compiled="step")
    return Execution(on_gpu, "all but passes" if uses_kernels(problem) else "regions")


@contextmanager
def executing(execution: Execution) -> Iterator[None]:
    """Make an execution current in this thread."""
    before, _current.execution = _current.execution, execution
    try:
        yield
    finally:
        _current.execution = before


def without_kernels() -> AbstractContextManager[None]:
    """Where a gradient is differentiated again, for which custom kernels have no formula."""
    return executing(replace(_current.execution, custom_kernels=False))


def is_eager() -> bool:
    """Whether this is neither being compiled nor inside a transform (a gradient, vmap)."""
    in_transform = torch._C._functorch.peek_interpreter_stack() is not None
    return not torch.compiler.is_compiling() and not in_transform


def kernels_allowed() -> bool:
    """Whether custom kernels may run here."""
    return is_eager() and _current.execution.custom_kernels


def uses_kernels(problem: Problem) -> bool:
    """Whether passes through the problem's network go through custom kernels."""
    # while compiling, torch must not look into the current execution
    allowed = torch.compiler.is_compiling() or _current.execution.custom_kernels
    return allowed and problem.device.type == "cuda" and problem.model.has_kernels


def parallel_passes(problem: Problem) -> int:
    """How many independent passes through the problem's network are best made in one step."""
    return graph.MAX_BRANCHES if uses_kernels(problem) else 1


def repeated(function: Callable[..., Any], *, through_network: bool = False) -> Callable[..., Any]:
    """`function`, which a step calls many times, in the form that suits the current execution.

    It must be a pure function of tensors that draws nothing. Inside a transform (a gradient, vmap)
    it stays itself: the transformed function is what to wrap.
    """
    if not is_eager():
        return function
    compiled = _current.execution.compiled
    if compiled == "regions" or (compiled == "all but passes" and not through_network):
        return compiling.region(function)
    return function


def indivisible(function: Callable[..., Result]) -> Callable[..., Result]:
    """Declare a function with its own derivative to be one operation, never looked into."""
    compiling.INDIVISIBLE.append(function)
    return function


def map_independent(calls: Iterable[Callable[[], Result]]) -> Iterator[Result]:
    """The results of calls that do not need each other, in order; a GPU may run a few at once."""
    if is_eager() and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return graph.branches(calls)
    return (call() for call in calls)


def as_number(value: Tensor) -> int | Tensor:
    """An integer tensor as a number, unless the host would have to wait for the device."""
    may_wait = not torch.compiler.is_compiling() and _current.execution.host_reads
    return value if value.is_cuda and not may_wait else int(value)
