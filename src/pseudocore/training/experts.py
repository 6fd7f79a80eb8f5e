r"""Experts: networks trained on the whole training set by SGD, kept at the end of every epoch.

$$ v \leftarrow \mu v + \lambda\theta + \nabla_\theta \tfrac1{|B|} \sum_{i \in B} \ell(f_\theta(x_i), y_i), \qquad
   \theta \leftarrow \theta - \eta v $$

An epoch visits every training point once, in a random order; the last batch takes what is left. An
expert is a function of (seed, its number): its initialisation, orders and augmentations come from
streams of its own, so that twenty more experts trained tomorrow are the ones that forty trained at
once would have had, and an expert can be taken up again after any epoch. Trained one by one they
agree bit for bit; several in one batched pass agree to rounding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from pseudocore.core import config
from pseudocore.core.config import Count, Fraction, NonNegative, Positive
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.runtime import Compile, autodiff
from pseudocore.runtime.execution import map_independent, parallel_passes
from pseudocore.runtime.steps import StepRunner
from pseudocore.training.losses import Loss, per_example


@dataclass(frozen=True, kw_only=True)
class Training:
    """How experts are trained; the defaults are those of the published trajectory methods."""

    loss: Loss = "cross-entropy"
    """What is minimised: cross-entropy, focal or multi-margin."""
    lr: Positive = 0.01
    """Step size η of SGD."""
    momentum: Fraction = 0.0
    """Momentum μ of SGD."""
    weight_decay: NonNegative = 0.0
    """Weight decay λ."""
    batch_size: Count = 256
    """Training points per step."""


class State(NamedTuple):
    theta: Tensor  # (experts, parameters)
    velocity: Tensor  # (experts, parameters), or (experts, 0) without momentum


class Trainer:
    """Takes experts, known by their numbers, from epoch to epoch: several in one batched pass, or
    one.

    Holds no state of theirs, only the captured steps, which serve all epochs and all experts.
    """

    def __init__(
        self, problem: Problem, training: Training, seed: int, *, compile: Compile = "auto"
    ) -> None:
        config.check(training)
        self.problem = problem
        self.training = training
        self._rng = Rng(seed)("experts")
        self.expected_epochs = 0
        """Calls of `epoch` to come, as far as known: they decide whether compiling pays."""
        self._compile: Compile = compile
        self._steppers: dict[torch.Size, StepRunner] = {}

    def start(self, numbers: Sequence[int]) -> State:
        """Experts as they are before the first epoch."""
        problem = self.problem
        fresh = [
            problem.model.init(
                self._rng(number)("theta"), device=problem.device, dtype=problem.dtype
            )
            for number in numbers
        ]
        theta = torch.stack(fresh)
        return State(
            theta,
            torch.zeros_like(theta) if self.training.momentum else theta.new_zeros(len(fresh), 0),
        )

    def epoch(self, numbers: Sequence[int], state: State, epoch: int) -> tuple[State, list[float]]:
        """The experts after epoch number `epoch` (from 1), and each one's training loss, averaged
        while it was running.
        """
        problem, streams = self.problem, [self._rng(number)("epoch", epoch) for number in numbers]
        orders = torch.stack(
            [
                stream("order").permutation(problem.num_train, device=problem.device)
                for stream in streams
            ]
        )
        total = state.theta.new_zeros(len(numbers))
        for place, index in enumerate(torch.split(orders, self.training.batch_size, dim=1)):
            rng = _Streams(
                self._rng.seed,
                self._rng.path,
                tuple(stream("augment", place) for stream in streams),
            )
            batch, info = self._stepper(index.shape)(
                _Batch(state.theta, state.velocity, index), rng
            )
            state = State(batch.theta, batch.velocity)
            total += info.loss * index.shape[1]
        losses = (total / problem.num_train).tolist()
        for number, finite in zip(numbers, state.theta.isfinite().all(1).tolist(), strict=True):
            if not finite:
                raise ConfigError(
                    f"expert {number} became NaN or infinite in epoch {epoch}, trained with lr = {self.training.lr:g} "
                    f"on the {self.training.loss} loss; a smaller lr would work"
                )
        return State(
            state.theta.clone(), state.velocity.clone()
        ), losses  # a captured step reuses its buffers

    def _stepper(self, shape: torch.Size) -> StepRunner:
        """One per shape, as a captured step has fixed ones: full batches, and the last of an epoch."""
        if shape not in self._steppers:
            per_epoch = (
                self.problem.num_train // shape[1] if shape[1] == self.training.batch_size else 1
            )
            num_steps, repeats = self.expected_epochs * per_epoch, parallel_passes(self.problem) > 1
            self._steppers[shape] = StepRunner(
                self._step, self.problem, self._compile, num_steps, repeats_passes=repeats
            )
        return self._steppers[shape]

    def _step(self, problem: Problem, batch: "_Batch", rng: Rng) -> tuple["_Batch", "_Info"]:
        training = self.training

        def loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
            with problem.fast():
                logits = problem.model.logits(theta, x)
            return per_example(training.loss, logits.to(theta.dtype), y).mean()

        gradient, value = _each(
            loss, batch.theta, *_shown(problem, batch.points, rng), dense=problem.is_dense
        )
        if training.weight_decay:
            gradient = gradient + training.weight_decay * batch.theta
        velocity = batch.velocity
        if training.momentum:
            velocity = gradient = training.momentum * velocity + gradient
        return _Batch(batch.theta - training.lr * gradient, velocity, batch.points), _Info(value)


class Resident:
    """Snapshots (experts, epochs + 1, parameters) in the memory of one device: `at` is one
    indexing, fit for a captured step.
    """

    def __init__(self, theta: Tensor, dtype: torch.dtype | None = None) -> None:
        self.num_experts = len(theta)
        self.num_epochs = theta.shape[1] - 1
        self._rows = theta.flatten(0, 1)
        self._dtype = dtype or theta.dtype

    def at(self, expert: Tensor, epoch: Tensor) -> Tensor:
        place = (expert * (self.num_epochs + 1) + epoch).to(self._rows.device)
        return self._rows.index_select(0, place).to(self._dtype)


def train(
    problem: Problem,
    training: Training,
    *,
    num: int,
    num_epochs: int,
    seed: int = 0,
    group: int | None = None,
) -> Resident:
    """`num` experts after each of `num_epochs` epochs, in memory."""
    trainer, group = Trainer(problem, training, seed), group or usual_group(problem)
    trainer.expected_epochs = num * num_epochs // group
    whole = torch.empty(
        num,
        num_epochs + 1,
        problem.model.num_parameters,
        device=problem.device,
        dtype=problem.dtype,
    )
    for first in range(0, num, group):
        numbers = range(first, min(first + group, num))
        state = trainer.start(numbers)
        whole[numbers.start : numbers.stop, 0] = state.theta
        for epoch in range(1, num_epochs + 1):
            state, _ = trainer.epoch(numbers, state, epoch)
            whole[numbers.start : numbers.stop, epoch] = state.theta
    return Resident(whole)


def usual_group(problem: Problem) -> int:
    """How many experts to train in one step, by measurement.

    Small dense networks leave a GPU idle: twenty at once train four times as many images a second.
    Batched convolutions are slower than plain ones there and on a CPU, where one expert after the
    other is bit for bit reproducible besides; with kernels of our own four go through a GPU side by
    side.
    """
    if problem.device.type == "cuda" and problem.is_dense:
        return 20
    return parallel_passes(problem)


@dataclass(frozen=True)
class _Streams(Rng):
    """The streams of several experts as one, the first name being an expert's place: what one
    captured step draws from.
    """

    members: tuple[Rng, ...] = ()

    def __call__(self, *names: str | int) -> Rng:
        return self.members[int(names[0])](*names[1:])


class _Batch(NamedTuple):
    theta: Tensor  # (experts, parameters)
    velocity: Tensor
    points: Tensor  # (experts, batch) training indices


class _Info(NamedTuple):
    loss: Tensor  # (experts,)


def _shown(problem: Problem, index: Tensor, rng: Rng) -> tuple[Tensor, Tensor]:
    """Inputs (experts, batch, ...) and labels (experts, batch), each expert's augmented by a draw
    from its own stream.
    """
    x, y = problem.batch(index.flatten())
    x, augment = x.view(*index.shape, *x.shape[1:]), problem.augment
    if augment is not None:
        x = torch.stack([augment(part, rng(place)) for place, part in enumerate(x)])
    return x, y.view(index.shape)


def _each(
    loss: Callable[..., Tensor], theta: Tensor, x: Tensor, y: Tensor, *, dense: bool
) -> tuple[Tensor, Tensor]:
    """Gradients (experts, parameters) and losses (experts,).

    One expert goes through plain and faster layers, and so does each of several convolutional ones
    on a GPU, beside the others.
    """
    if len(theta) > 1 and (dense or not theta.is_cuda):
        result: tuple[Tensor, Tensor] = vmap(grad_and_value(loss))(theta, x, y)
        return result
    values, gradients = zip(
        *map_independent(
            partial(autodiff.value_and_grad(loss), *one) for one in zip(theta, x, y, strict=True)
        ),
        strict=True,
    )
    return torch.stack(gradients), torch.stack(values)
