r"""Laplace's approximation on the last layer (MacKay 1992; Daxberger et al. 2021): a trained
network under a Gaussian over its head.

The network is trained to the mode of the log-posterior by Adam. With features $\phi_m$ (a 1
appended for the bias), class probabilities $p_m$ there and prior precision $\delta$ of the head,
the negative Hessian in the head's weights is exactly

$$ H = \sum_m w_m \left(\operatorname{diag} p_m - p_m p_m^\top\right) \otimes \phi_m\phi_m^\top
   + \delta I, \qquad \Sigma = T H^{-1}, \qquad
   f(x) \sim \mathcal N\left(\hat f(x),\; J_x \Sigma J_x^\top\right), \quad
   J_x = I_k \otimes \phi(x)^\top $$

since the head is linear. With $L = \operatorname{diag}\sqrt p - p\sqrt p^\top$ we have
$\operatorname{diag} p - pp^\top = LL^\top$, so that $H = U^\top U + \delta I$ with one row of $U$ a
point and class, and nothing of the head's own size need be built:

$$ J_x H^{-1} J_x^\top = \delta^{-1}\left(\lVert\phi\rVert^2 I_k
   - K_x^\top (\delta I + UU^\top)^{-1} K_x\right), \qquad
   (UU^\top)_{ma, nb} = \phi_m^\top\phi_n (L_m^\top L_n)_{ab}, \;
   (K_x)_{ma, c} = \phi_m^\top\phi(x) (L_m)_{ca} $$

Predictions: `probit` is $\operatorname{softmax}(\hat f_c / \sqrt{1 + \frac\pi8 v_c})$ with the
variances $v_c$; `mc` averages softmax over draws of the head, $H^{-1}(U^\top\epsilon + \sqrt\delta\,
\epsilon')$ around $\hat\beta$, each one function of all inputs. The algebra is in float64 whatever
the network is in.

Cost: `num_steps` gradients on at most `batch_size` points; one Cholesky factor of Mk × Mk for M
points and k classes.

Deviations:
1. Exact in the last layer, with all correlations between classes; no Kronecker factors, no
   diagonal.
2. With `choose_prior` = marginal the last layer's prior precision maximises the Laplace evidence
   (`evidence.py`) after the network was trained under `prior_scale`; the network is not trained
   again.
3. A regression has the curvature $\sum_m w_m \phi_m\phi_m^\top / \sigma^2 + \delta I$, and its
   predictions need no approximation (`regression_head.py`).
4. Temperature and prior are those of the samplers: $\Sigma$ is that of the posterior to the power
   1/T, whose mode does not depend on T.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, Positive, Range
from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.likelihood import BOTH
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.inference import density, regression_head
from pseudocore.inference.evidence import best_precision
from pseudocore.inference.posterior import GaussianPosterior, Posterior, average
from pseudocore.training.loop import FitSettings, train
from pseudocore.training.optimisers import Moments, adam, cosine, start

MAX_ROWS = 10_000
"""Rows of the largest matrix that is factored: points times classes."""


class HeadPosterior(NamedTuple):
    """A Gaussian over the last layer's weights around a trained network, at temperature 1."""

    theta: Tensor  # (parameters,)
    statistics: dict[str, Tensor] | None  # of batch norm, on the coreset
    features: Tensor  # φ, (M, h + 1), in float64 as all that follow
    roots: Tensor  # √w L, (M, classes, classes)
    factor: Tensor  # inverse Cholesky factor of δI + UUᵀ, (M k, M k)
    precision: float  # δ


