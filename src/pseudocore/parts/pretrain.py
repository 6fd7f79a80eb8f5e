"""A network trained on the whole training set, and its last-layer features: where selection can measure distances."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad

from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.rng import Rng
from pseudocore.parts.adam import adam, start

__all__ = ["Features", "feature_map", "network_features", "pretrain"]

Features = Literal["inputs", "network"]

BATCH = 512
"""Examples per forward pass, and behind the statistics of batch norm."""


def feature_map(problem: Problem, kind: Features, rng: Rng, *, num_steps: int) -> Callable[[Tensor], Tensor]:
    """From training indices (n,) to features (n, d): flattened network inputs, or those of a network trained `num_steps` steps."""
    if kind == "inputs":
        return lambda index: problem.batch(index)[0].flatten(1)
    return network_features(problem, pretrain(problem, rng("pretrain"), num_steps=num_steps), rng("statistics"))


def pretrain(problem: Problem, rng: Rng, *, num_steps: int, step_size: float = 1e-3, batch_size: int = 128) -> Tensor:
    """Parameters after `num_steps` steps of Adam on the mean cross-entropy of random batches, augmented if the problem says so."""
    theta = problem.model.init(rng("theta"), device=problem.device, dtype=problem.dtype)
    moments = start(theta)
    for step in range(num_steps):
        stream = rng("step", step)
        x, y = problem.batch(stream("batch").integers(problem.num_train, batch_size, device=problem.device))
        if problem.augment is not None:
            x = problem.augment(x, stream("augment"))
        change, moments = adam(grad(_cross_entropy)(theta, problem, x, y), moments, step_size)
        theta = theta - change
    return theta


def network_features(problem: Problem, theta: Tensor, rng: Rng) -> Callable[[Tensor], Tensor]:
    """From training indices (n,) to last-layer features (n, h); batch norm, if any, as on one random batch."""
    x, _ = problem.batch(rng.permutation(problem.num_train)[:BATCH])
    statistics = problem.model.statistics(theta, x) or None

    def features(index: Tensor) -> Tensor:
        with torch.no_grad(), problem.fast():
            parts = [problem.model.features(theta, problem.batch(part)[0], statistics) for part in torch.split(index, BATCH)]
        return torch.cat(parts).to(problem.dtype)

    return features


def _cross_entropy(theta: Tensor, problem: Problem, x: Tensor, y: Tensor) -> Tensor:
    with problem.fast():
        logits = problem.model.logits(theta, x)
    return -label_log_likelihood(logits.to(x.dtype).log_softmax(-1), y).mean()
