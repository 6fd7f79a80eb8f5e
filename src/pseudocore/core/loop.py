"""The one loop: steps, checkpoints, divergence, interruption. Every iterative method and sampler runs through it.

A state is a (nested) NamedTuple of tensors, so saving any method is saving a flat dict; a random stream is a function of
(seed, step), so resuming needs nothing else. The loop writes nothing itself: it hands states to a `Checkpoints` and
numbers to `on_log`.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pseudocore.core.compile import Compile, Stepper
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.tree import clone, flatten, unflatten
from pseudocore.core.types import Coreset, Method

__all__ = ["Checkpoints", "Outcome", "run"]


class Checkpoints(Protocol):
    """Where a run's state is kept between steps; saving is whole or not at all."""

    def load(self) -> tuple[int, dict[str, Tensor]] | None: ...
    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None: ...


class Outcome(NamedTuple):
    coreset: Coreset
    status: str
    """finished, interrupted or diverged."""
    reason: str
    """Why it stopped, for a person; empty when finished."""
    num_steps: int
    """Steps behind the coreset."""
    seconds: float
    """Wall time of this call."""
    note: str = ""
    """How the steps were run, where that differs from what was asked."""


def run(
    method: Method,
    problem: Problem,
    *,
    seed: int,
    checkpoints: Checkpoints | None = None,
    checkpoint_every: int = 1000,
    checkpoint_seconds: float = 30.0,
    log_every: int = 10,
    check_every: int | None = None,
    compile: Compile = "auto",
    on_log: Callable[[int, dict[str, float]], None] = lambda step, values: None,
) -> Outcome:
    """Drive `method` to its last step, picking up at the checkpoint when there is one.

    `check_every` is how often the state is searched for NaN and inf; each search waits for the device, so it is every step
    on a CPU and every 50 on a GPU unless told.
    """
    rng = Rng(seed)
    check_every = check_every or (1 if problem.device.type == "cpu" else 50)
    began = time.monotonic()
    state, start = method.init(problem, rng("init")), 0
    if checkpoints is not None and (saved := checkpoints.load()) is not None:
        start = saved[0]
        state = unflatten(state, saved[1])
    step_once = Stepper(method.step, problem, compile)
    good, num_good = state, start  # the last state known to be finite
    last_save = time.monotonic()
    last_saved_step = start

    def keep() -> None:
        nonlocal last_save, last_saved_step
        if checkpoints is not None and num_good > last_saved_step:
            checkpoints.save(num_good, flatten(good))
            last_save, last_saved_step = time.monotonic(), num_good

    def outcome(status: str, reason: str) -> Outcome:
        return Outcome(method.coreset(problem, good), status, reason, num_good, time.monotonic() - began, step_once.note)

    try:
        for step in range(start, method.num_steps):
            state, info = step_once(state, rng("step", step))
            done = step + 1
            final = done == method.num_steps
            due = done % checkpoint_every == 0 or time.monotonic() - last_save > checkpoint_seconds
            logging = done % log_every == 0 or final
            if done % check_every == 0 or final or due:
                if (culprit := _not_finite(state)) is not None:
                    keep()
                    return outcome("diverged", f"{culprit} became NaN or infinite by step {done}; kept step {num_good}")
                good, num_good = clone(state), done  # a captured step reuses its buffers
            if logging:
                on_log(done, {name: float(value) for name, value in info._asdict().items()})
            if due:
                keep()
    except KeyboardInterrupt:
        keep()
        return outcome("interrupted", f"interrupted after step {num_good} of {method.num_steps}")
    keep()
    return outcome("finished", "")


def _not_finite(state: Any) -> str | None:
    """Name of the first part that holds NaN or inf; one wait for the device however many parts there are."""
    floats = {name: value for name, value in flatten(state).items() if value.is_floating_point()}
    if not floats:
        return None
    finite = torch.stack([value.isfinite().all() for value in floats.values()]).tolist()
    return next((name for name, ok in zip(floats, finite, strict=True) if not ok), None)
