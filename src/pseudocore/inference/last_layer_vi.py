r"""Last-layer variational inference: a network trained on the coreset under a Gaussian over its last
layer.

The prediction of VBPC (arXiv 2502.21143, §3): a fresh $\theta$ is trained on $(u, \hat y)$ with a
Gaussian likelihood. Then $m^*$ and $V^*$ of `objectives/last_layer_gaussian.py` give every test
point's predictive in one forward pass,

$$ p(y \mid x) \approx \operatorname{softmax}_y\left(s\, m^{*\top}\phi(x) / \sqrt{1 + \tfrac\pi8
s^2\Sigma^*(x)}\right). $$

Works on any coreset: integer labels become centred one-hot targets, weights multiply the
likelihood, and an intercept is one more feature. Where the features are the inputs themselves, a
linear network, and the targets are labels, regression on them is a poor likelihood. The last layer
has the categorical one instead, with the best Gaussian under Böhning's bound
(`last_layer_categorical.py`), and nothing is trained.

The ridge, the prior variance and the logit scale $s$ are those stored with the coreset; where there
are none they are fitted to labels left out of it (`left_out.py`).

Cost: `num_steps` gradients on at most `batch_size` points; one Cholesky factor of size min(M, h);
no draws.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pseudocore.core.config import Count, Positive, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.likelihood import BOTH
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.inference import left_out, regression_head
from pseudocore.inference.choose import outside
from pseudocore.inference.evidence import best_gaussian
from pseudocore.inference.left_out import Likelihood, Points
from pseudocore.inference.posterior import GaussianPosterior, Posterior
from pseudocore.objectives import last_layer_gaussian as gaussian
from pseudocore.objectives.last_layer_gaussian import mean_squared_error
from pseudocore.objectives.multiformation import decoded
from pseudocore.runtime import autodiff
from pseudocore.training.loop import FitSettings, random_batch, train
from pseudocore.training.optimisers import adam, start

INTERCEPT = 10.0
"""Prior standard deviation of an intercept, relative to that of an output at a typical point."""

BATCH = 1000
"""Points whose features are computed at once."""

MAX_STATISTICS = 5000
"""Points that batch norm takes its statistics from."""

OptionalPositive = Annotated[float | None, Range(above=0)]


@inferences.register("last-layer-vi", kind="variational", paper="VBPC 2025, arXiv 2502.21143")
@dataclass(frozen=True, kw_only=True)
class LastLayerVI(FitSettings):
    """Trained features under an exact Gaussian last layer."""

    tasks = BOTH

    batch_size: Count = 512
    step_size: Positive = 3e-4
    """Adam's step size."""
    head_start: Literal["zero", "random"] = "zero"
    """Where training starts the last layer. A random one of many classes is all error, which
    training removes at the features' cost.
    """
    likelihood: Literal["auto", "gaussian", "categorical"] = "auto"
    """Of the last layer. Defaults to categorical for labels under a linear network, whose features
    are the inputs, and to gaussian otherwise.
    """
    logit_scale: OptionalPositive = None
    """Factor from last-layer outputs to logits. Defaults to the coreset's own, else fitted."""
    prior_variance: OptionalPositive = None
    """Prior variance of a last-layer output at a typical point. Defaults to the coreset's own, else
    fitted.
    """
    ridge: OptionalPositive = None
    """Observation noise of a point of weight 1, relative, of the gaussian likelihood. Defaults to
    the coreset's own, else fitted.
    """
    intercept: Annotated[float | None, Range(low=0)] = None
    """Prior standard deviation of an intercept, relative to that of an output at a typical point; 0
    is none. Defaults to the coreset's own, and to 10 for a coreset that brings no settings.
    """
    choose_prior: Literal["left-out", "marginal"] = "left-out"
    """How settings are fitted: to left-out labels, or prior_variance and ridge by the largest
    marginal likelihood under the Gaussian one, in place of stored values.
    """

    def fit(self, problem: Problem, coreset: Coreset, rng: Rng) -> Posterior:
        if problem.task == "regression":
            return self._regression(problem, coreset, rng)
        likelihood, theta = self._likelihood(problem, coreset), _initial(problem, rng)
        known = self._known(coreset, likelihood)
        points, statistics = _points(problem, coreset, theta, rng("statistics"))
        fitted = left_out.choose(points, likelihood, known)
        if not is_linear(problem):
            theta = self._train(problem, coreset, points.y, theta, rng)
            points, statistics = _points(problem, coreset, theta, rng("statistics"))
        if self.choose_prior == "marginal":
            fitted |= best_gaussian(
                points.features,
                points.y,
                points.weight,
                ridge=self.ridge,
                intercept=known["intercept"],
            )._asdict()
        settings = {**known, **fitted}
        with torch.no_grad():
            posterior = left_out.fit(points, likelihood, settings)
        scale = settings["logit_scale"]

        def of_inputs(x: Tensor) -> Tensor:
            return problem.model.features(theta, x, statistics).double()

        def predict(raw: Tensor) -> Tensor:
            outputs = gaussian.predict(posterior, of_inputs(problem.asked_inputs(raw)))
            return gaussian.log_probs(*outputs, scale).to(problem.dtype)

        return GaussianPosterior(
            problem,
            predict=predict,
            features=lambda x: gaussian.with_constant(posterior, of_inputs(x)),
            heads=lambda num, rng: scale * gaussian.draw(posterior, num, rng),
            selected_settings=fitted,
        )

    def _regression(self, problem: Problem, coreset: Coreset, rng: Rng) -> Posterior:
        """Trained features under the exact posterior of a linear regression, with the problem's own
        noise and prior.
        """
        own = ("logit_scale", "prior_variance", "ridge", "intercept")
        given = [name for name in own if getattr(self, name) is not None]
        given += ["likelihood"] if self.likelihood == "categorical" else []
        given += ["choose_prior"] if self.choose_prior == "marginal" else []
        if given:
            raise ConfigError(
                f"{' and '.join(given)} of last-layer-vi have no effect on a regression, whose prior"
                " and noise are the problem's (prior_scale, target_noise); leave them out",
                code="unused-option",
                options=given,
            )
        theta = _initial(problem, rng)
        if not is_linear(problem):
            y = problem.targets(coreset.targets)
            theta = self._train(problem, coreset, y, theta, rng)
        points, statistics = _points(problem, coreset, theta, rng("statistics"))
        with torch.no_grad():
            head = regression_head.fit(problem, points.features, points.y, points.weight)
        return regression_head.posterior(problem, theta, statistics, head)

    def settings(self, problem: Problem, coreset: Coreset, rng: Rng) -> dict[str, float]:
        """What to store with a coreset that brings no settings: those that fit the labels of
        training points outside it best, or its own where it holds them all.
        """
        likelihood, theta = self._likelihood(problem, coreset), _initial(problem, rng)
        known = self._known(coreset, likelihood)
        points, statistics = _points(problem, coreset, theta, rng("statistics"))
        index = outside(problem, coreset, rng("held-out"))
        held_out = None
        if len(index):
            features = _features(problem, theta, problem.data.train.x[index], statistics)
            y = problem.train_y[index.to(problem.device)]
            held_out = Points(features, _one_hot(y, problem), y, features.new_ones(len(y)))
        return {**known, **left_out.choose(points, likelihood, known, held_out)}

    def _likelihood(self, problem: Problem, coreset: Coreset) -> Likelihood:
        gaussian_asked = self.ridge is not None or self.choose_prior == "marginal"
        if self.likelihood == "auto":
            of_labels = coreset.targets is coreset.y
            is_categorical = is_linear(problem) and of_labels and not gaussian_asked
            return "categorical" if is_categorical else "gaussian"
        if self.likelihood == "categorical" and gaussian_asked:
            name = "choose_prior = 'marginal'" if self.ridge is None else "ridge"
            raise ConfigError(
                f"{name} is of the gaussian likelihood, and likelihood = 'categorical' was given; "
                "leave one of them out",
                code="conflicting-options",
                options=("likelihood", name.split()[0]),
            )
        return self.likelihood

    def _known(self, coreset: Coreset, likelihood: Likelihood) -> dict[str, float]:
        """The settings that are given or stored; stored ones count for the likelihood they were
        made for.
        """
        if self.choose_prior == "marginal" and self.prior_variance is not None:
            raise ConfigError(
                f"prior_variance = {self.prior_variance:g} was given and choose_prior = 'marginal' "
                "would select it; leave one of them out",
                code="conflicting-options",
                options=("prior_variance", "choose_prior"),
            )
        names = (*left_out.DEFAULTS["gaussian"], "intercept")
        stored = {name: value for name, value in coreset.learned.items() if name in names}
        if "logit_scale" in stored and ("ridge" in stored) == (likelihood == "gaussian"):
            known = {**left_out.DEFAULTS[likelihood], "intercept": 0.0, **stored}
        else:
            known = {"intercept": INTERCEPT}
        given = {name: getattr(self, name) for name in names}
        return known | {name: value for name, value in given.items() if value is not None}

    def _train(
        self, problem: Problem, coreset: Coreset, y: Tensor, theta: Tensor, rng: Rng
    ) -> Tensor:
        """Adam on the weighted squared error."""
        x, weight = problem.inputs(coreset.x), coreset.weight.to(problem.device, problem.dtype)
        y = y.to(problem.dtype)
        if self.head_start == "zero":
            num = problem.num_classes * (problem.model.num_features + 1)
            theta = torch.cat([theta[:-num], torch.zeros_like(theta[-num:])])

        def loss(theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            return mean_squared_error(problem.model.logits(theta, x), y, weight)

        def gradient(theta: Tensor, _: Tensor, rng: Rng) -> tuple[Tensor, None]:
            batch = random_batch(problem, self.batch_size, rng, x, y, weight)
            return autodiff.grad(loss)(theta, *batch), None

        return train(
            gradient,
            lambda gradient, moments, _: adam(gradient, moments, self.step_size),
            theta,
            start(theta),
            problem,
            rng,
            num_steps=self.num_steps,
        )


def calibrated(problem: Problem, coreset: Coreset, rng: Rng) -> Coreset:
    """With the settings of its last layer in its provenance, where no method put any there and its
    targets are labels.
    """
    if problem.task == "regression":
        return coreset
    if coreset.targets is not coreset.y or "logit_scale" in coreset.learned:
        return coreset
    shown = decoded(problem, coreset) if coreset.is_encoded else coreset
    settings = LastLayerVI().settings(problem, shown, rng)
    return coreset.with_provenance(
        posterior={**coreset.learned, **settings}, fitted_settings=sorted(settings)
    )


def with_settings(coreset: Coreset, settings: Mapping[str, float]) -> Coreset:
    """With these settings of its last layer where `calibrated` fitted its own; a coreset whose
    method learned them keeps them.
    """
    if not settings or "fitted_settings" not in coreset.provenance:
        return coreset
    return coreset.with_provenance(posterior={**coreset.learned, **settings})


def _initial(problem: Problem, rng: Rng) -> Tensor:
    theta: Tensor = problem.model.init(rng("theta"), device=problem.device, dtype=problem.dtype)
    return theta


def is_linear(problem: Problem) -> bool:
    """Whether all parameters are the head's."""
    head = (problem.model.num_features + 1) * problem.num_classes
    return problem.model.num_parameters == head


def _points(
    problem: Problem, coreset: Coreset, theta: Tensor, rng: Rng
) -> tuple[Points, dict[str, Tensor] | None]:
    """The coreset as the last layer sees it, in float64, and its batch-norm statistics."""
    some = coreset.x
    if len(some) > MAX_STATISTICS:
        some = some[rng.permutation(len(some))[:MAX_STATISTICS]]
    with torch.no_grad():
        statistics = problem.model.statistics(theta, problem.inputs(some)) or None
    features = _features(problem, theta, coreset.x, statistics)
    targets = problem.targets(coreset.targets)
    weight = coreset.weight.to(features)
    if problem.task == "regression":
        return Points(features, targets.to(features), targets.to(features), weight), statistics
    if coreset.is_soft:
        return Points(features, coreset.y.to(features), targets.to(features), weight), statistics
    return Points(features, _one_hot(targets, problem), targets, weight), statistics


@torch.no_grad()
def _features(
    problem: Problem, theta: Tensor, raw: Tensor, statistics: dict[str, Tensor] | None
) -> Tensor:
    """Features (n, h) of raw inputs, in float64."""
    model = problem.model
    parts = [
        model.features(theta, problem.inputs(part), statistics).double()
        for part in torch.split(raw, BATCH)
    ]
    return torch.cat(parts)


def _one_hot(y: Tensor, problem: Problem) -> Tensor:
    """Centred one-hot labels (n, classes), in float64."""
    return F.one_hot(y, problem.num_classes).double() - 1 / problem.num_classes
