r"""Settings of a sampler, selected on training data that the coreset does not hold; the test set is
not used.

For each candidate $s$, a scale of the prior for example, short chains are run on the coreset S and
scored on up to 1000 training points $h \notin S$,

$$ s^* = \arg\max_s \sum_h \log \frac1D \sum_d p(y_h \mid x_h, \theta_d), \quad \theta_d \sim
\pi_s(\theta \mid S)^{1/T_s} , $$

and the full chains are then run with the best. A candidate whose chains run away or never move is
out. There are two short chains for each, of half the burn-in and a quarter of the draws: with one
alone, settings that predict well once modes are averaged seem overconfident.

Selected points are left out by their indices. Learned points have none: they were made of the whole
training set, and any training point serves. That makes held-out training scores better than test
scores, for all candidates alike.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.mixture import Mixture
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Predict
from pseudocore.inference.draws_posterior import DrawsPosterior

if TYPE_CHECKING:
    from pseudocore.inference.chain import ChainSampler

Setting = Mapping[str, Any]
"""Values of some fields of a sampler."""

COLD = ((0.1, 8.0), (0.001, 2.0), (0.001, 4.0), (0.001, 8.0))
"""Temperature and scale of a fan-in prior to select from, by the study in docs/inference.md. The
first is used where the coreset is all there is, so that nothing is left to select on.
"""

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""What a given scale of a prior is multiplied by, to select from."""

MAX_HELD_OUT = 1000
_BATCH = 500


def by_split(
    sampler: "ChainSampler",
    candidates: Sequence[Setting],
    problem: Problem,
    coreset: Coreset,
    rng: Rng,
    **options: Any,
) -> DrawsPosterior:
    """Select a candidate, then sample with it; `options` are those of the sampler's `sample`."""
    if len(candidates) == 1:
        return dataclasses.replace(sampler, **candidates[0]).sample(
            problem, coreset, rng, **options
        )
    index = held_out(problem, coreset, rng("held-out"))
    shorter = dataclasses.replace(
        sampler,
        num_draws=max(5, sampler.num_draws // 4),
        num_burn=max(10, sampler.num_burn // 2),
        num_chains=2,
    )
    scores: list[float] = []
    failure = RunError("no setting could be tried", code="no-candidate")
    for number, setting in enumerate(candidates):
        short = dataclasses.replace(shorter, **setting)
        try:
            predict = short.sample(problem, coreset, rng("choose", number))
            scores.append(mean_log_likelihood(predict, problem, index))
        except RunError as error:
            scores.append(-math.inf)
            failure = error
    score, best = max(zip(scores, candidates, strict=True), key=lambda pair: pair[0])
    if score == -math.inf:
        raise failure
    posterior = dataclasses.replace(sampler, **best).sample(problem, coreset, rng, **options)
    numbers = {name: value for name, value in best.items() if isinstance(value, float)}
    posterior.selected_settings = {**numbers, "held_out_nll": -score}
    return posterior


def held_out(problem: Problem, coreset: Coreset, rng: Rng, num: int = MAX_HELD_OUT) -> Tensor:
    """Indices of up to `num` training points that are not among the coreset's, (n,)."""
    index = outside(problem, coreset, rng, num)
    if len(index) == 0:
        raise ConfigError(
            "the coreset holds every training point, so none is left to select settings on; "
            "give prior_scale itself",
            code="nothing-held-out",
        )
    return index


def outside(problem: Problem, coreset: Coreset, rng: Rng, num: int = MAX_HELD_OUT) -> Tensor:
    """As `held_out`, but empty where there are none."""
    free = torch.ones(problem.num_train, dtype=torch.bool)
    if coreset.indices is not None:
        free[coreset.indices.cpu()] = False
    index = free.nonzero().flatten()
    return index[rng.permutation(len(index))[:num]]


def mean_log_likelihood(predict: Predict, problem: Problem, index: Tensor) -> float:
    """Mean over some training points of log p(y | x)."""
    x, y = problem.data.train.x, problem.data.train.y
    if problem.task == "regression":
        mean, sd = predict(x[index]).cpu().double().unbind(1)
        return float(Mixture(mean[:, None], sd[:, None]).log_prob(y[index, 0].double()).mean())
    total = sum(
        float(label_log_likelihood(predict(x[part]).cpu().double(), y[part]).sum())
        for part in torch.split(index, _BATCH)
    )
    return total / len(index)
