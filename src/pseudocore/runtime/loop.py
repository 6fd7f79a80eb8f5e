"""The loop behind every iterative method and chain: steps, checkpoints, divergence, interruption.

A state is a (nested) NamedTuple of tensors, so saving any method is saving a flat dict. A random
stream is a function of (seed, step), so resuming needs nothing else. The loop writes no files: it
hands states to a `Checkpoints` and numbers to `on_log`.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.tree import clone, flatten, unflatten
from pseudocore.core.types import Coreset, Diagnosed, Iterative
from pseudocore.runtime import Compile
from pseudocore.runtime.bounds import Bounds
from pseudocore.runtime.draws import Step
from pseudocore.runtime.steps import StepRunner
from pseudocore.runtime.stopping import shielded

FIRST_CHECKPOINT = 5.0
"""Seconds after which the first checkpoint of a call is due, if not earlier."""


@runtime_checkable
class RepeatedPasses(Protocol):
    """A method whose step passes through a network many times: too much to be compiled whole."""

    repeats_passes: ClassVar[bool]


class Checkpoints(Protocol):
    """Where a run's state is kept between steps; saving is whole or not at all."""

    def load(self) -> tuple[int, dict[str, Tensor]] | None: ...
    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None: ...


class Ending(NamedTuple):
    """Where the loop stopped, and why."""

    state: Any
    """The last state known to be finite and within bounds."""
    status: str
    """finished, interrupted or diverged."""
    reason: str
    """Why it stopped; empty when finished."""
    num_steps: int
    """Steps that led to the state."""
    seconds: float
    """Wall time of this call."""
    note: str = ""
    """How the steps were run, where that differs from what was asked."""


class Outcome(NamedTuple):
    """The ending of a reduction: an `Ending` with the coreset in place of the state."""

    coreset: Coreset
    status: str
    reason: str
    num_steps: int
    seconds: float
    note: str = ""


def run(method: Iterative, problem: Problem, *, seed: int, **options: Any) -> Outcome:
    """Run a method to its last step, from its checkpoint when there is one; `options` are those of
    `drive`.
    """
    rng = Rng(seed)
    options.setdefault("repeats_passes", isinstance(method, RepeatedPasses))
    state, bounds = method.init(problem, rng("init")), Bounds(method, problem)
    ending = drive(
        method.step, state, problem, rng, num_steps=method.num_steps, bounds=bounds, **options
    )
    coreset = method.coreset(problem, ending.state)
    if ending.status == "finished" and isinstance(method, Diagnosed):
        coreset = coreset.with_provenance(**method.diagnostics(problem, ending.state))
    return Outcome(coreset, *ending[1:])


def drive(
    step: Step,
    state: Any,
    problem: Problem,
    rng: Rng,
    *,
    num_steps: int,
    checkpoints: Checkpoints | None = None,
    checkpoint_every: int = 1000,
    checkpoint_seconds: float = 30.0,
    log_every: int = 10,
    check_every: int | None = None,
    compile: Compile = "auto",
    repeats_passes: bool = False,
    bounds: Callable[[Any], str | None] = lambda state: None,
    on_log: Callable[[int, dict[str, float]], None] = lambda step, values: None,
    on_start: Callable[[int], None] = lambda step: None,
    on_step: Callable[[int, Any, Any], None] = lambda step, state, info: None,
) -> Ending:
    """Take `num_steps` steps from `state`, or from the checkpoint when there is one.

    Args:
        step: A step; number i draws from `rng("step", i)`.
        state: The state before the first step.
        problem: What the steps work on.
        rng: The stream of the run.
        num_steps: The number of steps, those behind the checkpoint included.
        checkpoints: Where states are saved. Defaults to nowhere.
        checkpoint_every: Steps between checkpoints.
        checkpoint_seconds: Seconds after which a checkpoint is due all the same; the first one of a
            call is due after 5.
        log_every: Steps between two calls of `on_log`.
        check_every: Steps between two searches of the state for NaN, inf and what is out of bounds,
            which wait for the device. Defaults to 1 on a CPU and to 50 on a GPU.
        compile: As for `StepRunner`.
        repeats_passes: As for `StepRunner`.
        bounds: Says what of a finite state is out of bounds, which is divergence. Defaults to
            nothing.
        on_log: Called with the number of steps taken and the numbers of the info.
        on_start: Called with the number of steps already taken.
        on_step: Called with every state and info, before a checkpoint that counts the step. A
            captured step reuses their buffers: clone what is kept.
    """
    check_every = check_every or (1 if problem.device.type == "cpu" else 50)
    began, start = time.monotonic(), 0
    if checkpoints is not None and (saved := checkpoints.load()) is not None:
        start = saved[0]
        state = unflatten(state, saved[1])
    on_start(start)
    runner = StepRunner(step, problem, compile, num_steps, repeats_passes=repeats_passes)
    good, num_good = state, start  # the last state known to be good
    last_save, last_saved_step = time.monotonic(), start
    wait = min(FIRST_CHECKPOINT, checkpoint_seconds)

    def save() -> None:
        nonlocal last_save, last_saved_step, wait
        if checkpoints is not None and num_good > last_saved_step:
            checkpoints.save(num_good, flatten(good))
            last_save, last_saved_step, wait = time.monotonic(), num_good, checkpoint_seconds

    def ending(status: str, reason: str) -> Ending:
        with shielded():
            save()
        return Ending(good, status, reason, num_good, time.monotonic() - began, runner.note)

    try:
        for number in range(start, num_steps):
            state, info = runner(state, rng("step", number))
            done = number + 1
            final = done == num_steps
            overdue = time.monotonic() - last_save > wait
            due = checkpoints is not None and (done % checkpoint_every == 0 or overdue)
            checking = done % check_every == 0 or final or due
            if checking and (found := _not_finite(state) or bounds(state)) is not None:
                return ending("diverged", f"{found} by step {done}; kept step {num_good}")
            on_step(done, state, info)
            if done % log_every == 0 or final:
                on_log(done, {name: _number(value) for name, value in info._asdict().items()})
            if checking:  # after its log: interrupted in between, a step is taken and logged again
                good, num_good = clone(state), done  # a captured step reuses its buffers
            if due:
                save()
    except KeyboardInterrupt:
        return ending("interrupted", f"interrupted after step {num_good} of {num_steps}")
    return ending("finished", "")


def _number(value: Any) -> float:
    """A number as it is, the mean of several (one a chain)."""
    return float(value.double().mean()) if isinstance(value, Tensor) else float(value)


def _not_finite(state: Any) -> str | None:
    """The first part that holds NaN or inf, in words; one wait for the device however many parts
    there are.
    """
    floats = {name: value for name, value in flatten(state).items() if value.is_floating_point()}
    if not floats:
        return None
    finite = torch.stack([value.isfinite().all() for value in floats.values()]).tolist()
    names = (name for name, ok in zip(floats, finite, strict=True) if not ok)
    return next((f"{name} became NaN or infinite" for name in names), None)
