"""A step as a function of its state and its draws.

A captured or compiled step cannot ask for a stream by name. So the first call notes what is drawn
and from which streams, and the same draws are made from the streams of every later step. Eager,
captured and compiled steps draw the same numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Device, Rng
from pseudocore.core.tree import clone

Step = Callable[[Problem, Any, Rng], tuple[Any, Any]]


class ReplayError(RuntimeError):
    """A step whose draws cannot be noted and made again."""


class Draw(NamedTuple):
    path: tuple[str | int, ...]
    """Of the stream, below the one that names the step."""
    make: Callable[..., Tensor]
    arguments: tuple[Any, ...]
    device: Device
    options: Mapping[str, Any]

    def generator(self, rng: Rng) -> torch.Generator:
        return rng(*self.path).generator(self.device)

    def made(self, generator: torch.Generator) -> Tensor:
        return self.make(*self.arguments, generator=generator, device=self.device, **self.options)


@dataclass(frozen=True)
class LazyDraws:
    """Draws made when they are asked for, so that no two need exist at once."""

    tape: list[Draw]
    generators: list[torch.Generator]

    def __len__(self) -> int:
        return len(self.tape)

    def __getitem__(self, place: int) -> Tensor:
        return self.tape[place].made(self.generators[place])


Drawn = list[Tensor] | LazyDraws


class Replayable(NamedTuple):
    """A step whose draws are handed in."""

    step: Callable[[Any, Drawn], tuple[Any, Any]]
    tape: list[Draw]

    def draws(self, rng: Rng) -> list[Tensor]:
        return [draw.made(draw.generator(rng)) for draw in self.tape]


def record(step: Step, problem: Problem, state: Any, rng: Rng) -> Replayable:
    """Take a step to note its draws; its result is thrown away."""
    tape: list[Draw] = []
    step(problem, clone(state), _RecordingRng(rng.seed, rng.path, tape, len(rng.path)))
    for draw in tape:
        if torch.device(draw.device).type != problem.device.type:
            raise ReplayError(f"the stream {draw.path} is drawn on the host")

    def replayed(state: Any, drawn: Drawn) -> tuple[Any, Any]:
        after, info = step(problem, state, cast(Rng, _ReplayingRng(drawn)))
        return _rebuilt(after), _rebuilt(info)

    return Replayable(replayed, tape)


@dataclass(frozen=True)
class _RecordingRng(Rng):
    """Notes every draw, in order: drawing twice from one stream gives the same numbers twice, and
    stays two draws.
    """

    tape: list[Draw] = field(default_factory=list)
    prefix: int = 0

    def __call__(self, *names: str | int) -> "_RecordingRng":
        return _RecordingRng(self.seed, (*self.path, *names), self.tape, self.prefix)

    def draw(
        self, make: Callable[..., Tensor], *arguments: Any, device: Device, **options: Any
    ) -> Tensor:
        self.tape.append(Draw(self.path[self.prefix :], make, arguments, device, options))
        return Rng(self.seed, self.path).draw(make, *arguments, device=device, **options)

    def number(self) -> int:
        raise ReplayError("the step chooses by a stream's number on the host")


class _ReplayingRng:
    """Hands out draws in order. Not itself an `Rng`: the compiler of torch 2.11 cannot make a
    frozen dataclass.
    """

    def __init__(self, drawn: Drawn) -> None:
        self.drawn = drawn
        self.position = 0

    def __call__(self, *names: str | int) -> "_ReplayingRng":
        return self

    def draw(self, *_: Any, **__: Any) -> Tensor:
        if self.position >= len(self.drawn):
            raise ReplayError("the step drew more in one call than in another")
        self.position += 1
        return self.drawn[self.position - 1]

    number = _RecordingRng.number
    normal, uniform, integers, permutation = Rng.normal, Rng.uniform, Rng.integers, Rng.permutation


def _rebuilt(part: Any) -> Any:
    """The same tensors in named tuples made here: one that comes of `_replace` leaves a function
    compiled by torch 2.11 empty.
    """
    is_named = isinstance(part, tuple) and hasattr(part, "_fields")
    return type(part)(*map(_rebuilt, part)) if is_named else part
