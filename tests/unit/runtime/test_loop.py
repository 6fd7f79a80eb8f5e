"""The loop: bitwise resume from any step, divergence, interruption, checkpoints and logs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pseudocore.cli.main import interrupt_once
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.runtime.loop import Outcome, run

NUM_STEPS = 10


class Momentum(NamedTuple):
    velocity: Tensor
    taken: Tensor


class State(NamedTuple):
    x: Tensor
    momentum: Momentum


class Info(NamedTuple):
    loss: Tensor
    step: int


@dataclass(frozen=True)
class Drift:
    """Noisy descent on the distance to the training mean, which stops, crashes or diverges at a
    step of choice.
    """

    num_steps: int = NUM_STEPS
    interrupt_at: int | None = None
    crash_at: int | None = None
    nan_at: int | None = None
    inf_velocity_at: int | None = None
    began: list[int] = field(default_factory=list, compare=False)

    def init(self, problem: Problem, rng: Rng) -> State:
        return State(rng("x").normal(2, 2), Momentum(torch.zeros(2, 2), torch.tensor(0)))

    def step(self, problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        step = int(state.momentum.taken)
        self.began.append(step)
        if step == self.interrupt_at:
            raise KeyboardInterrupt
        if step == self.crash_at:
            raise RuntimeError("the machine went away")
        gradient = state.x - problem.train_x.mean(0)
        velocity = 0.5 * state.momentum.velocity - 0.1 * gradient + 0.01 * rng("noise").normal(2, 2)
        if step == self.inf_velocity_at:
            velocity = velocity * math.inf
        x = state.x + (math.nan if step == self.nan_at else 1.0) * velocity.nan_to_num(
            posinf=0, neginf=0
        )
        return State(x, Momentum(velocity, state.momentum.taken + 1)), Info(
            gradient.square().sum(), step
        )

    def coreset(self, problem: Problem, state: State) -> Coreset:
        return Coreset(state.x, torch.tensor([0, 1]), torch.ones(2))


class Memory:
    """Checkpoints kept as copies in a list."""

    def __init__(self) -> None:
        self.saved: list[tuple[int, dict[str, Tensor]]] = []

    def load(self) -> tuple[int, dict[str, Tensor]] | None:
        return self.saved[-1] if self.saved else None

    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        self.saved.append((step, {name: value.clone() for name, value in tensors.items()}))

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.saved]


class Log:
    """What a run reported, and when."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[dict[str, float]] = []

    def __call__(self, step: int, values: dict[str, float]) -> None:
        self.steps.append(step)
        self.values.append(values)


def reference(problem: Problem, num_steps: int = NUM_STEPS, seed: int = 0) -> Outcome:
    return run(Drift(num_steps), problem, seed=seed)


def test_runs_every_step_once_and_finishes(problem: Problem) -> None:
    method = Drift()
    outcome = run(method, problem, seed=0)
    assert (outcome.status, outcome.reason, outcome.num_steps) == ("finished", "", NUM_STEPS)
    assert method.began == list(range(NUM_STEPS))
    assert 0 <= outcome.seconds < 60


def test_the_draws_of_a_step_are_those_of_its_stream(problem: Problem) -> None:
    """What the loop does, spelled out: the streams are ("init") and ("step", index)."""
    method, rng = Drift(3), Rng(7)
    state = method.init(problem, rng("init"))
    for step in range(3):
        state, _ = method.step(problem, state, rng("step", step))
    assert torch.equal(reference(problem, num_steps=3, seed=7).coreset.x, state.x)
    assert not torch.equal(reference(problem, num_steps=3, seed=8).coreset.x, state.x)


@pytest.mark.parametrize("stop", range(NUM_STEPS))
def test_interrupted_anywhere_and_resumed_is_never_interrupted(problem: Problem, stop: int) -> None:
    memory = Memory()
    torch.manual_seed(stop)
    first = run(Drift(interrupt_at=stop), problem, seed=0, checkpoints=memory)
    assert (first.status, first.num_steps) == ("interrupted", stop)
    assert first.reason == f"interrupted after step {stop} of {NUM_STEPS}"
    assert memory.steps == ([stop] if stop else [])
    torch.manual_seed(stop + 1)
    method = Drift()
    second = run(method, problem, seed=0, checkpoints=memory)
    assert method.began == list(range(stop, NUM_STEPS))
    assert (second.status, second.num_steps) == ("finished", NUM_STEPS)
    assert torch.equal(second.coreset.x, reference(problem).coreset.x)
    assert torch.equal(first.coreset.x, reference(problem, stop).coreset.x)


