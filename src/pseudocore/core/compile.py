"""How a step is run: eagerly on a CPU, as one captured CUDA graph on a GPU. The only file that knows.

A step launches some hundreds of small kernels, and on a fast GPU launching them takes longer than running them. A captured graph
launches them all at once. Randomness stays a function of (seed, step): each stream a step draws from becomes a generator
registered with the graph, re-seeded from the stream before every replay, so captured and eager runs make the same draws.

A step that cannot be captured (it reads a value back to the host, or branches on one) is run eagerly, and `Stepper.note` says why.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Device, Rng
from pseudocore.core.tree import clone, flatten

__all__ = ["Compile", "Step", "Stepper"]

Compile = Literal["auto", "off"]
Step = Callable[[Problem, Any, Rng], tuple[Any, Any]]

WARM_UP = 3
"""Eager steps before capture, so that libraries have made their handles and workspaces; they count as real steps."""


class Stepper:
    """Runs `step`, as a graph where that is possible.

    A captured step keeps the state in buffers of its own: a state it returned is overwritten by the next call, and whoever
    wants to keep one clones it.
    """

    def __init__(self, step: Step, problem: Problem, compile: Compile = "auto") -> None:
        self._step = step
        self._problem = problem
        self._graph: _Graph | None = None
        self._warm_up = WARM_UP if compile == "auto" and problem.device.type == "cuda" else 0
        self.note = ""

    def __call__(self, state: Any, rng: Rng) -> tuple[Any, Any]:
        if self._graph is not None:
            return self._graph.replay(state, rng)
        if self._warm_up == 0:
            return self._step(self._problem, state, rng)
        self._warm_up -= 1
        tape = _Tape(len(rng.path))
        result: tuple[Any, Any] = _on_side_stream(lambda: self._step(self._problem, state, _TapedRng(rng.seed, rng.path, tape)))
        if self._warm_up == 0:
            try:
                self._graph = _capture(self._step, self._problem, result[0], rng, tape)
            except RuntimeError as error:
                torch.cuda.synchronize()
                self.note = f"running eagerly, as this step cannot be captured: {str(error).splitlines()[0]}"
        return result


class _Tape:
    """Every stream a step draws from, in order, and the device generator that stands for it.

    One generator a draw, not one a stream: drawing twice from one stream gives the same numbers twice, as it does eagerly.
    """

    def __init__(self, prefix: int) -> None:
        self.prefix = prefix
        """How much of a path names the step itself; the rest names the stream within the step."""
        self.draws: list[tuple[tuple[str | int, ...], torch.Generator]] = []
        self.position: int | None = None
        """Next draw while capturing; None while recording."""

    def generator(self, rng: Rng, device: Device) -> torch.Generator:
        path = rng.path[self.prefix :]
        if torch.device(device).type != "cuda":
            if self.position is not None:
                raise RuntimeError(f"the stream {path} is drawn on the host")
            return rng.generator(device)
        if self.position is None:
            self.draws.append((path, rng.generator(device)))
            return self.draws[-1][1]
        recorded, generator = self.draws[self.position]
        if recorded != path:
            raise RuntimeError(f"the step drew from {recorded} in one call and from {path} in the next")
        self.position += 1
        return generator


@dataclass(frozen=True)
class _TapedRng(Rng):
    tape: _Tape | None = None

    def __call__(self, *names: str | int) -> "_TapedRng":
        return _TapedRng(self.seed, (*self.path, *names), self.tape)

    def number(self) -> int:
        raise RuntimeError("a step that chooses by a stream's number on the host cannot be captured")

    def generator(self, device: Device = "cpu") -> torch.Generator:
        assert self.tape is not None
        return self.tape.generator(Rng(self.seed, self.path), device)


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    state: Any
    """The buffers a replay reads its state from and leaves the next one in."""
    info: Any
    tape: _Tape

    def replay(self, state: Any, rng: Rng) -> tuple[Any, Any]:
        if state is not self.state:
            _copy(flatten(state), flatten(self.state))
        for path, generator in self.tape.draws:
            generator.manual_seed(rng(*path).number())
        self.graph.replay()
        return self.state, self.info


def _capture(step: Step, problem: Problem, state: Any, rng: Rng, tape: _Tape) -> _Graph:
    buffers = clone(state)
    graph = torch.cuda.CUDAGraph()
    for _, generator in tape.draws:
        graph.register_generator_state(generator)
    tape.position = 0
    own = {buffer.data_ptr() for buffer in flatten(buffers).values()}
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        after, info = step(problem, buffers, _TapedRng(rng.seed, rng.path, tape))
        # A part of the new state may be a buffer of the old one; copy it aside before that is overwritten.
        safe = {name: value.clone() if value.data_ptr() in own else value for name, value in flatten(after).items()}
        _copy(safe, flatten(buffers))
    return _Graph(graph, buffers, info, tape)


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, buffer in target.items():
        buffer.copy_(source[name])


def _on_side_stream(call: Callable[[], Any]) -> Any:
    """Warm-up belongs on a stream of its own: the libraries' workspaces made there serve the capture."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = call()
    torch.cuda.current_stream().wait_stream(stream)
    return result
