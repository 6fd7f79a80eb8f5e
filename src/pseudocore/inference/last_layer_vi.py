r"""Last-layer variational inference: a network trained on the coreset under the exact Gaussian over
its last layer.

The prediction of VBPC (arXiv 2502.21143, §3): a fresh $\theta$ is trained on $(u, \hat y)$ with a
Gaussian likelihood; then $m^*$ and $V^*$ of `objectives/last_layer_gaussian.py` give every test
point's predictive in one forward pass,

$$ p(y \mid x) \approx \operatorname{softmax}_y\left(s\, m^{*\top}\phi(x) / \sqrt{1 + \tfrac\pi8
s^2\Sigma^*(x)}\right). $$

Works on any coreset: integer labels become centred one-hot targets, weights multiply the
likelihood. The ridge, the prior variance and the logit scale $s$ are those learned with the
coreset, when it carries some, and otherwise the defaults below.

Cost: `num_steps` gradients on at most `batch_size` points; one Cholesky factor of M × M; no draws.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pseudocore.core.config import Count, Positive, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Predict
from pseudocore.inference.evidence import best_gaussian
from pseudocore.inference.predict import Settled
from pseudocore.objectives import last_layer_gaussian as gaussian
from pseudocore.objectives.pool import mean_squared_error
from pseudocore.runtime import autodiff
from pseudocore.runtime.steps import StepRunner
from pseudocore.training.optimisers import Moments, adam, start

LOGIT_SCALE, PRIOR_VARIANCE, RIDGE = 10.0, 0.01, 0.01
"""Used for a coreset that brings none: the values VBPC starts from."""

OptionalPositive = Annotated[float | None, Range(above=0)]
LARGEST = 20_000


class Training(NamedTuple):
    theta: Tensor
    moments: Moments


@inferences.register("last-layer-vi", kind="variational", paper="VBPC 2025, arXiv 2502.21143")
@dataclass(frozen=True, kw_only=True)
class LastLayerVI:
    """Trained features under an exact Gaussian last layer."""

    num_steps: Count = 1000
    """Adam steps of feature training on the coreset."""
    step_size: Positive = 3e-4
    """Adam's step size."""
    batch_size: Count = 512
    """Points per step; coresets up to this size are used whole."""
    logit_scale: OptionalPositive = None
    """Factor from last-layer outputs to logits; unless told, the coreset's own, else 10."""
    prior_variance: OptionalPositive = None
    """Prior variance of a last-layer output at a typical point; unless told, the coreset's own,
    else 0.01.
    """
    ridge: OptionalPositive = None
    """Relative observation noise; unless told, the coreset's own, else 0.01."""

    choose_prior: Literal["given", "marginal"] = "given"
    """Whether prior_variance and ridge are those above, or those of the largest marginal
    likelihood; a ridge that is given stays.
    """

    def fit(self, problem: Problem, coreset: Coreset, rng: Rng) -> Predict:
        if self.choose_prior == "marginal" and self.prior_variance is not None:
            raise ConfigError(
                f"prior_variance = {self.prior_variance:g} was given and choose_prior = 'marginal' would choose it; leave one of them out"
            )
        if len(coreset) > LARGEST:
            raise ConfigError(
                f"last-layer-vi factors a matrix of {len(coreset)}×{len(coreset)}; above {LARGEST} points use sgd or ensemble"
            )
        model = problem.model
        x, weight = problem.inputs(coreset.x), coreset.weight.to(problem.device, problem.dtype)
        y = _regression_targets(coreset, problem)
        theta = self._train(problem, x, y, weight, rng)
        with torch.no_grad():
            statistics = model.statistics(theta, x) or None
            features = model.features(theta, x, statistics)
            scale, variance, ridge = self._numbers(coreset)
            if self.choose_prior == "marginal":
                ridge, variance = best_gaussian(features, y, weight, ridge=self.ridge)
            posterior = gaussian.fit(
                features, y, ridge=ridge, prior_variance=variance, weight=weight
            )

        @torch.no_grad()
        def predict(raw: Tensor) -> Tensor:
            features = model.features(theta, problem.asked_inputs(raw), statistics)
            return gaussian.log_probs(*gaussian.predict(posterior, features), scale)

        return (
            predict
            if self.choose_prior == "given"
            else Settled(predict, {"ridge": ridge, "prior_variance": variance})
        )

    def _train(self, problem: Problem, x: Tensor, y: Tensor, weight: Tensor, rng: Rng) -> Tensor:
        """Adam on the weighted squared error from a fresh network."""

        def loss(theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            return mean_squared_error(problem.model.logits(theta, x), y, weight)

        def step(problem: Problem, state: Training, rng: Rng) -> tuple[Training, None]:
            part: Tensor | slice = slice(None)
            if len(x) > self.batch_size:
                part = rng("batch").integers(len(x), self.batch_size, device=x.device)
            inputs = (
                x[part] if problem.augment is None else problem.augment(x[part], rng("augment"))
            )
            change, moments = adam(
                autodiff.grad(loss)(state.theta, inputs, y[part], weight[part]),
                state.moments,
                self.step_size,
            )
            return Training(state.theta - change, moments), None

        theta = problem.model.init(rng("theta"), device=problem.device, dtype=problem.dtype)
        state, step_once = Training(theta, start(theta)), StepRunner(step, problem)
        for number in range(self.num_steps):
            state, _ = step_once(state, rng("step", number))
        return state.theta.clone()

    def _numbers(self, coreset: Coreset) -> tuple[float, float, float]:
        learned = coreset.learned
        scale = self.logit_scale or learned.get("logit_scale", LOGIT_SCALE)
        variance = self.prior_variance or learned.get("prior_variance", PRIOR_VARIANCE)
        return scale, variance, self.ridge or learned.get("ridge", RIDGE)


def _regression_targets(coreset: Coreset, problem: Problem) -> Tensor:
    """Real-valued targets (M, classes): the coreset's own, or centred one-hot labels."""
    if coreset.is_soft:
        return coreset.y.to(problem.device, problem.dtype)
    return (
        F.one_hot(coreset.y, problem.num_classes).to(problem.device, problem.dtype)
        - 1 / problem.num_classes
    )
