r"""IDM: matching mean features under networks that have learned something, with a loss of classes.

Zhao, Li, Qin, Yu (2023), "Improved Distribution Matching for Dataset Condensation". As `dm`
(`methods/condense/dm.py`), with three changes: networks are partly trained ones, pseudo-images must
be told apart by them, and a stored image holds several (`formation` 2),

$$ \min_S\ \mathbb E_{\theta, \omega} \sum_c \Big( \Big\lVert
   \tfrac1{|B_c|} \sum_{x \in B_c} \psi_\theta(A(x, \omega))
   - \tfrac1{|S_c|} \sum_{s \in S_c} \psi_\theta(A(s, \omega)) \Big\rVert^2
   - \tfrac{\lambda}{|S_c|} \sum_{s \in S_c} \log p_\theta(c \mid A(s, \omega)) \Big). $$

| paper | here | | paper | here |
|---|---|---|---|---|
| model queue | experts below epoch `max_start` | | $\lambda$ | `regularisation` |
| partition and expansion | `formation` | | $A$ | the setup's `augment` |

Cost per step: as `dm`.

Deviations:
  D1. Networks are kept epochs of experts, which see all data; the paper keeps a queue of networks
      that are trained on as the images are learned.
  D2. A stored image is one by default, as for all methods here; the paper's runs have four.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pseudocore.core.config import Count, NonNegative, Positive
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.objectives import class_matching
from pseudocore.objectives.class_matching import ClassLoss, MatchingSettings, Mismatch
from pseudocore.objectives.image_sgd import ImagesInfo, ImagesState
from pseudocore.objectives.initial import Initial
from pseudocore.objectives.trajectory import ExpertSettings, check_experts, view_of
from pseudocore.runtime import autodiff


@methods.register(
    "idm",
    kind="condense",
    paper="Zhao et al. 2023, arXiv 2307.09742",
    targets="features",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class IDM(MatchingSettings, ExpertSettings):
    """Condensation by matching mean features in partly trained networks."""

    num_steps: Count = 20_000
    """Matching steps, each under one network."""
    image_lr: Positive = 0.2
    initial: Initial = "real"
    regularisation: NonNegative = 0.5
    """Weight of the pseudo-images' cross-entropy under the same network."""

    def init(self, problem: Problem, rng: Rng) -> Any:
        check_experts(self, problem)
        return super().init(problem, rng)

    def step(
        self, problem: Problem, state: ImagesState, rng: Rng
    ) -> tuple[ImagesState, ImagesInfo]:
        (theta,) = self.expert_path(problem, rng, horizon=0)
        drawn = class_matching.draw(problem, theta, self.batch_size, rng("batch"))

        def against(real: Tensor, label: int) -> Mismatch:
            target = problem.features(theta, real, drawn.statistics).mean(0)
            loss = ClassLoss(problem, label, drawn.statistics)

            def mismatch(own: Tensor) -> Tensor:
                value, (features, _) = loss.with_aux(theta, own)  # one pass for both
                return (features.mean(0) - target).square().sum() + self.regularisation * value

            return autodiff.value_and_grad(mismatch, pure=False)

        view = view_of(problem)
        gradient, loss = class_matching.match(self, problem, view, state.x, drawn, against, rng)
        return self.matched(state, drawn, gradient, loss)
