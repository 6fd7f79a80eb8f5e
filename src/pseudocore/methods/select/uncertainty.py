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
  D2. In the code behind those tables `least-confidence` ranks by the largest logit, before the
      softmax; `of` "logits" does the same.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection.budgets import SelectorSettings, choose_highest
from pseudocore.training.pretrain import (
    Pretraining,
    extract_last_layer,
    last_layer,
    pretrained,
)

PAPER = "Coleman et al. 2020, arXiv 1906.11829"


@dataclass(frozen=True, kw_only=True)
class _Unsure(Pretraining, SelectorSettings, ABC):
    """The points of the highest score under the predictions of a trained network."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        layer = extract_last_layer(problem, self, rng)
        return choose_highest(problem, self, self.score(layer.log_probs.exp()), rng, lambda: layer)

    @abstractmethod
    def score(self, p: Tensor) -> Tensor:
        """From predicted probabilities (n, classes) to scores (n,)."""


@methods.register(
    "least-confidence", kind="select", paper=PAPER, targets="difficulty", weights="option"
)
@dataclass(frozen=True, kw_only=True)
class LeastConfidence(_Unsure):
    """Points whose likeliest class a trained network finds least likely."""

    of: Literal["probabilities", "logits"] = "probabilities"
    """What the confidence is the largest one of."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        if self.of == "probabilities":
            return super().select(problem, rng)
        theta = pretrained(problem, self, rng("pretrain")).theta
        layer = last_layer(problem, theta, rng("statistics"))
        weight, bias = problem.model.head(theta)
        scores = -(layer.features @ weight.T + bias).max(1).values
        return choose_highest(problem, self, scores, rng, lambda: layer)

    def score(self, p: Tensor) -> Tensor:
        return 1 - p.max(1).values


@methods.register("entropy", kind="select", paper=PAPER, targets="difficulty", weights="option")
@dataclass(frozen=True, kw_only=True)
class Entropy(_Unsure):
    """Points whose predicted class probabilities have the highest entropy."""

    def score(self, p: Tensor) -> Tensor:
        entropy: Tensor = torch.special.entr(p).sum(1)
        return entropy


@methods.register("margin", kind="select", paper=PAPER, targets="difficulty", weights="option")
@dataclass(frozen=True, kw_only=True)
class Margin(_Unsure):
    """Points between whose two likeliest classes a trained network can hardly decide."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        if problem.num_classes < 2:
            raise ConfigError(
                "margin needs two classes or more to decide between", code="one-class"
            )
        return super().select(problem, rng)

    def score(self, p: Tensor) -> Tensor:
        return 1 - p.topk(2, 1).values.diff(dim=1).neg().squeeze(1)
