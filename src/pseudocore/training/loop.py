"""The one training loop: gradient steps on mini-batches, each run by a step runner.

It serves experts, pre-trained networks and the inferences that train a network. A step is a
gradient of the parameters and an optimiser's change; both are given as functions.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.runtime.draws import Step
from pseudocore.runtime.reporting import report
from pseudocore.runtime.steps import StepRunner


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """How long, and on how many points at once, a network is trained on a coreset."""

    num_steps: Count = 1000
    """Gradient steps."""
    batch_size: Count = 256
    """Points per step; coresets up to this size are used whole."""


Gradient = Callable[[Tensor, Tensor, Rng], tuple[Tensor, Any]]
"""Parameters, training indices of the batch and stream to the gradient and the step's info."""

Optimiser = Callable[[Tensor, Any, Tensor], tuple[Tensor, Any]]
"""Gradient, moments and parameters to the change to subtract and the new moments."""


class TrainingState(NamedTuple):
    theta: Tensor  # parameters, (parameters,) or (networks, parameters)
    moments: Any  # of the optimiser: a tensor or a (nested) NamedTuple of tensors
    points: Tensor
    """Training indices, (batch,) or (networks, batch); empty where the gradient draws its own."""


class TrainingLoop:
    """Runs training steps, with one step runner per shape of batch: a captured step has fixed ones.

    `make_runner` makes a runner of a step, given the size of the batch.
    """

    def __init__(
        self,
        gradient: Gradient,
        optimiser: Optimiser,
        problem: Problem,
        make_runner: Callable[[Step, int], StepRunner] | None = None,
    ) -> None:
        self.runners: dict[torch.Size, StepRunner] = {}
        self._gradient, self._optimiser = gradient, optimiser
        self._make_runner = make_runner or (lambda step, _: StepRunner(step, problem))

    def steps(
        self, state: TrainingState, batches: Iterable[tuple[Tensor | None, Rng]]
    ) -> Iterator[tuple[TrainingState, Any]]:
        """The state and info after each step, given each step's training indices and stream.

        The indices are None where the gradient draws its own batch. A captured step reuses its
        buffers: clone a state to keep it.
        """
        for points, rng in batches:
            if points is not None:
                state = state._replace(points=points)
            shape = state.points.shape
            if shape not in self.runners:
                self.runners[shape] = self._make_runner(self._step, shape[-1])
            state, info = self.runners[shape](state, rng)
            yield state, info

    def _step(self, _: Problem, state: TrainingState, rng: Rng) -> tuple[TrainingState, Any]:
        gradient, info = self._gradient(state.theta, state.points, rng)
        change, moments = self._optimiser(gradient, state.moments, state.theta)
        return TrainingState(state.theta - change, moments, state.points), info


def train(
    gradient: Gradient,
    optimiser: Optimiser,
    theta: Tensor,
    moments: Any,
    problem: Problem,
    rng: Rng,
    *,
    num_steps: int,
    on_step: Callable[[int, Tensor], None] = lambda number, theta: None,
) -> Tensor:
    """The parameters after `num_steps` steps that draw their own batches.

    `on_step` is called with the number of each step and the parameters after it.
    """
    none = torch.zeros(0, dtype=torch.int64, device=theta.device)
    loop = TrainingLoop(gradient, optimiser, problem)
    before = state = TrainingState(theta, moments, none)
    batches = ((None, rng("step", number)) for number in range(num_steps))
    for number, (state, _) in enumerate(loop.steps(before, batches)):
        on_step(number, state.theta)
        report("training", number + 1, num_steps)
    return state.theta.clone()


@dataclass(frozen=True)
class _Streams(Rng):
    """The streams of several networks as one, split by a network's place first."""

    members: tuple[Rng, ...] = ()

    def __call__(self, *names: str | int) -> Rng:
        return self.members[int(names[0])](*names[1:])


def random_batch(
    problem: Problem, size: int, rng: Rng, x: Tensor, *others: Tensor
) -> tuple[Tensor, ...]:
    """Network inputs, augmented, and what goes with them, of `size` points drawn with replacement;
    of all points where there are no more than that.
    """
    if len(x) > size:
        index = rng("batch").integers(len(x), size, device=x.device)
        x, *others = (part[index] for part in (x, *others))  # type: ignore[assignment]
    return x if problem.augment is None else problem.augment(x, rng("augment")), *others


def epoch_of_one(problem: Problem, stream: Rng, batch_size: int) -> Iterator[tuple[Tensor, Rng]]:
    """Training indices (batch,) and stream of each step of an epoch, in a random order."""
    order = stream("order").permutation(problem.num_train, device=problem.device)
    for place, points in enumerate(torch.split(order, batch_size)):
        yield points, stream("augment", place)


def epoch_of_several(
    problem: Problem, streams: Sequence[Rng], batch_size: int
) -> Iterator[tuple[Tensor, Rng]]:
    """As `epoch_of_one` for several networks at once: indices (networks, batch), each network's in
    its own order.
    """
    epochs = [epoch_of_one(problem, stream, batch_size) for stream in streams]
    for parts in zip(*epochs, strict=True):
        points, members = zip(*parts, strict=True)
        yield torch.stack(points), _Streams(streams[0].seed, (), members)
