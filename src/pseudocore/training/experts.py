r"""Experts: networks trained on the whole training set by SGD, kept at the end of every epoch.

$$ v \leftarrow \mu v + \lambda\theta + \nabla_\theta \tfrac1{|B|} \sum_{i \in B}
   \ell(f_\theta(x_i), y_i), \qquad \theta \leftarrow \theta - \eta v $$

An epoch visits every training point once, in a random order; the last batch takes what is left. An
expert is a function of (seed, its number). Its initialisation, orders and augmentations come from
streams of its own, so twenty more experts trained tomorrow are those that forty trained at once
would have had. Training can resume after any epoch. Trained one by one they agree bit for bit;
several in one batched pass agree to rounding.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from pseudocore.core import config
from pseudocore.core.config import Count, Fraction, NonNegative, Positive
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.runtime import Compile, autodiff
from pseudocore.runtime.draws import Step
from pseudocore.runtime.execution import map_independent, parallel_passes
from pseudocore.runtime.steps import StepRunner
from pseudocore.store.expert_folder import Expert, ExpertFolder, Storage, traits
from pseudocore.training.loop import TrainingLoop, TrainingState, epoch_of_several
from pseudocore.training.losses import Loss, per_example
from pseudocore.training.optimisers import decayed, sgd

OnEpoch = Callable[[int, dict[str, float]], None]
"""Called with the number of epochs trained so far, over all experts, and numbers to show."""

SAVE_SECONDS = 30.0
"""How often an expert in training is saved; a faster one is written once, when it is done."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How experts are trained; the defaults are those of the published trajectory methods."""

    loss: Loss = "cross-entropy"
    """Training loss: cross-entropy, focal or multi-margin."""
    lr: Positive = 0.01
    """Step size η of SGD."""
    momentum: Fraction = 0.0
    """Momentum μ of SGD."""
    weight_decay: NonNegative = 0.0
    """Weight decay λ."""
    batch_size: Count = 256
    """Training points per step."""


class ExpertState(NamedTuple):
    theta: Tensor  # (experts, parameters)
    velocity: Tensor  # (experts, parameters), or (experts, 0) without momentum


class ExpertInfo(NamedTuple):
    loss: Tensor  # mean loss of the batch before the step, (experts,)


