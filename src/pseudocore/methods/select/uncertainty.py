r"""Least confidence, entropy, margin: the points a trained network is least sure of.

Coleman et al. (2020), "Selection via proxy: efficient data selection for deep learning". With $p$
the predicted probabilities of an example and $p_{(1)} \ge p_{(2)}$ the two largest, the points of
the highest score are taken,

$$ \text{least-confidence}\ \ 1 - p_{(1)}, \qquad \text{entropy}\ -\sum_c p_c \log p_c, \qquad
   \text{margin}\ \ 1 - (p_{(1)} - p_{(2)}) . $$

Cost: one pass of the network over the training set.

Deviations:
  D1. Scores of one network trained on all of the data, as in the tables of Shin et al. (2023); the
      paper's is a smaller proxy in rounds of active learning.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection.budgets import Budget, choose, top
from pseudocore.training.pretrain import Pretraining, last_layer, pretrained

PAPER = "Coleman et al. 2020, arXiv 1906.11829"


@dataclass(frozen=True, kw_only=True)
class Settings(Pretraining, Budget):
    """What all three have in common."""


@methods.register("least-confidence", kind="select", paper=PAPER)
@dataclass(frozen=True, kw_only=True)
class LeastConfidence(Settings):
    """Points whose likeliest class a trained network finds least likely."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        return _highest(self, problem, rng, lambda p: 1 - p.max(1).values)


@methods.register("entropy", kind="select", paper=PAPER)
@dataclass(frozen=True, kw_only=True)
class Entropy(Settings):
    """Points whose predicted class probabilities have the highest entropy."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        return _highest(self, problem, rng, lambda p: torch.special.entr(p).sum(1))


@methods.register("margin", kind="select", paper=PAPER)
@dataclass(frozen=True, kw_only=True)
class Margin(Settings):
    """Points between whose two likeliest classes a trained network can hardly decide."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        if problem.num_classes < 2:
            raise ConfigError("margin needs two classes or more to decide between")
        return _highest(
            self, problem, rng, lambda p: 1 - p.topk(2, 1).values.diff(dim=1).neg().squeeze(1)
        )


def _highest(
    settings: Settings, problem: Problem, rng: Rng, score: Callable[[Tensor], Tensor]
) -> Coreset:
    layer = last_layer(
        problem, pretrained(problem, settings, rng("pretrain")).theta, rng("statistics")
    )
    scores = score(layer.log_probs.exp())
    return choose(
        problem,
        settings,
        lambda group: top(
            scores[group.members.to(scores.device)], group.num, rng("ties", group.label)
        ),
    )
