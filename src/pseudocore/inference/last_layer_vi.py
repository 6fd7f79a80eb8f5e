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
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pseudocore.core.config import Count, Positive, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.inference.evidence import best_gaussian
from pseudocore.inference.posterior import GaussianPosterior
from pseudocore.objectives import last_layer_gaussian as gaussian
from pseudocore.objectives.last_layer_gaussian import mean_squared_error
from pseudocore.runtime import autodiff
from pseudocore.training.loop import FitSettings, random_batch, train
from pseudocore.training.optimisers import adam, start

DEFAULTS = {"logit_scale": 10.0, "prior_variance": 0.01, "ridge": 0.01}
"""Used for a coreset that brings none: the values VBPC starts from."""

MAX_POINTS = 20_000
"""Rows of the largest matrix that is factored."""

OptionalPositive = Annotated[float | None, Range(above=0)]


@inferences.register("last-layer-vi", kind="variational", paper="VBPC 2025, arXiv 2502.21143")
@dataclass(frozen=True, kw_only=True)
class LastLayerVI(FitSettings):
    """Trained features under an exact Gaussian last layer."""

    batch_size: Count = 512
    step_size: Positive = 3e-4
    """Adam's step size."""
    logit_scale: OptionalPositive = None
    """Factor from last-layer outputs to logits. Defaults to the coreset's own, else 10."""
    prior_variance: OptionalPositive = None
    """Prior variance of a last-layer output at a typical point. Defaults to the coreset's own, else
    0.01.
    """
    ridge: OptionalPositive = None
    """Relative observation noise. Defaults to the coreset's own, else 0.01."""
    choose_prior: Literal["given", "marginal"] = "given"
    """Whether prior_variance and ridge are those above, or those of the largest marginal
    likelihood; a ridge that is given stays.
    """

    def fit(self, problem: Problem, coreset: Coreset, rng: Rng) -> GaussianPosterior:
        if self.choose_prior == "marginal" and self.prior_variance is not None:
            raise ConfigError(
                f"prior_variance = {self.prior_variance:g} was given and choose_prior = 'marginal' "
                "would select it; leave one of them out",
                code="conflicting-options",
                options=("prior_variance", "choose_prior"),
            )
        if len(coreset) > MAX_POINTS:
            raise ConfigError(
                f"last-layer-vi factors a matrix of {len(coreset)}×{len(coreset)}; above "
                f"{MAX_POINTS} points use sgd or ensemble",
                code="too-many-points",
                points=len(coreset),
                limit=MAX_POINTS,
            )
        model = problem.model
        x, weight = problem.inputs(coreset.x), coreset.weight.to(problem.device, problem.dtype)
        y = _regression_targets(coreset, problem)
        theta = self._train(problem, x, y, weight, rng)
        known = {**DEFAULTS, **coreset.learned}
        scale = self.logit_scale or known["logit_scale"]
        variance = self.prior_variance or known["prior_variance"]
        ridge = self.ridge or known["ridge"]
        selected = {}
        with torch.no_grad():
            statistics = model.statistics(theta, x) or None
            features = model.features(theta, x, statistics)
            if self.choose_prior == "marginal":
                ridge, variance = best_gaussian(features, y, weight, ridge=self.ridge)
                selected = {"ridge": ridge, "prior_variance": variance}
            posterior = gaussian.fit(
                features, y, ridge=ridge, prior_variance=variance, weight=weight
            )

        def of_inputs(x: Tensor) -> Tensor:
            return model.features(theta, x, statistics)

        def predict(raw: Tensor) -> Tensor:
            found = of_inputs(problem.asked_inputs(raw))
            return gaussian.log_probs(*gaussian.predict(posterior, found), scale)

        return GaussianPosterior(
            problem,
            predict=predict,
            features=of_inputs,
            heads=lambda num, rng: scale * gaussian.draw(posterior, num, rng),
            selected_settings=selected,
        )

    def _train(self, problem: Problem, x: Tensor, y: Tensor, weight: Tensor, rng: Rng) -> Tensor:
        """Adam on the weighted squared error from a fresh network."""

        def loss(theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            return mean_squared_error(problem.model.logits(theta, x), y, weight)

        def gradient(theta: Tensor, _: Tensor, rng: Rng) -> tuple[Tensor, None]:
            batch = random_batch(problem, self.batch_size, rng, x, y, weight)
            return autodiff.grad(loss)(theta, *batch), None

        theta = problem.model.init(rng("theta"), device=problem.device, dtype=problem.dtype)
        return train(
            gradient,
            lambda gradient, moments, _: adam(gradient, moments, self.step_size),
            theta,
            start(theta),
            problem,
            rng,
            num_steps=self.num_steps,
        )


def _regression_targets(coreset: Coreset, problem: Problem) -> Tensor:
    """Real-valued targets (M, classes): the coreset's own, or centred one-hot labels."""
    if coreset.is_soft:
        return coreset.y.to(problem.device, problem.dtype)
    one_hot = F.one_hot(coreset.y, problem.num_classes).to(problem.device, problem.dtype)
    return one_hot - 1 / problem.num_classes