class Trainer:
    """Trains experts, known by their numbers, epoch by epoch: one, or several in a batched pass."""

    def __init__(
        self, problem: Problem, training: Training, seed: int, *, compile: Compile = "auto"
    ) -> None:
        config.check(training)
        self.problem = problem
        self.training = training
        self.expected_epochs = 0
        """Calls of `epoch` to come, as far as known: they decide whether compiling pays."""
        self._rng = Rng(seed)("experts")
        self._compile: Compile = compile
        self.loop = TrainingLoop(self._gradient, self._optimiser, problem, self._runner)

    def start(self, numbers: Sequence[int]) -> ExpertState:
        """Experts before the first epoch."""
        options: Any = {"device": self.problem.device, "dtype": self.problem.dtype}
        theta = torch.stack(
            [self.problem.model.init(self._rng(number)("theta"), **options) for number in numbers]
        )
        num_velocities = theta.shape[1] if self.training.momentum else 0
        return ExpertState(theta, theta.new_zeros(len(theta), num_velocities))

    def epoch(
        self, numbers: Sequence[int], state: ExpertState, epoch: int
    ) -> tuple[ExpertState, list[float]]:
        """The experts after epoch number `epoch` (from 1), and the mean training loss of each over
        the epoch.
        """
        num_train, training = self.problem.num_train, self.training
        streams = [self._rng(number)("epoch", epoch) for number in numbers]
        total = state.theta.new_zeros(len(numbers))
        before = running = TrainingState(*state, torch.zeros(0))
        batches = epoch_of_several(self.problem, streams, training.batch_size)
        for running, info in self.loop.steps(before, batches):
            total += info.loss * running.points.shape[1]
        after = ExpertState(running.theta.clone(), running.moments.clone())
        for number, finite in zip(numbers, after.theta.isfinite().all(1).tolist(), strict=True):
            if not finite:
                raise ConfigError(
                    f"expert {number} became NaN or infinite in epoch {epoch}, trained with lr = "
                    f"{training.lr:g} on the {training.loss} loss; a smaller lr would work",
                    code="expert-diverged",
                    number=number,
                    epoch=epoch,
                    lr=training.lr,
                )
        return after, (total / num_train).tolist()

    def _gradient(self, theta: Tensor, points: Tensor, rng: Rng) -> tuple[Tensor, ExpertInfo]:
        problem = self.problem
        x, y = problem.batch(points.flatten())
        x, y = x.view(*points.shape, *x.shape[1:]), y.view(points.shape)
        if (augment := problem.augment) is not None:
            x = torch.stack([augment(part, rng(place)) for place, part in enumerate(x)])

        def loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
            with problem.fast():
                logits = problem.model.logits(theta, x)
            return per_example(self.training.loss, logits.to(theta.dtype), y).mean()

        if len(theta) > 1 and (problem.is_dense or not theta.is_cuda):
            gradient, value = vmap(grad_and_value(loss))(theta, x, y)
            return gradient, ExpertInfo(value)
        calls = (
            partial(autodiff.value_and_grad(loss), *one) for one in zip(theta, x, y, strict=True)
        )
        values, gradients = zip(*map_independent(calls), strict=True)
        return torch.stack(gradients), ExpertInfo(torch.stack(values))

    def _optimiser(
        self, gradient: Tensor, velocity: Tensor, theta: Tensor
    ) -> tuple[Tensor, Tensor]:
        training = self.training
        gradient = decayed(gradient, theta, training.weight_decay)
        return sgd(gradient, velocity, training.lr, momentum=training.momentum)

    def _runner(self, step: Step, batch_size: int) -> StepRunner:
        is_full = batch_size == self.training.batch_size
        steps = self.expected_epochs * (self.problem.num_train // batch_size if is_full else 1)
        repeats_passes = parallel_passes(self.problem) > 1
        return StepRunner(step, self.problem, self._compile, steps, repeats_passes=repeats_passes)


def default_group(problem: Problem) -> int:
    """How many experts to train in one step, by measurement.

    Small dense networks leave a GPU idle: twenty at once train four times as many images a second.
    Batched convolutions are slower than plain ones there and on a CPU, where one expert after the
    other is bit for bit reproducible besides. A GPU may pass some through at once.
    """
    if problem.device.type == "cuda" and problem.is_dense:
        return 20
    return parallel_passes(problem)


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
    trainer, group = Trainer(problem, training, seed), group or default_group(problem)
    trainer.expected_epochs = num * num_epochs // group
    trained = []
    for first in range(0, num, group):
        numbers = range(first, min(first + group, num))
        states = [trainer.start(numbers)]
        for epoch in range(1, num_epochs + 1):
            states.append(trainer.epoch(numbers, states[-1], epoch)[0])
        trained.append(torch.stack([state.theta for state in states], dim=1))
    return Resident(torch.cat(trained))


def fill(
    folder: ExpertFolder,
    trainer: Trainer,
    *,
    num: int,
    num_epochs: int,
    group: int | None = None,
    on_start: Callable[[int, int], None] = lambda done, total: None,
    on_epoch: OnEpoch = lambda done, numbers: None,
) -> int:
    """Train what is missing of `num` experts, and of any more there are, of `num_epochs` epochs
    each; return how many epochs that was.

    `group` experts are trained in one step; defaults to the fastest number. `on_start` is called
    with the number of epochs already trained and the total, over all experts. After Ctrl-C the
    folder holds every epoch trained so far.
    """
    group = group or default_group(trainer.problem)
    reached = reserved(folder, trainer.problem, num, num_epochs)
    missing = missing_epochs(reached, num_epochs)
    total = len(reached) * num_epochs
    done = total - missing
    on_start(done, total)
    trainer.expected_epochs = missing // group

    def advance(numbers: list[int], losses: list[float]) -> None:
        nonlocal done
        done += len(numbers)
        on_epoch(done, {"expert": numbers[-1], "loss": math.fsum(losses) / len(losses)})

    for numbers in groups(reached, num_epochs, group):
        train_group(folder, trainer, numbers, num_epochs, advance)
    return missing


def reserved(folder: ExpertFolder, problem: Problem, num: int, num_epochs: int) -> list[int]:
    """The epoch that each of `num` experts, and of any more there are, has reached; -1 where not
    even its start is there. Refuses what does not fit on the disk.
    """
    kept = folder.epochs()
    reached = [kept.get(number, -1) for number in range(max([num, *(1 + one for one in kept)]))]
    rows = sum(max(0, num_epochs - epoch) for epoch in reached)
    folder.reserve(rows * problem.model.num_parameters * folder.dtype.itemsize)
    return reached


def missing_epochs(reached: list[int], num_epochs: int) -> int:
    """Epochs left to train, over all experts."""
    return sum(max(0, num_epochs - max(0, epoch)) for epoch in reached)


def groups(reached: list[int], num_epochs: int, group: int) -> Iterator[list[int]]:
    """Numbers of experts that lack epochs, at most `group` of those at the same epoch together."""
    short = [number for number, epoch in enumerate(reached) if epoch < num_epochs]
    for _, alike in itertools.groupby(short, key=lambda number: reached[number]):
        numbers = list(alike)
        yield from (numbers[first : first + group] for first in range(0, len(numbers), group))


def train_group(
    folder: ExpertFolder,
    trainer: Trainer,
    numbers: list[int],
    num_epochs: int,
    on_epoch: Callable[[list[int], list[float]], None] = lambda numbers, losses: None,
) -> None:
    """Train a group, whose experts have reached the same epoch or are new, to its last epoch, and
    save it.
    """
    kept = folder.epochs()
    experts = [folder.read(number) for number in numbers if number in kept]
    state = trainer.start(numbers)
    if experts:
        theta = torch.stack([one.last for one in experts]).to(state.theta)
        velocity = state.velocity
        if velocity.numel():
            velocity = torch.stack([one.velocity for one in experts if one.velocity is not None])
        state = ExpertState(theta, velocity.to(theta))
    else:
        rows = state.theta.to("cpu", folder.dtype, copy=True)
        experts = [Expert([row], [], row, None) for row in rows]
    first = saved = len(experts[0].losses)
    saved_at = time.monotonic()

    def save() -> None:
        for number, expert in zip(numbers, experts, strict=True):
            folder.write(number, expert)

    try:
        for epoch in range(first + 1, num_epochs + 1):
            state, losses = trainer.epoch(numbers, state, epoch)
            experts = _extended(experts, state, losses, folder.dtype)
            if epoch == num_epochs or time.monotonic() - saved_at > SAVE_SECONDS:
                save()
                saved, saved_at = epoch, time.monotonic()
            on_epoch(numbers, losses)
    except KeyboardInterrupt:
        if len(experts[0].losses) > saved:
            save()
        raise


def _extended(
    experts: list[Expert], state: ExpertState, losses: list[float], dtype: torch.dtype
) -> list[Expert]:
    """The experts with one more epoch each, on the host."""
    rows = state.theta.to("cpu", dtype, copy=True)
    last, velocity = state.theta.cpu(), state.velocity.cpu()
    return [
        Expert([*one.theta, row], [*one.losses, loss], end, own if own.numel() else None)
        for one, row, loss, end, own in zip(experts, rows, losses, last, velocity, strict=True)
    ]


def identity(problem: Problem, training: Training, seed: int, storage: Storage) -> dict[str, Any]:
    """All that decides the numbers in a folder of experts."""
    augment: Any = problem.augment
    described = augment and type(augment).__name__
    return {
        **traits(problem),
        "augment": config.to_dict(augment) if dataclasses.is_dataclass(augment) else described,
        "training": config.to_dict(training),
        "seed": seed,
        "dtype": str(problem.dtype).removeprefix("torch."),
        "precision": problem.precision,
        "storage": storage,
    }
