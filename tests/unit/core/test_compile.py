"""A captured step must be the eager step: same draws, same states, same fallbacks. Capture itself
needs a GPU.
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
from pseudocore.runtime import steps as compile_module
from pseudocore.runtime.steps import (
    WARM_UP,
    StepRunner,
    _Drawing,
    _no_collection,
    _record,
    compile_region,
    host_sync_allowed,
    is_eager,
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
    return state._replace(x=state.x + rng("noise").normal(4, device=problem.device)), Info(
        state.x.sum()
    )


def run(
    problem: Problem, compile: str, function=step, num: int = 12
) -> tuple[list[State], StepRunner]:
    state = State(torch.zeros(4, device=problem.device), torch.zeros(4, device=problem.device))
    stepper, states = StepRunner(function, problem, compile), []  # type: ignore[arg-type]
    for number in range(num):
        state, info = stepper(state, Rng(3)("step", number))
        if function is step:
            assert not info.drawn.any(), "one stream drawn twice gives the same numbers twice"
        states.append(clone(state))
    return states, stepper


def test_a_cpu_runs_the_step_itself(problem: Problem) -> None:
    states, stepper = run(problem, "auto")
    expected = State(torch.zeros(4), torch.zeros(4))
    for number, state in enumerate(states):
        expected, _ = step(problem, expected, Rng(3)("step", number))
        assert torch.equal(state.x, expected.x)
        assert torch.equal(state.previous, expected.previous)
    assert stepper.note == ""


def test_a_step_can_be_taken_again_with_its_draws_made_before(problem: Problem) -> None:
    """What a compiled or captured step is: the same function of draws that were made first."""
    state, rng = State(torch.zeros(4), torch.zeros(4)), Rng(3)("step", 5)
    replayable = _record(step, problem, state, Rng(3)("step", 0))
    assert [draw.path for draw in replayable.tape] == [("noise",), ("noise",), ("other", 1)]
    taken, _ = replayable.step(state, replayable.draws(rng))
    expected, _ = step(problem, state, rng)
    assert torch.equal(taken.x, expected.x)
    with pytest.raises(RuntimeError, match="drew more in one call"):
        replayable.step(state, replayable.draws(rng)[:2])


def test_a_step_that_cannot_be_compiled_runs_eagerly_and_says_why(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise NotImplementedError("no compiler here\nand a long story")

    monkeypatch.setattr(torch, "compile", refuse)
    states, stepper = run(problem, "on")
    eager, _ = run(problem, "off")
    assert stepper.note == "not compiled: no compiler here"
    assert all(torch.equal(one.x, other.x) for one, other in zip(states, eager, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("function", [step, replacing_step])
def test_compiled_equals_eager(problem: Problem, function: Any) -> None:
    compiled, stepper = run(problem, "on", function)
    eager, _ = run(problem, "off", function)
    assert stepper.note == ""
    for one, other in zip(compiled, eager, strict=True):
        torch.testing.assert_close(one.x, other.x, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning"
)  # of torch's own compiler
@pytest.mark.parametrize("compile", ["auto", "on"])
def test_captured_equals_eager(problem: Problem, compile: str) -> None:
    problem = replace(problem, device=torch.device("cuda"))
    captured, stepper = run(problem, compile)
    eager, _ = run(problem, "off")
    assert stepper.note == ""
    assert stepper._graph is not None
    for one, other in zip(captured, eager, strict=True):
        torch.testing.assert_close(
            one.x, other.x, rtol=1e-6, atol=1e-6
        )  # a compiled sum may be added up in another order
        torch.testing.assert_close(one.previous, other.previous, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_what_a_step_asks_about_itself_can_be_compiled() -> None:
    """A single question that torch's compiler cannot follow, on a GPU alone perhaps, leaves every
    such step uncompiled.
    """

    problem = on_a_gpu_with_kernels()

    def asking(x: Tensor) -> Tensor:
        return (
            compile_region(lambda x: x + 1)(x)
            + (10 if is_eager() or host_sync_allowed() else 20)
            + (100 if problem.has_kernels else 200)
        )

    assert torch.compile(asking, fullgraph=True, backend="eager")(torch.zeros(1)) == 121
    assert asking(torch.zeros(1)) == 111


@pytest.mark.gpu
@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:TensorFloat32:UserWarning"
)
@pytest.mark.parametrize("siamese", [True, False])
def test_a_step_that_augments_is_compiled(problem: Problem, siamese: bool) -> None:
    view = augment.DSA(siamese=siamese)

    def step(problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        images = state.x.expand(4, 3, 8, 4)
        return State(view(images, rng("view")).mean((0, 1, 2)), state.x), Info(state.x.new_zeros(1))

    problem = replace(problem, device=torch.device("cuda"))
    (compiled, stepper), (eager, _) = (run(problem, how, step) for how in ("on", "off"))
    assert stepper.note == ""
    for one, other in zip(compiled, eager, strict=True):
        torch.testing.assert_close(one.x, other.x, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_a_step_that_reads_back_runs_eagerly_and_torch_is_as_before(problem: Problem) -> None:
    def reading(problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        drawn = rng("noise").normal(4, device=problem.device)
        return State(state.x + drawn.sum().item(), state.x), Info(drawn)

    problem, before = replace(problem, device=torch.device("cuda")), torch.cuda.current_stream()
    captured, stepper = run(problem, "auto", reading)
    eager, _ = run(problem, "off", reading)
    assert "cannot be captured" in stepper.note
    assert torch.cuda.current_stream() == before
    assert torch.rand(3, device="cuda").isfinite().all()
    assert all(torch.equal(one.x, other.x) for one, other in zip(captured, eager, strict=True))


@pytest.mark.gpu
def test_a_step_that_draws_on_the_host_runs_eagerly_and_says_why(problem: Problem) -> None:
    problem = replace(problem, device=torch.device("cuda"))
    captured, stepper = run(problem, "auto", host_step, num=WARM_UP + 4)
    eager, _ = run(problem, "off", host_step, num=WARM_UP + 4)
    assert "drawn on the host" in stepper.note
    assert all(torch.equal(one.x, other.x) for one, other in zip(captured, eager, strict=True))


@pytest.mark.parametrize("was_on", [True, False])
def test_no_garbage_is_collected_while_capturing(was_on: bool) -> None:
    """An older graph in it would break off the capture when it is destroyed."""
    (gc.enable if was_on else gc.disable)()
    try:
        with _no_collection():
            assert not gc.isenabled()
        assert gc.isenabled() == was_on
        with pytest.raises(RuntimeError), _no_collection():
            raise RuntimeError
        assert gc.isenabled() == was_on
    finally:
        gc.enable()


def test_whatever_goes_wrong_in_capturing_the_run_goes_on(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise TypeError("an odd thing")

    monkeypatch.setattr(compile_module, "_capture", refuse)
    monkeypatch.setattr(compile_module, "_on_side_stream", lambda call: call())
    put_back: list[object] = []
    generator = SimpleNamespace(
        clone_state=lambda: "its state", graphsafe_set_state=put_back.append
    )
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "the stream")
    monkeypatch.setattr(torch.cuda, "set_stream", put_back.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    state, stepper = State(torch.zeros(4), torch.zeros(4)), StepRunner(step, problem)
    stepper._warm_up = 2
    for number in range(4):
        state, _ = stepper(state, Rng(3)("step", number))
    assert stepper.note == "running eagerly, as this step cannot be captured: an odd thing"
    assert put_back == ["the stream", "its state"]
    assert torch.equal(state.x, run(problem, "off", num=4)[0][-1].x)


def test_draws_can_be_made_when_they_are_asked_for(problem: Problem) -> None:
    """What a captured step does that is not compiled: it holds no more draws at once than an eager
    one.
    """
    state, rng = State(torch.zeros(4), torch.zeros(4)), Rng(3)("step", 5)
    replayable = _record(step, problem, state, Rng(3)("step", 0))
    drawing = _Drawing(replayable.tape, [rng(*draw.path).generator() for draw in replayable.tape])
    assert torch.equal(replayable.step(state, drawing)[0].x, step(problem, state, rng)[0].x)


def step_of_pieces(problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
    noise = rng("noise").normal(4)
    slope = compile_region(grad(lambda x: (x * x * noise).sum()))(state.x)
    inside = grad(lambda x: compile_region(torch.sin)(x).sum())(state.x)
    return State(state.x - 0.1 * slope + inside, state.x), Info(slope)


def test_pieces_are_compiled_where_a_step_is_compiled_in_pieces(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []

    def note(function: object, **options: object) -> object:
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", note)
    start, rng = State(torch.ones(4), torch.zeros(4)), Rng(3)("step", 0)
    expected = step_of_pieces(problem, start, rng)[0]
    assert not compiled, "outside a step nothing is compiled"
    for compile_regions, num in (
        (False, 1),
        (True, 2),
    ):  # the whole, or the gradient: once to try it, once for the step
        compiled.clear()
        stepper = StepRunner(step_of_pieces, problem, "on", compile_regions=compile_regions)
        assert torch.equal(stepper(start, rng)[0].x, expected.x)
        assert len(compiled) == num
        assert stepper.note == ""
    compiled.clear()
    step_of_pieces(problem, start, rng)
    assert not compiled, "nor after one"


@pytest.mark.parametrize("compile_regions", [False, True])
@pytest.mark.parametrize(
    "kind",
    [
        "_dynamo.exc.InternalTorchDynamoError",
        "_dynamo.exc.FailOnRecompileLimitHit",
        "_inductor.exc.Odd",
    ],
)
def test_what_cannot_be_compiled_for_a_later_call_goes_on_eagerly(
    kind: str, compile_regions: bool, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a guard fails and what is compiled anew does not work."""
    calls: list[object] = []
    module, _, name = kind.rpartition(".")
    error = type(
        name, (Exception,), {"__module__": f"torch.{module}"}
    )  # not all of torch's own are RuntimeErrors

    def fragile(function: Any, **_: object) -> Any:
        def called(*arguments: Any) -> Any:
            calls.append(function)
            if len(calls) > 2:
                raise error("cannot be compiled again\nat length")
            return function(*arguments)

        return called

    monkeypatch.setattr(torch, "compile", fragile)
    stepper, state = (
        StepRunner(step_of_pieces, problem, "on", compile_regions=compile_regions),
        State(torch.ones(4), torch.zeros(4)),
    )
    expected = state
    for number in range(4):
        state, _ = stepper(state, Rng(3)("step", number))
        expected, _ = step_of_pieces(problem, expected, Rng(3)("step", number))
        assert torch.equal(state.x, expected.x)
    assert stepper.note == "not compiled: cannot be compiled again"
    assert len(calls) == 3


def test_other_errors_of_a_step_are_not_taken_for_the_compilers(problem: Problem) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("the step's own")

    with pytest.raises(RuntimeError, match="the step's own"):
        StepRunner(broken, problem, "auto")((torch.zeros(1),), Rng(0))


@pytest.mark.parametrize(("how", "allowed"), [("auto", True), ("off", False)])
def test_off_uses_no_kernels_of_our_own_either(how: Any, allowed: bool) -> None:
    problem, seen = on_a_gpu_with_kernels(), []

    def step(problem: Problem, state: Any, rng: Rng) -> tuple[Any, Any]:
        seen.append(problem.has_kernels)
        assert host_sync_allowed() is not allowed  # what is read back cannot be captured
        return state, ()

    stepper = StepRunner(step, problem, how)
    stepper._warm_up = 0
    stepper((torch.zeros(1),), Rng(0))
    assert seen == [allowed]
    assert problem.has_kernels  # outside of it


def on_a_gpu_with_kernels() -> Any:
    """As much of such a problem as a stepper asks for."""

    class Claimed(Problem):
        def __init__(self) -> None:
            pass

        device = torch.device("cuda")
        model: Any = SimpleNamespace(has_kernels=True)

    return Claimed()
