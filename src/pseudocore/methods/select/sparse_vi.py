r"""SparseVI and the quasi-Newton coreset: real points whose weights minimise the reverse KL.

Campbell, Beronov (2019), "Sparse Variational Inference: Bayesian Coresets from Scratch", and Naik,
Rousseau, Campbell (2022), "Fast Bayesian Coresets via Subsampling and Quasi-Newton Refinement".
With $f_n$ the log-likelihood of point n, $\pi_w(\theta) \propto \exp(\sum_n w_n
f_n(\theta))\,\pi_0(\theta)$ and covariances under $\pi_w$,

$$ \nabla_w D_{KL}[\pi_w \| \pi_1] = -\operatorname{Cov}\big[f,\, f^\top (1 - w)\big], \qquad
   G = \operatorname{Cov}[f, f] \succeq 0 . $$

**SparseVI** begins without points and adds, of all points, the one whose log-likelihood correlates
most with what is left,

$$ n_{t+1} = \operatorname*{argmax}_n \operatorname{Corr}\big[f_n,\, f^\top (1 - w)\big] , $$

then improves all weights. The **quasi-Newton coreset** begins with random points, each weighing as
much as it stands for, and improves their weights alone. Both improve them by

$$ w \leftarrow \operatorname*{argmin}_{v \ge 0} \tfrac12 (v - w)^\top (G_S + \tau D)(v - w) +
   \nabla_w D_{KL}^\top (v - w) , $$

the quasi-Newton step of Naik et al. with $w \ge 0$ kept inside it and $D = \max(\operatorname{diag}
G_S, \overline{\operatorname{diag} G_S})$. $\pi_w$ is Laplace's
approximation on the points, of the last layer (`objectives/point_likelihoods.py`), and no posterior
of all data is needed. $\tau$ grows until the step raises the evidence lower bound $\mathbb
E_{\pi_w}[\sum_n f_n + \log \pi_0 - \log \pi_w]$, which is minus the KL but for a constant; the
gradient is that of the same bound over the same draws.

Cost per step: a gradient of the data under `num_projections` draws and a pass for each trial, and
Newton steps on the points.

Deviations:
  D1. SparseVI takes quasi-Newton steps too, where the paper's are of Adam; and every round adds a new
      point, of a class that has room unless `balanced` is false.
  D2. Weights stay non-negative within the step, where the paper cuts negative ones off after it.
  D3. $\tau$ is searched for at every step; in the paper it is fixed, and the length of the first
      steps is searched for.
  D4. The gradient goes through mode and curvature of Laplace's approximation. The papers' covariance
      under its draws is the same for a Gaussian posterior, and misleads where $\pi_w$ is skewed.
"""

import warnings
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from pseudocore.core.config import Count, Range
from pseudocore.core.likelihood import BOTH
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import small_models
from pseudocore.objectives.point_likelihoods import PointModel, centred, point_model
from pseudocore.objectives.small_models import Gaussian, draws_of
from pseudocore.runtime.reporting import report
from pseudocore.selection.budgets import BalancedBudget, groups, in_order, random_points
from pseudocore.selection.matching import non_negative
from pseudocore.training.pretrain import Pretraining

NUM_TRIALS, MORE, LESS, LEAST = 8, 5.0, 0.3, 1e-3
"""Steps tried before the weights stay; by what damping is multiplied for the next trial, and for
the next step, and its least value.
"""
LARGE_ERROR, LARGE_SHARE = 0.5, 0.1
"""Uncertainty of the KL that is worth a warning: in nats, where it is also this share of it."""
NUM_FRESH = 200
"""Draws at least that measure it."""
TINY = 1e-30


class View(NamedTuple):
    """What a step sees: some of the data under draws of the posterior on the points."""

    noise: Tensor  # standard normal (draws, p); the same for every length of a step
    batch: Tensor  # training points (b,)
    scale: float  # examples that each of them stands for


class Fit(NamedTuple):
    """Points in use, and the posterior on them."""

    places: Tensor  # (m,)
    weight: Tensor  # (m,)
    posterior: Gaussian
    damping: float  # of the next step


