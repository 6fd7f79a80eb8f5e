"""Images, their targets and a logit scale, learned by regression: what `kip` and `rcig` share."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import kernel_regression, multiformation
from pseudocore.objectives.initial import ImageSettings
from pseudocore.objectives.kernel_regression import RegressionSettings


class RegressionPoints(NamedTuple):
    x: Tensor  # network inputs (M, ...)
    y: Tensor  # targets (M, classes)
    log_scale: Tensor  # () of the factor from predictions to logits


@dataclass(frozen=True, kw_only=True)
class ImageRegression(ImageSettings, RegressionSettings):
    """Where such points begin, and the coreset that they end as."""

    def begin(self, problem: Problem, rng: Rng) -> RegressionPoints:
        x, y = multiformation.begin(
            problem, self.counts(problem), self.initial, rng("images"), factor=self.formation
        )
        targets = kernel_regression.centred(y, problem.num_classes, x.dtype)
        return RegressionPoints(x, targets, x.new_full((), self.logit_scale).log())

    def ended(self, problem: Problem, learned: RegressionPoints) -> Coreset:
        x, y, log_scale = learned
        numbers = {
            "logit_scale": log_scale.exp().item(),
            "ridge": self.ridge * self.mean_weight(problem),
        }
        provenance = {"posterior": numbers, **multiformation.provenance(factor=self.formation)}
        weight = self.weights(problem, y).cpu()
        return Coreset(problem.pixels(x).cpu(), y.cpu(), weight, provenance=provenance)
