r"""Glister: points such that a step of training on them improves the predictions of others most.

Killamsetty, Sivasubramanian, Ramakrishnan, Iyer (2021), "GLISTER: generalization based data subset
selection for efficient and robust learning", Eq. (5) and Algorithm 2. The next point is the one
whose gradient $g_e$ points most along that of the loss $L_V$ of examples $V$, after one step on the
points so far,

$$ e_{t+1} = \operatorname*{argmax}_e\, \langle \nabla_\theta L_V(\theta_t),\, g_e \rangle, \qquad
   \theta_t = \theta - \eta \sum_{s \le t} g_{e_s} . $$

`glister` takes the examples to be selected from as $V$, `glister-val` examples held out of the
selection. $\nabla L_V$ is that of the class by default, as the tables select class by class; with
`judges` "all" $V$ is of all classes. For the last layer the step changes the logits of $V$ in closed form, by $-\eta(\langle
\phi_v, \phi_e \rangle + 1)(p_e - y_e)$.

Cost: each point is one pass over the features of its class and of V, O(n · h · classes).

Deviations:
  D1. Last layer only, at one trained network, chosen once, as in the tables of Shin et al. (2023).
  D2. $\nabla L_V$ is taken anew for every point; the paper does so a few times in all.
  D3. There is no third split: `glister-val` holds out a part of the training set, which the network
      was trained on all the same.
  D4. $V$ is restricted to the class that is selected from; the paper's, `judges` "all", is not.
  D5. In the code behind the tables of Shin et al. (2023) $V$ never sees the step: a misspelt keyword
      argument is swallowed, so that all points are chosen at $\theta$. `step_size` 0 does the same.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pseudocore.core.config import NonNegative
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection.budgets import (
    Group,
    SelectorSettings,
    ValidationSettings,
    choose,
    groups,
)
from pseudocore.selection.last_layer_gradients import LastLayer, along, mean_gradient
from pseudocore.training.pretrain import Pretraining, extract_last_layer

PAPER = "Killamsetty et al. 2021, arXiv 2012.10630"


@methods.register("glister", kind="select", paper=PAPER, targets="loss", weights="option")
@dataclass(frozen=True, kw_only=True)
class Glister(Pretraining, SelectorSettings):
    """Points on which a step of training helps the rest of their class most."""

    step_size: NonNegative = 0.1
    """Length η of the training step along a point's gradient; 0 scores all points at once."""
    judges: Literal["class", "all"] = "class"
    """Whose loss is to fall: that of examples of the class, or of all classes."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        layer = extract_last_layer(problem, self, rng)
        splits = [self.split(group, rng) for group in groups(problem, self)]
        everyone = torch.cat([judges for _, judges in splits])

        def rule(group: Group) -> Tensor:
            rest, judges = splits[max(group.label, 0)]
            judges = everyone if self.judges == "all" else judges
            candidates = layer.at(group.indices[rest])
            chosen = _greedy(candidates, layer.at(judges), group.num, self.step_size)
            return rest[chosen.cpu()]

        return choose(problem, self, rule, lambda: layer)

    def split(self, group: Group, rng: Rng) -> tuple[Tensor, Tensor]:
        """Places of the candidates in the group, and indices of V."""
        return torch.arange(len(group.indices)), group.indices


@methods.register("glister-val", kind="select", paper=PAPER, targets="loss", weights="option")
@dataclass(frozen=True, kw_only=True)
class GlisterVal(ValidationSettings, Glister):
    """Points on which a step of training helps examples held out of the selection most."""


def _greedy(candidates: LastLayer, judges: LastLayer, num: int, step_size: float) -> Tensor:
    """Places (num,) of the selected candidates, in order; ties go to the lowest."""
    residual = candidates.residual
    taken = torch.zeros_like(candidates.y, dtype=torch.bool)
    order = []
    for _ in range(num):
        gain = along(candidates, mean_gradient(judges)).masked_fill(taken, -torch.inf)
        index = gain.argmax(0, keepdim=True)
        taken[index] = True
        order.append(index)
        reach = judges.features @ candidates.features[index[0]] + 1  # <φ_v, φ_e> + 1
        moved = judges.log_probs - step_size * reach.unsqueeze(1) * residual[index[0]]
        judges = judges._replace(log_probs=moved.log_softmax(1))
    return torch.cat(order)