@inferences.register("laplace", kind="laplace", paper="Daxberger et al. 2021, arXiv 2106.14806")
@dataclass(frozen=True, kw_only=True)
class Laplace(FitSettings):
    """A trained network under a Gaussian over its last layer, from exact curvature at the mode."""

    tasks = BOTH

    step_size: Positive = 3e-3
    """Adam's first step size; it falls to 0 along a cosine."""
    temperature: Positive = 1.0
    """T: the covariance is T times that of the posterior."""
    prior: Literal["problem", "isotropic", "fan-in"] = "problem"
    """The problem's own prior, or another: Gaussian on all parameters alike, or by each layer's
    fan-in.
    """
    prior_scale: Annotated[float | None, Range(above=0)] = None
    """Scale of the prior: in units of one over the root of the fan-in, or for isotropic of the
    parameters themselves. Defaults to the problem's own.
    """
    choose_prior: Literal["given", "marginal"] = "given"
    """Scale of the last layer's prior: prior_scale as given, or the scale of the largest marginal
    likelihood, given the network.
    """
    predictive: Literal["probit", "mc"] = "probit"
    """From Gaussian logits to probabilities: in closed form, or as an average over num_draws."""
    num_draws: Count = 100
    """Draws of the head, for mc."""

    def fit(self, problem: Problem, coreset: Coreset, rng: Rng) -> Posterior:
        if problem.task == "regression":
            return self._regression(problem, coreset, rng)
        posterior = self.posterior(problem, coreset, rng)

        def features(x: Tensor) -> Tensor:
            return _features_and_logits(problem, posterior.theta, x, posterior.statistics)[0]

        def heads(num: int, rng: Rng) -> Tensor:
            return draw_heads(problem, posterior, num, rng, self.temperature)

        def probit(raw: Tensor) -> Tensor:
            mean, covariance = logit_covariance(problem, posterior, problem.asked_inputs(raw))
            variance = self.temperature * covariance.diagonal(dim1=1, dim2=2)
            logits = mean * (1 + math.pi / 8 * variance).rsqrt()
            return logits.log_softmax(1).to(problem.dtype)

        drawn = heads(self.num_draws if self.predictive == "mc" else 0, rng("draws"))

        def mc(raw: Tensor) -> Tensor:
            inputs = features(problem.asked_inputs(raw))
            return average((inputs @ head).log_softmax(1) for head in drawn)[0].to(problem.dtype)

        selected = {}
        if self.choose_prior == "marginal":
            under = density.under(problem, self.prior, self.prior_scale)
            selected = {"prior_scale": math.sqrt(_fan_in(under) / posterior.precision)}
        return GaussianPosterior(
            problem,
            predict=mc if len(drawn) else probit,
            features=features,
            heads=heads,
            selected_settings=selected,
        )

    def posterior(self, problem: Problem, coreset: Coreset, rng: Rng) -> HeadPosterior:
        """The mode, and the Gaussian over the head around it."""
        problem = density.under(problem, self.prior, self.prior_scale)
        if (size := len(coreset) * problem.num_classes) > MAX_ROWS:
            raise ConfigError(
                f"laplace factors a matrix of {size}×{size}, points times classes; above "
                f"{MAX_ROWS} use last-layer-vi, sgd or ensemble",
                code="too-many-points",
                rows=size,
                limit=MAX_ROWS,
            )
        theta = self._mode(problem, coreset, rng)
        with torch.no_grad():
            x = problem.inputs(coreset.x)
            statistics = problem.model.statistics(theta, x) or None
            features, logits = _features_and_logits(problem, theta, x, statistics)
            p = logits.softmax(1)
            roots = p.sqrt().diag_embed() - p[:, :, None] * p.sqrt()[:, None, :]  # L
            roots = coreset.weight.to(p).sqrt()[:, None, None] * roots
            gram = torch.einsum("mn,mca,ncb->manb", features @ features.mT, roots, roots)
            gram = gram.reshape(size, size)
            precision = self._head_precision(problem, theta, gram)
            identity = torch.eye(size, device=gram.device, dtype=gram.dtype)
            root, failed = torch.linalg.cholesky_ex(gram + precision * identity)
            if failed or not root.isfinite().all():
                raise RunError(
                    "laplace found no curvature it could invert: training may have diverged (a "
                    f"smaller step_size), or prior_scale = {problem.prior.scale:g} is too extreme",
                    code="no-curvature",
                    prior_scale=problem.prior.scale,
                )
            factor = torch.linalg.solve_triangular(root, identity, upper=False)
        return HeadPosterior(theta, statistics, features, roots, factor, precision)

    def _regression(self, problem: Problem, coreset: Coreset, rng: Rng) -> Posterior:
        """As for classes, with the curvature of a Gaussian likelihood: predictions are closed."""
        if self.predictive == "mc":
            raise ConfigError(
                "predictive = 'mc' of laplace has no effect on a regression, whose predictions are"
                " in closed form; leave it out",
                code="unused-option",
                options=["predictive"],
            )
        problem = density.under(problem, self.prior, self.prior_scale)
        theta = self._mode(problem, coreset, rng)
        with torch.no_grad():
            x = problem.inputs(coreset.x)
            statistics = problem.model.statistics(theta, x) or None
            features = problem.model.features(theta, x, statistics).double()
            y, weight = (part.double() for part in problem.targets_and_weight(coreset))
            rows = regression_head.with_one(features) * weight.sqrt()[:, None]
            gram = rows.mT @ rows / problem.gaussian.relative_noise**2
            precision = self._head_precision(problem, theta, gram)
            head = regression_head.fit(problem, features, y, weight, scale=precision**-0.5)
            own, bias = problem.model.head(theta.double())
            head = head._replace(mean=torch.cat([own, bias[:, None]], 1).mT)
        selected = {}
        if self.choose_prior == "marginal":
            selected = {"prior_scale": math.sqrt(_fan_in(problem) / precision)}
        return regression_head.posterior(
            problem,
            theta,
            statistics,
            head,
            temperature=self.temperature,
            selected_settings=selected,
        )

    def _mode(self, problem: Problem, coreset: Coreset, rng: Rng) -> Tensor:
        """The parameters of largest log-posterior, by Adam."""
        log_prior = density.log_prior(problem, "problem", None, len(coreset))
        log_density = density.estimated(problem, coreset, log_prior, self.batch_size)

        def gradient(theta: Tensor, _: Tensor, rng: Rng) -> tuple[Tensor, None]:
            return -density.grad_log_density(log_density, theta, rng)[0], None

        def optimiser(gradient: Tensor, moments: Moments, _: Tensor) -> tuple[Tensor, Moments]:
            return adam(gradient, moments, self.step_size * cosine(moments.steps, self.num_steps))

        options: Any = {"device": problem.device, "dtype": problem.dtype}
        theta = problem.model.init(rng("theta"), num=1, **options)
        num_steps = self.num_steps
        return train(gradient, optimiser, theta, start(theta), problem, rng, num_steps=num_steps)[0]

    def _head_precision(self, problem: Problem, theta: Tensor, gram: Tensor) -> float:
        if self.choose_prior == "given":
            # A huge scale squared by ** would raise.
            return _fan_in(problem) / problem.prior.scale / problem.prior.scale
        weight, bias = problem.model.head(theta.double())
        squared_norm = float(weight.square().sum() + bias.square().sum())
        return best_precision(torch.linalg.eigvalsh(gram), squared_norm, self.temperature)