@pytest.mark.parametrize("crash", range(NUM_STEPS))
@pytest.mark.parametrize("every", [1, 3, 100])
def test_killed_anywhere_and_resumed_is_never_killed(
    problem: Problem, crash: int, every: int
) -> None:
    memory, method = Memory(), Drift()
    with pytest.raises(RuntimeError, match="went away"):
        run(Drift(crash_at=crash), problem, seed=0, checkpoints=memory, checkpoint_every=every)
    assert memory.steps == list(range(every, crash + 1, every))
    outcome = run(method, problem, seed=0, checkpoints=memory, checkpoint_every=every)
    assert method.began[0] == crash - crash % every
    assert torch.equal(outcome.coreset.x, reference(problem).coreset.x)


def test_killed_again_and_again(problem: Problem) -> None:
    memory = Memory()
    for stop in (2, 3, 7):
        run(Drift(interrupt_at=stop), problem, seed=0, checkpoints=memory)
    outcome = run(Drift(), problem, seed=0, checkpoints=memory)
    assert memory.steps == [2, 3, 7, NUM_STEPS]
    assert torch.equal(outcome.coreset.x, reference(problem).coreset.x)


def test_a_finished_run_is_not_run_again(problem: Problem) -> None:
    memory, again = Memory(), Drift()
    first = run(Drift(), problem, seed=0, checkpoints=memory)
    second = run(again, problem, seed=0, checkpoints=memory)
    assert again.began == []
    assert (second.status, second.num_steps) == ("finished", NUM_STEPS)
    assert torch.equal(first.coreset.x, second.coreset.x)
    assert memory.steps == [NUM_STEPS]


def test_a_finished_run_can_be_made_longer(problem: Problem) -> None:
    memory = Memory()
    run(Drift(4), problem, seed=0, checkpoints=memory)
    assert torch.equal(
        run(Drift(), problem, seed=0, checkpoints=memory).coreset.x, reference(problem).coreset.x
    )


def test_checkpoints_fall_due_by_steps_or_by_time(problem: Problem) -> None:
    by_steps, by_time = Memory(), Memory()
    run(Drift(), problem, seed=0, checkpoints=by_steps, checkpoint_every=4)
    run(Drift(), problem, seed=0, checkpoints=by_time, checkpoint_seconds=-1.0)
    assert by_steps.steps == [4, 8, 10]
    assert by_time.steps == list(range(1, NUM_STEPS + 1))


