"""A buffer filled with experts: trained group by group, kept as they go, taken up where they
stopped.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.store.expert_folder import ExpertFolder
from pseudocore.store.expert_shards import Kept
from pseudocore.training.experts import State, Trainer

OnStart = Callable[[int, int], None]
"""Hears how many epochs are done and how many there will be, over all experts."""

OnEpoch = Callable[[int, dict[str, float]], None]
"""Hears how many epochs are done, over all experts, and numbers to show."""

SAVE_SECONDS = 30.0
"""An expert still in training is kept this often; a faster one is written once, when it is done."""


def fill(
    folder: ExpertFolder,
    trainer: Trainer,
    *,
    num: int,
    num_epochs: int,
    group: int,
    on_start: OnStart = lambda done, total: None,
    on_epoch: OnEpoch = lambda done, numbers: None,
) -> int:
    """Train what is missing of `num` experts, and of any more there are, of `num_epochs` epochs
    each; how many epochs that was.

    Ctrl-C keeps what is trained so far, to the epoch, and goes on upwards.
    """
    kept = folder.epochs()
    reached = [
        kept.get(number, -1) for number in range(max([num, *(number + 1 for number in kept)]))
    ]  # -1: not even begun
    rows = sum(max(0, num_epochs - epoch) for epoch in reached)
    folder.reserve(rows * trainer.problem.model.num_parameters * folder.dtype.itemsize)
    missing = sum(max(0, num_epochs - max(0, epoch)) for epoch in reached)
    total = done = len(reached) * num_epochs
    done -= missing
    on_start(done, total)
    trainer.expected_epochs = missing // group

    def advance(numbers: list[int], losses: list[float]) -> None:
        nonlocal done
        done += len(numbers)
        on_epoch(done, {"expert": numbers[-1], "loss": math.fsum(losses) / len(losses)})

    for numbers in _groups(reached, num_epochs, group):
        begun = reached[numbers[0]] >= 0
        progress = (
            _taken_up(folder, trainer, numbers) if begun else _begun(folder, trainer, numbers)
        )
        _train(folder, trainer, numbers, progress, num_epochs, advance)
    return missing


class _Progress(NamedTuple):
    """A group of experts between two epochs; one value, so that an interrupt finds it whole."""

    snapshots: list[Tensor]  # (experts, parameters) each, in the stored type on the host
    losses: list[list[float]]  # of each epoch, one an expert
    state: State


def _groups(reached: list[int], num_epochs: int, group: int) -> Iterator[list[int]]:
    """Numbers of experts that lack epochs, those that stand at the same epoch together, at most
    `group` at once.
    """
    short = [number for number, epoch in enumerate(reached) if epoch < num_epochs]
    for _, alike in itertools.groupby(short, key=lambda number: reached[number]):
        numbers = list(alike)
        yield from (numbers[first : first + group] for first in range(0, len(numbers), group))


def _begun(folder: ExpertFolder, trainer: Trainer, numbers: list[int]) -> _Progress:
    state = trainer.start(numbers)
    return _Progress([state.theta.to("cpu", folder.dtype, copy=True)], [], state)


def _taken_up(folder: ExpertFolder, trainer: Trainer, numbers: list[int]) -> _Progress:
    """Where the group's shards left it."""
    kept, like = [folder.read(number) for number in numbers], trainer.start(numbers)
    theta = torch.stack([one.last for one in kept]).to(like.theta)
    velocity = like.velocity  # for its shape, when there is no momentum
    if velocity.numel():
        velocity = torch.stack([one.velocity for one in kept if one.velocity is not None]).to(theta)
    snapshots = list(torch.stack([one.theta for one in kept], dim=1))
    losses = [list(epoch) for epoch in zip(*(one.losses for one in kept), strict=True)]
    return _Progress(snapshots, losses, State(theta, velocity))


def _train(
    folder: ExpertFolder,
    trainer: Trainer,
    numbers: list[int],
    progress: _Progress,
    num_epochs: int,
    on_epoch: Callable[[list[int], list[float]], None],
) -> None:
    """Train a group to its last epoch and keep it."""
    saved, saved_at = len(progress.losses), time.monotonic()
    try:
        for epoch in range(len(progress.losses) + 1, num_epochs + 1):
            state, losses = trainer.epoch(numbers, progress.state, epoch)
            snapshot = state.theta.to("cpu", folder.dtype, copy=True)
            progress = _Progress([*progress.snapshots, snapshot], [*progress.losses, losses], state)
            if epoch == num_epochs or time.monotonic() - saved_at > SAVE_SECONDS:
                _keep(folder, numbers, progress)
                saved, saved_at = epoch, time.monotonic()
            on_epoch(numbers, losses)
    except KeyboardInterrupt:
        if len(progress.losses) > saved:
            _keep(folder, numbers, progress)
        raise


def _keep(folder: ExpertFolder, numbers: list[int], progress: _Progress) -> None:
    last, velocity = progress.state.theta.cpu(), progress.state.velocity.cpu()
    for place, number in enumerate(numbers):
        theta = torch.stack([snapshot[place] for snapshot in progress.snapshots])
        losses = [epoch[place] for epoch in progress.losses]
        folder.write(
            number, Kept(theta, losses, last[place], velocity[place] if velocity.numel() else None)
        )
