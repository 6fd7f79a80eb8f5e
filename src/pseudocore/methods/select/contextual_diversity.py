r"""C-Div: points such that every prediction of their class is near one of theirs.

Agarwal, Arora, Anand, Arora (2020), "Contextual diversity for active learning": the farthest-first
traversal of k-center with the symmetric divergence between predicted class probabilities as
distance,

$$ d_{ij} = KL[p_i \| p_j] + KL[p_j \| p_i] = \sum_c (p_{ic} - p_{jc})(\log p_{ic} - \log p_{jc}),
   \qquad i_{t+1} = \operatorname*{argmax}_i \min_{s \le t} d_{i i_s} . $$

Cost: O(n · classes) per point, after one pass of the network over the training set.

Deviations:
  D1. It begins with the point nearest to the mean prediction of its class; the paper begins with
      points that were labelled before.
  D2. One prediction per example; the paper mixes those of image regions, for detection and
      segmentation.
"""

from dataclasses import dataclass

from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection.budgets import Group, SelectorSettings, choose
from pseudocore.selection.greedy import farthest_first
from pseudocore.training.pretrain import Pretraining, extract_last_layer


@methods.register(
    "c-div",
    kind="select",
    paper="Agarwal et al. 2020, arXiv 2008.05723",
    targets="difficulty",
    weights="option",
)
@dataclass(frozen=True, kw_only=True)
class ContextualDiversity(Pretraining, SelectorSettings):
    """Points whose predictions differ most from each other within their class."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        layer = extract_last_layer(problem, self, rng)

        def rule(group: Group) -> Tensor:
            log_probs = layer.at(group.indices).log_probs
            mean = log_probs.logsumexp(0) - log_probs.exp().sum().log()
            first = _divergence(log_probs, mean).argmin(0, keepdim=True)
            return farthest_first(
                lambda index: _divergence(log_probs, log_probs[index[0]]), first, group.num
            )

        return choose(problem, self, rule, lambda: layer)


def _divergence(log_probs: Tensor, other: Tensor) -> Tensor:
    """Symmetric divergence of every prediction (n, classes) from one (classes,)."""
    return ((log_probs.exp() - other.exp()) * (log_probs - other)).sum(1)
