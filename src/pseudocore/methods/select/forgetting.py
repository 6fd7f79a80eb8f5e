r"""Forgetting: the points a network forgets most often while it is trained.

Toneva et al. (2019), "An empirical study of example forgetting during deep neural network
learning". An example is forgotten when it is predicted right at one visit of training and wrong at
the next; those forgotten most often are taken,

$$ \#\{ t : \text{right at visit } t,\ \text{wrong at visit } t + 1 \} , $$

with examples that were never right above all others. Ties, frequent after few epochs, are broken at
random.

Cost: that of the pre-training.

Deviations:
  D1. Counts of one short pre-training (`pretrain_epochs`); the paper counts over 200 epochs and
      several networks.
"""

from dataclasses import dataclass
from functools import partial

from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection.budgets import SelectorSettings, choose_highest
from pseudocore.training.pretrain import Pretraining, extract_last_layer, pretrained


@methods.register(
    "forgetting",
    kind="select",
    paper="Toneva et al. 2019, arXiv 1812.05159",
    targets="difficulty",
    weights="option",
)
@dataclass(frozen=True, kw_only=True)
class Forgetting(Pretraining, SelectorSettings):
    """Points that a network forgets most often while it is trained."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        counts = pretrained(problem, self, rng("pretrain")).forgotten
        layer = partial(extract_last_layer, problem, self, rng)
        return choose_highest(problem, self, counts, rng, layer)
