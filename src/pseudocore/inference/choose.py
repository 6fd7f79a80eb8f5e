r"""The scale of a sampler's prior, chosen on training data that the coreset does not hold; the test set has no part in it.

For each scale $\sigma$ = `prior_scale` × {¼, ½, 1, 2, 4} one short chain is run on the coreset S and scored on up to 1000 training
points $h \notin S$,

$$ \sigma^* = \arg\max_\sigma \sum_h \log \frac1D \sum_d p(y_h \mid x_h, \theta_d), \quad \theta_d \sim \pi_\sigma(\theta \mid S)^{1/T} , $$

and the full chains are then run with the best. A scale whose chain runs away or never moves is out. The short chains have half the
burn-in and a quarter of the draws, so that choosing costs about as much as two full chains.

Selected points are left out by their indices. Learned points have none: they were made of the whole training set, and any training point
serves. That makes held-out training scores better than test scores, for all scales alike.
"""

import dataclasses
from typing import Any, Protocol

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Predict
from pseudocore.inference.predict import Predictive

__all__ = ["FACTORS", "by_split", "held_out", "mean_log_likelihood"]

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
NUM_HELD = 1000
_BATCH = 500


class Scaled(Protocol):
    """A sampler whose dataclass fields include these and `choose_prior`."""

    @property
    def prior_scale(self) -> float: ...
    @property
    def num_draws(self) -> int: ...
    @property
    def num_burn(self) -> int: ...
    def sample(self, problem: Problem, coreset: Coreset, rng: Rng, **options: Any) -> Predictive: ...


def by_split(sampler: Scaled, problem: Problem, coreset: Coreset, rng: Rng, **options: Any) -> Predictive:
    """Choose the scale, then sample with it; `options` are those of the sampler's `sample`."""
    index = held_out(problem, coreset, rng("held-out"))
    shorter = {"num_chains": 1, "num_draws": max(5, sampler.num_draws // 4), "num_burn": max(10, sampler.num_burn // 2)}
    scores: dict[float, float] = {}
    failure: RunError | None = None
    for factor in FACTORS:
        scale = factor * sampler.prior_scale
        try:
            predict = _changed(sampler, prior_scale=scale, **shorter).sample(problem, coreset, rng("choose", str(factor)))
            scores[scale] = mean_log_likelihood(predict, problem, index)
        except RunError as error:
            failure = error
    if not scores:
        raise failure or RunError("no prior scale could be tried")
    best = max(scores, key=lambda scale: scores[scale])
    predictive: Predictive = _changed(sampler, prior_scale=best).sample(problem, coreset, rng, **options)
    predictive.chosen = {"prior_scale": best, "held_out_nll": -scores[best]}
    return predictive


def held_out(problem: Problem, coreset: Coreset, rng: Rng, num: int = NUM_HELD) -> Tensor:
    """Indices of up to `num` training points that are not among the coreset's, (n,)."""
    free = torch.ones(problem.num_train, dtype=torch.bool)
    if coreset.indices is not None:
        free[coreset.indices.cpu()] = False
    index = free.nonzero().flatten()
    if len(index) == 0:
        raise ConfigError("the coreset holds every training point, so none is left to choose the prior's scale on; give prior_scale itself")
    return index[rng.permutation(len(index))[:num]]


def mean_log_likelihood(predict: Predict, problem: Problem, index: Tensor) -> float:
    """Mean over some training points of log p(y | x)."""
    x, y = problem.data.train.x, problem.data.train.y
    total = sum(float(label_log_likelihood(predict(x[part]).cpu().double(), y[part]).sum()) for part in torch.split(index, _BATCH))
    return total / len(index)


def _changed(sampler: Any, **fields: Any) -> Any:
    return dataclasses.replace(sampler, choose_prior="given", **fields)
