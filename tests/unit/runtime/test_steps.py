"""A captured or compiled step must be the eager step: same draws, same states, same fallbacks.
Capture itself needs a GPU.
"""

import gc
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.func import grad

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.tree import clone
from pseudocore.data import augment
from pseudocore.runtime import graph
from pseudocore.runtime.draws import LazyDraws, ReplayError, record
from pseudocore.runtime.execution import (
    Execution,
    as_number,
    executing,
    is_eager,
    kernels_allowed,
    parallel_passes,
    plan,
    repeated,
    uses_kernels,
)
from pseudocore.runtime.steps import NUM_WARM_UP, StepRunner

torchs_own_warnings = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:TensorFloat32:UserWarning"
)


class State(NamedTuple):
    x: Tensor
    previous: Tensor


class Info(NamedTuple):
    drawn: Tensor


def step(problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
    """Draws twice from one stream, once from another, and hands an old buffer on: the three ways a
    capture could go wrong.
    """
    first = rng("noise").normal(4, device=problem.device)
    again = rng("noise").normal(4, device=problem.device)
    other = rng("other", 1).uniform(4, device=problem.device)
    return State(state.x + first - 0.5 * again + other, state.x), Info(first - again)


def host_step(problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
    chance = rng("host").uniform(4).to(problem.device)
    return State(state.x + chance, state.x), Info(chance.sum())


def replacing_step(problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
    """Its state comes of `_replace`, which torch 2.11 gives back as an empty tuple."""
    noise = rng("noise").normal(4, device=problem.device)
    return state._replace(x=state.x + noise), Info(state.x.sum())


def step_with_regions(problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
    noise = rng("noise").normal(4)
    slope = repeated(grad(lambda x: (x * x * noise).sum()))(state.x)
    inside = grad(lambda x: repeated(torch.sin)(x).sum())(state.x)
    return State(state.x - 0.1 * slope + inside, state.x), Info(slope)


def zeros(device: Any = "cpu") -> State:
    return State(torch.zeros(4, device=device), torch.zeros(4, device=device))


def run(
    problem: Problem, compile: Any, function: Any = step, num: int = 12
) -> tuple[list[State], StepRunner]:
    state, runner, states = zeros(problem.device), StepRunner(function, problem, compile), []
    for number in range(num):
        state, info = runner(state, Rng(3)("step", number))
        if function is step:
            assert not info.drawn.any(), "one stream drawn twice gives the same numbers twice"
        states.append(clone(state))
    return states, runner


def assert_close(ones: list[State], others: list[State], tolerance: float = 0.0) -> None:
    for one, other in zip(ones, others, strict=True):
        torch.testing.assert_close(one.x, other.x, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(one.previous, other.previous, rtol=tolerance, atol=tolerance)


@pytest.fixture
def on_gpu(problem: Problem) -> Problem:
    return replace(problem, device=torch.device("cuda"))


def claimed(**model: Any) -> Any:
    """As much of a problem on a GPU as a runner asks for."""
    return SimpleNamespace(device=torch.device("cuda"), model=SimpleNamespace(**model))


# --- what is planned


@pytest.mark.parametrize(
    ("compile", "num_steps", "repeats", "on_cpu", "on_gpu"),
    [
        ("off", 9999, True, ("nothing", False), ("nothing", False)),
        ("auto", 4999, True, ("nothing", False), ("nothing", True)),
        ("auto", 5000, False, ("nothing", False), ("step", True)),
        ("auto", 5000, True, ("nothing", False), ("all but passes", True)),
        ("on", 0, True, ("regions", False), ("all but passes", True)),
        ("on", 0, False, ("step", False), ("step", True)),
    ],
)
def test_what_is_compiled_and_captured(
    compile: Any, num_steps: int, repeats: bool, on_cpu: Any, on_gpu: Any, problem: Problem
) -> None:
    """On a GPU whose network has custom kernels, and on a CPU."""
    for where, expected in ((problem, on_cpu), (claimed(has_kernels=True), on_gpu)):
        execution = plan(compile, where, num_steps, repeats_passes=repeats)
        assert (execution.compiled, execution.captured) == expected
        assert execution.custom_kernels is (compile != "off")
        assert execution.host_reads is (compile == "off")


@pytest.mark.parametrize("compile", ["auto", "off"])
def test_a_step_sees_the_execution_planned_for_it(compile: Any) -> None:
    problem, seen = claimed(has_kernels=True), []

    def step(problem: Problem, state: Any, rng: Rng) -> tuple[Any, Any]:
        seen.append((uses_kernels(problem), kernels_allowed(), parallel_passes(problem)))
        return state, ()

    runner = StepRunner(step, problem, compile)
    runner._num_warm_up = 0
    runner((torch.zeros(1),), Rng(0))
    assert seen == [(True, True, graph.MAX_BRANCHES) if compile == "auto" else (False, False, 1)]
    assert uses_kernels(problem)  # outside of it
    assert not uses_kernels(claimed(has_kernels=False))


@torchs_own_warnings
def test_what_a_step_asks_about_itself_can_be_compiled() -> None:
    """A single question that torch's compiler cannot follow, on a GPU alone perhaps, leaves every
    such step uncompiled.
    """
    problem = claimed(has_kernels=True)

    def asking(x: Tensor) -> Tensor:
        return (
            repeated(lambda x: x + 1)(x)
            + (10 if is_eager() or kernels_allowed() else 20)
            + (100 if uses_kernels(problem) else 200)
        )

    assert torch.compile(asking, fullgraph=True, backend="eager")(torch.zeros(1)) == 121
    assert asking(torch.zeros(1)) == 111


def test_the_host_reads_a_number_where_it_need_not_wait() -> None:
    on_device: Any = SimpleNamespace(is_cuda=True, __int__=None)
    assert as_number(torch.tensor(3)) == 3
    assert as_number(on_device) is on_device
    with executing(Execution(host_reads=True)):
        assert as_number(torch.tensor(3)) == 3


# --- eagerly


def test_a_cpu_runs_the_step_itself(problem: Problem) -> None:
    states, runner = run(problem, "auto")
    expected = [zeros()]
    for number in range(len(states)):
        expected.append(step(problem, expected[-1], Rng(3)("step", number))[0])
    assert_close(states, expected[1:])
    assert runner.note == ""


def test_other_errors_of_a_step_are_not_taken_for_the_compilers(problem: Problem) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("the step's own")

    for compile in ("auto", "on"):
        with pytest.raises(RuntimeError, match="the step's own"):
            StepRunner(broken, problem, compile)(zeros(), Rng(0))  # type: ignore[arg-type]


# --- with its draws made before


def test_a_step_can_be_taken_again_with_its_draws_made_before(problem: Problem) -> None:
    """What a compiled step does, and with draws made when they are asked for, a captured one."""
    state, rng = zeros(), Rng(3)("step", 5)
    replayable = record(step, problem, state, Rng(3)("step", 0))
    assert [draw.path for draw in replayable.tape] == [("noise",), ("noise",), ("other", 1)]
    expected, _ = step(problem, state, rng)
    lazy = LazyDraws(replayable.tape, [rng(*draw.path).generator() for draw in replayable.tape])
    for draws in (replayable.draws(rng), lazy):
        assert torch.equal(replayable.step(state, draws)[0].x, expected.x)
    with pytest.raises(ReplayError, match="drew more in one call"):
        replayable.step(state, replayable.draws(rng)[:2])


# --- compiled


def refusal(message: str) -> Any:
    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError(message)

    return refuse


def test_a_step_that_cannot_be_compiled_runs_eagerly_and_says_why(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", refusal("no compiler here\nand a long story"))
    states, runner = run(problem, "on")
    assert runner.note == "not compiled: no compiler here"
    assert_close(states, run(problem, "off")[0])


def test_an_error_that_is_no_compilers_is_raised(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a fault of ours")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(KeyError, match="a fault of ours"):
        run(problem, "on")


@pytest.mark.slow
@torchs_own_warnings
@pytest.mark.parametrize("function", [step, replacing_step])
def test_compiled_equals_eager(problem: Problem, function: Any) -> None:
    compiled, runner = run(problem, "on", function)
    assert runner.note == ""
    assert_close(compiled, run(problem, "off", function)[0], 1e-6)


@pytest.mark.parametrize(("repeats_passes", "num"), [(False, 1), (True, 2)])
def test_of_a_step_that_repeats_passes_the_regions_are_compiled(
    repeats_passes: bool, num: int, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole, or the gradient: once to try it, once for the step."""
    compiled: list[object] = []
    monkeypatch.setattr(
        torch, "compile", lambda function, **_: (compiled.append(function), function)[1]
    )
    start, rng = State(torch.ones(4), torch.zeros(4)), Rng(3)("step", 0)
    expected = step_with_regions(problem, start, rng)[0]
    assert not compiled, "outside a step nothing is compiled"
    runner = StepRunner(step_with_regions, problem, "on", repeats_passes=repeats_passes)
    assert torch.equal(runner(start, rng)[0].x, expected.x)
    assert len(compiled) == num
    assert runner.note == ""
    step_with_regions(problem, start, rng)
    assert len(compiled) == num, "nor after one"


@pytest.mark.parametrize("repeats_passes", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        "_dynamo.exc.Unsupported",
        "_dynamo.exc.FailOnRecompileLimitHit",
        "_inductor.exc.OperatorIssue",
    ],
)
def test_what_cannot_be_compiled_for_a_later_call_goes_on_eagerly(
    error: str, repeats_passes: bool, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a guard fails and what is compiled anew does not work."""
    import importlib

    calls: list[object] = []
    module, _, name = error.rpartition(".")
    kind = getattr(importlib.import_module(f"torch.{module}"), name)

    def fragile(function: Any, **_: object) -> Any:
        def called(*arguments: Any) -> Any:
            calls.append(function)
            if len(calls) > 2:
                raise kind("cannot be compiled again\nat length")
            return function(*arguments)

        return called

    monkeypatch.setattr(torch, "compile", fragile)
    runner = StepRunner(step_with_regions, problem, "on", repeats_passes=repeats_passes)
    state = expected = State(torch.ones(4), torch.zeros(4))
    for number in range(4):
        state, _ = runner(state, Rng(3)("step", number))
        expected, _ = step_with_regions(problem, expected, Rng(3)("step", number))
        assert torch.equal(state.x, expected.x)
    assert runner.note == "not compiled: cannot be compiled again"
    assert len(calls) == 3


# --- captured


def test_where_capturing_fails_the_run_continues_and_torch_is_as_before(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back: list[object] = []

    def broken_graph(*_: object, **__: object) -> None:
        assert not gc.isenabled()  # an older graph in the garbage would end the capture
        raise RuntimeError("an odd thing")

    generator = SimpleNamespace(
        clone_state=lambda: "its state", graphsafe_set_state=put_back.append
    )
    for name, value in {
        "CUDAGraph": lambda: SimpleNamespace(register_generator_state=lambda _: None),
        "graph": broken_graph,
        "current_stream": lambda: "the stream",
        "set_stream": put_back.append,
        "current_device": lambda: 0,
        "default_generators": (generator,),
        "synchronize": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(graph, "on_side_stream", lambda call: call())
    state, runner = zeros(), StepRunner(step, problem)
    runner._num_warm_up = 2
    for number in range(4):
        state, _ = runner(state, Rng(3)("step", number))
    assert runner.note == "running eagerly, as this step cannot be captured: an odd thing"
    assert put_back == ["the stream", "its state"]
    assert gc.isenabled()
    assert torch.equal(state.x, run(problem, "off", num=4)[0][-1].x)


@pytest.mark.gpu
@torchs_own_warnings
@pytest.mark.parametrize("compile", ["auto", "on"])
def test_captured_equals_eager(on_gpu: Problem, compile: str) -> None:
    captured, runner = run(on_gpu, compile)
    assert runner.note == ""
    assert runner._graph is not None
    # a compiled sum may be added up in another order
    assert_close(captured, run(on_gpu, "off")[0], 1e-6)


@pytest.mark.gpu
@torchs_own_warnings
@pytest.mark.parametrize("siamese", [True, False])
def test_a_step_that_augments_is_compiled(on_gpu: Problem, siamese: bool) -> None:
    view = augment.DSA(siamese=siamese)

    def step(problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        images = state.x.expand(4, 3, 8, 4)
        return State(view(images, rng("view")).mean((0, 1, 2)), state.x), Info(state.x.new_zeros(1))

    (compiled, runner), (eager, _) = (run(on_gpu, how, step) for how in ("on", "off"))
    assert runner.note == ""
    assert_close(compiled, eager, 1e-5)


@pytest.mark.gpu
def test_a_step_that_reads_back_runs_eagerly_and_torch_is_as_before(on_gpu: Problem) -> None:
    def reading(problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        drawn = rng("noise").normal(4, device=problem.device)
        return State(state.x + drawn.sum().item(), state.x), Info(drawn)

    before = torch.cuda.current_stream()
    captured, runner = run(on_gpu, "auto", reading)
    assert "cannot be captured" in runner.note
    assert torch.cuda.current_stream() == before
    assert torch.rand(3, device="cuda").isfinite().all()
    assert_close(captured, run(on_gpu, "off", reading)[0])


@pytest.mark.gpu
def test_a_step_that_draws_on_the_host_runs_eagerly_and_says_why(on_gpu: Problem) -> None:
    captured, runner = run(on_gpu, "auto", host_step, num=NUM_WARM_UP + 4)
    assert "drawn on the host" in runner.note
    assert_close(captured, run(on_gpu, "off", host_step, num=NUM_WARM_UP + 4)[0])