def _fan_in(problem: Problem) -> int:
    """Of the head, in units of which its prior's scale is."""
    return problem.model.num_features if problem.prior.kind == "fan-in" else 1


def logit_covariance(
    problem: Problem, posterior: HeadPosterior, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean (n, classes) and covariance (n, classes, classes) of the logits at network inputs, at
    temperature 1, in float64.
    """
    features, mean = _features_and_logits(problem, posterior.theta, x, posterior.statistics)
    cross = torch.einsum("nm,mca->nmac", features @ posterior.features.mT, posterior.roots)
    explained = posterior.factor @ cross.flatten(1, 2)  # of K_x (n, M k, classes)
    identity = torch.eye(mean.shape[1], device=mean.device, dtype=mean.dtype)
    norms = features.square().sum(1)[:, None, None] * identity
    return mean, (norms - explained.mT @ explained) / posterior.precision


def draw_heads(
    problem: Problem, posterior: HeadPosterior, num: int, rng: Rng, temperature: float
) -> Tensor:
    """Draws of the head at a temperature, (num, h + 1, classes), in float64."""
    phi, roots, factor = posterior.features, posterior.roots, posterior.factor
    like: Any = {"device": phi.device, "dtype": phi.dtype}
    weight, bias = problem.model.head(posterior.theta.double())
    mean = torch.cat([weight, bias[:, None]], 1).mT  # (h + 1, classes)
    # Uᵀε + √δ ε' has covariance H, so that H⁻¹ of it has H⁻¹.
    rows = rng("points").normal(num, len(factor), **like)
    prior = posterior.precision**0.5 * rng("prior").normal(num, *mean.shape, **like)
    z = torch.einsum("mh,mca,nma->nhc", phi, roots, rows.view(num, *roots.shape[:2])) + prior
    along = torch.einsum("mh,mca,nhc->nma", phi, roots, z).flatten(1)  # U z
    solved = (along @ factor.mT @ factor).view(num, *roots.shape[:2])
    correction = torch.einsum("mh,mca,nma->nhc", phi, roots, solved)  # Uᵀ (δI + UUᵀ)⁻¹ U z
    drawn: Tensor = mean + temperature**0.5 * (z - correction) / posterior.precision
    return drawn


def _features_and_logits(
    problem: Problem, theta: Tensor, x: Tensor, statistics: dict[str, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Features with a 1 appended (n, h + 1) and logits (n, classes), in float64."""
    features = problem.model.features(theta, x, statistics).double()
    weight, bias = problem.model.head(theta.double())
    ones = features.new_ones(len(features), 1)
    return torch.cat([features, ones], 1), features @ weight.mT + bias