def test_the_first_checkpoint_of_a_call_is_due_after_five_seconds(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Drift):
        def step(self, problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
            elapsed[0] += 2.0
            return super().step(problem, state, rng)

    elapsed = [0.0]
    monkeypatch.setattr("pseudocore.runtime.loop.time.monotonic", lambda: elapsed[0])
    memory = Memory()
    run(Slow(20), problem, seed=0, checkpoints=memory, checkpoint_seconds=9.0)
    assert memory.steps == [3, 8, 13, 18, 20]
    again = Memory()
    again.saved = memory.saved[:1]
    run(Slow(20), problem, seed=0, checkpoints=again, checkpoint_seconds=9.0)
    assert again.steps == [3, 6, 11, 16, 20]


def test_stops_while_a_stopped_run_is_saved_are_ignored(problem: Problem) -> None:
    """Ctrl-C four times in a row, each after the grace of the one before, is a saved run."""
    handle, caught = interrupt_once(), []

    class Slow(Memory):
        def save(self, step: int, tensors: Mapping[str, Tensor]) -> None:
            for _ in range(3):
                monotonic[0] += 60.0
                handle()  # raises unless it is shielded
                caught.append(step)
            super().save(step, tensors)

    memory, monotonic = Slow(), [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pseudocore.cli.main.time.monotonic", lambda: monotonic[0])
        outcome = run(Drift(interrupt_at=4), problem, seed=0, checkpoints=memory)
        assert (outcome.status, memory.steps, caught) == ("interrupted", [4], [4, 4, 4])
        monotonic[0] += 60.0
        with pytest.raises(KeyboardInterrupt):  # afterwards a stop is one again
            handle()


def test_an_interrupt_without_checkpoints_still_returns_the_work_done(problem: Problem) -> None:
    outcome = run(Drift(interrupt_at=6), problem, seed=0)
    assert (outcome.status, outcome.num_steps) == ("interrupted", 6)
    assert torch.equal(outcome.coreset.x, reference(problem, 6).coreset.x)


def test_divergence_keeps_the_last_good_state_and_says_why(problem: Problem) -> None:
    memory, log = Memory(), Log()
    outcome = run(Drift(nan_at=6), problem, seed=0, checkpoints=memory, log_every=1, on_log=log)
    assert (outcome.status, outcome.num_steps) == ("diverged", 6)
    assert outcome.reason == "x became NaN or infinite by step 7; kept step 6"
    assert torch.equal(outcome.coreset.x, reference(problem, 6).coreset.x)
    assert memory.steps == [6]
    assert torch.equal(memory.saved[0][1]["x"], outcome.coreset.x)
    assert log.steps == [1, 2, 3, 4, 5, 6]


def test_infinity_in_a_nested_part_is_divergence_too(problem: Problem) -> None:
    outcome = run(Drift(inf_velocity_at=2), problem, seed=0)
    assert (outcome.status, outcome.num_steps) == ("diverged", 2)
    assert outcome.reason == "momentum.velocity became NaN or infinite by step 3; kept step 2"


@pytest.mark.parametrize(
    ("check_every", "kept", "found"), [(1, 6, 7), (4, 4, 8), (5, 5, 10), (100, 0, 10)]
)
def test_divergence_is_found_at_the_next_search(
    problem: Problem, check_every: int, kept: int, found: int
) -> None:
    outcome = run(Drift(nan_at=6), problem, seed=0, check_every=check_every)
    assert (outcome.status, outcome.num_steps) == ("diverged", kept)
    assert outcome.reason == f"x became NaN or infinite by step {found}; kept step {kept}"
    assert torch.equal(outcome.coreset.x, reference(problem, kept).coreset.x)


def test_a_checkpoint_is_searched_before_it_is_saved(problem: Problem) -> None:
    memory = Memory()
    outcome = run(
        Drift(nan_at=4), problem, seed=0, checkpoints=memory, checkpoint_every=3, check_every=100
    )
    assert (outcome.status, outcome.num_steps, memory.steps) == ("diverged", 3, [3])
    assert all(value.isfinite().all() for _, tensors in memory.saved for value in tensors.values())


@pytest.mark.parametrize(
    ("log_every", "steps"), [(1, list(range(1, 11))), (4, [4, 8, 10]), (5, [5, 10]), (100, [10])]
)
def test_logs_come_every_so_often_and_at_the_end(
    problem: Problem, log_every: int, steps: list[int]
) -> None:
    log = Log()
    run(Drift(), problem, seed=0, log_every=log_every, on_log=log)
    assert log.steps == steps
    assert [values["step"] for values in log.values] == [step - 1 for step in steps]
    assert all(type(value) is float for values in log.values for value in values.values())
    assert all(values["loss"] > 0 for values in log.values)


def test_logs_of_a_resumed_run_continue(problem: Problem) -> None:
    memory, log = Memory(), Log()
    run(Drift(interrupt_at=6), problem, seed=0, checkpoints=memory)
    run(Drift(), problem, seed=0, checkpoints=memory, log_every=4, on_log=log)
    assert log.steps == [8, 10]


def test_the_global_generator_is_left_alone(problem: Problem) -> None:
    before = torch.get_rng_state()
    run(Drift(), problem, seed=0, checkpoints=Memory())
    assert torch.equal(torch.get_rng_state(), before)


def test_without_checkpoints_none_falls_due(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search of the state waits for the device: one a step would cost more than the step."""
    searches: list[object] = []
    monkeypatch.setattr("pseudocore.runtime.loop._not_finite", searches.append)
    run(Drift(), problem, seed=0, checkpoint_every=1, checkpoint_seconds=0.0, check_every=4)
    assert len(searches) == 3  # after steps 4 and 8 and the last