@dataclass(frozen=True, kw_only=True)
class SparseSettings(Pretraining, BalancedBudget):
    """Settings of both."""

    tasks = BOTH
    learns_total_weight: ClassVar[bool] = True
    assumes: ClassVar[str | None] = "hmc"

    num_projections: Annotated[int, Range(low=2)] = 500
    """Draws of the posterior on the points at every step."""
    data_batch: Annotated[int | None, Range(low=1)] = None
    """Random training points behind a step. Defaults to all of them."""
    damping: Annotated[float, Range(above=0)] = 10.0
    """What keeps the first step short, in units of the variances of the points' log-likelihoods;
    later steps adapt it.
    """

    @abstractmethod
    def fit(self, problem: Problem, points: PointModel, rng: Rng) -> Fit:
        """Points in any order, and their weights."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        points = point_model(problem, self, rng, name=methods.name_of(self))
        fit = self.fit(problem, points, rng)
        order = in_order(problem, self, fit.places)
        coreset = problem.subset(fit.places[order].cpu(), fit.weight[order].cpu())
        return coreset.with_provenance(**self._bound(points, fit, rng("end")))

    def _bound(self, points: PointModel, fit: Fit, rng: Rng) -> dict[str, float]:
        """The evidence lower bound, and the standard error of one by `num_projections` draws."""
        more = replace(self, num_projections=max(NUM_FRESH, self.num_projections))
        view = more._view(points, rng)
        total, own = _log_likelihoods(points, fit, view)
        variance = float((total - fit.weight @ own).var())
        error = (variance / self.num_projections) ** 0.5
        if error > LARGE_ERROR and error > LARGE_SHARE * variance / 2:  # about the KL
            warnings.warn(
                f"{methods.name_of(self)} compared weights by {self.num_projections} draws, which "
                f"leave their KL uncertain by {error:.2g} nats; more num_projections would tell",
                stacklevel=3,
            )
        bound = float(_bound(points, fit.posterior, view))
        return {"evidence_bound": bound, "bound_error": error}

    def _view(self, points: PointModel, rng: Rng) -> View:
        n, p = len(points.x), points.num_parameters
        noise = rng("draws").normal(self.num_projections, p).to(points.x)
        batch, scale = torch.arange(n, device=points.x.device), 1.0
        if self.data_batch is not None and self.data_batch < n:
            batch = rng("batch").permutation(n)[: self.data_batch].to(batch)
            scale = n / self.data_batch
        return View(noise, batch, scale)

    def _improved(self, points: PointModel, fit: Fit, view: View) -> Fit | None:
        """The fit after a step that raises the bound; None where no length does."""
        before, slope = _ascent(points, fit, view)
        own = centred(points.at(fit.places).log_likelihood(draws_of(fit.posterior, view.noise)))
        gram = own @ own.mT
        scale = gram.diagonal().mean().clamp_min(TINY)
        gram, slope = gram / scale, slope / scale
        slope = slope + gram @ fit.weight
        damping = fit.damping
        for _ in range(NUM_TRIALS):
            ridge = damping * gram.diagonal().clamp_min(1.0)
            weight = non_negative(gram + ridge.diag(), slope + ridge * fit.weight)
            posterior = points.posterior(fit.places, weight, start=fit.posterior.mean)
            if _bound(points, posterior, view) > before:
                less = max(LEAST, LESS * damping)
                return Fit(fit.places, weight, posterior, less)
            damping *= MORE
        return None

    def _refined(self, points: PointModel, fit: Fit, num: int, rng: Rng) -> Fit:
        """The fit after at most `num` steps."""
        for step in range(num):
            new = self._improved(points, fit, self._view(points, rng(step)))
            if new is None:
                break
            fit = new
        return fit


@methods.register(
    "sparse-vi",
    kind="select",
    paper="Campbell & Beronov 2019, arXiv 1906.03329",
    targets="posterior",
    weights="yes",
)
@dataclass(frozen=True, kw_only=True)
class SparseVI(SparseSettings):
    """Weighted points added one by one as each most lowers the reverse KL."""

    damping: Annotated[float, Range(above=0)] = 0.01
    """What keeps the first step after each point short, in units of the variances of the points'
    log-likelihoods; later steps adapt it.
    """
    num_inner: Count = 3
    """Steps on the weights after each point."""

    def fit(self, problem: Problem, points: PointModel, rng: Rng) -> Fit:
        device, parts = points.x.device, groups(problem, self)
        group = torch.empty(len(points.x), dtype=torch.int64, device=device)
        for number, part in enumerate(parts):
            group[part.indices.to(device)] = number
        room = torch.tensor([part.num for part in parts], device=device)
        taken = torch.zeros_like(group, dtype=torch.bool)
        empty = torch.empty(0, dtype=torch.int64, device=device)
        now = Fit(
            empty,
            points.x.new_empty(0),
            points.posterior(empty, points.x.new_empty(0)),
            self.damping,
        )
        num = int(room.sum())
        if num == len(group):  # all there is, as it is
            every, ones = torch.arange(num, device=device), points.x.new_ones(num)
            return Fit(every, ones, points.posterior(every, ones), self.damping)
        for pick in range(num):
            view = self._view(points, rng("point", pick, "select"))
            open = ~taken & (room > 0)[group]
            candidates = view.batch if bool(open[view.batch].any()) else open.nonzero().flatten()
            best = self._best(points, now, view, candidates, open[candidates])
            taken[best] = True
            room[group[best]] -= 1
            index = torch.cat([now.places, best])
            weight = torch.cat([now.weight, now.weight.new_zeros(1)])
            now = Fit(index, weight, now.posterior, self.damping)
            now = self._refined(points, now, self.num_inner, rng("point", pick))
            report("selecting", pick + 1, num)
        return now

    def _best(
        self, points: PointModel, fit: Fit, view: View, candidates: Tensor, open: Tensor
    ) -> Tensor:
        """The open candidate (1,) of the highest correlation with what is left."""
        total, own = _log_likelihoods(points, fit, view)
        left = centred((total - fit.weight @ own)[None])[0]
        vectors = centred(points.at(candidates).log_likelihood(draws_of(fit.posterior, view.noise)))
        correlation = vectors @ left / vectors.norm(dim=1).clamp_min(TINY)
        return candidates[correlation.masked_fill(~open, -torch.inf).argmax(0, keepdim=True)]


@methods.register(
    "quasi-newton",
    kind="select",
    paper="Naik et al. 2022, arXiv 2203.09675",
    targets="posterior",
    weights="yes",
)
@dataclass(frozen=True, kw_only=True)
class QuasiNewton(SparseSettings):
    """Random points with the weights of least reverse KL, by a quasi-Newton method."""

    num_refinements: Count = 50
    """Steps on the weights."""

    def fit(self, problem: Problem, points: PointModel, rng: Rng) -> Fit:
        index, weight = random_points(problem, self, rng("points"))
        index, weight = index.to(points.x.device), weight.to(points.x)
        now = Fit(index, weight, points.posterior(index, weight), self.damping)
        return self._refined(points, now, self.num_refinements, rng("steps"))


def _log_likelihoods(points: PointModel, fit: Fit, view: View) -> tuple[Tensor, Tensor]:
    """Of all data (draws,), and of the points in use (m, draws), under draws of their posterior."""
    thetas = draws_of(fit.posterior, view.noise)
    own = points.at(fit.places).log_likelihood(thetas)
    return view.scale * points.at(view.batch).log_likelihood(thetas).sum(0), own


def _bound(points: PointModel, posterior: Gaussian, view: View) -> Tensor:
    """E[Σ f + log π₀ − log π_w] over draws of π_w, but for a constant."""
    thetas = draws_of(posterior, view.noise)
    total = view.scale * points.at(view.batch).log_likelihood(thetas).sum(0)
    prior = -0.5 * thetas.square().sum(1) / points.model.prior**2
    bound: Tensor = (total + prior).mean() + 0.5 * torch.logdet(posterior.covariance)
    return bound


def _ascent(points: PointModel, fit: Fit, view: View) -> tuple[Tensor, Tensor]:
    """The bound, and its gradient in the weights (m,): through mode and curvature of Laplace's
    approximation, for the same noise.
    """
    model, (x, y), prior = points.model, points.examples(fit.places), points.model.prior
    thetas = draws_of(fit.posterior, view.noise)
    slopes = view.scale * points.at(view.batch).slopes(thetas) - thetas / prior**2

    def bound(weight: Tensor) -> Tensor:
        """To first order around the weights as they are."""
        posterior = small_models.laplace_near(model, x, y, weight, fit.posterior)
        reached = (draws_of(posterior, view.noise) * slopes).sum(1).mean()
        return reached + 0.5 * torch.logdet(posterior.covariance)

    return _bound(points, fit.posterior, view), grad(bound)(fit.weight)
