"""BPC-PCD against finite differences of the exact forward KL, and its chains against posteriors
known in closed form.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudocore import api
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import GaussianPrior, Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.data.augment import DSA
from pseudocore.inference.persistent_chains import Chains, Networks, gradient, move
from pseudocore.methods.bayes.bpc_pcd import BPCPersistentChains
from pseudocore.models.convnet import ConvNet
from pseudocore.models.dense import MLP
from pseudocore.objectives.kl_gradient import Points
from pseudocore.objectives.small_models import (
    Gaussian,
    Location,
    Regression,
    SmallModel,
    Softmax,
    draw,
    kl,
    posterior,
)
from pseudocore.runtime.loop import run
from pseudocore.testing import few_digits, small_problem
from pseudocore.workflows import references

MakeProblem = Callable[..., Problem]
Differentiate = Callable[[Callable[[Tensor], float], Tensor], Tensor]

DOUBLE = torch.float64


class Exact:
    """A Gaussian model, whose posteriors and their KL are exact."""

    def __init__(self, kind: str) -> None:
        rng = Rng(1)
        self.model: SmallModel
        self.model = Location(noise=0.8, prior=1.5) if kind == "location" else Regression(noise=0.7)
        x = 0.5 + rng("x").normal(30, 3, dtype=DOUBLE)
        y = x @ rng("theta").normal(3, 1, dtype=DOUBLE) + 0.7 * rng("y").normal(30, 1, dtype=DOUBLE)
        self.full = self.posterior(Points(x, y, torch.zeros(30, dtype=DOUBLE)))
        weight = (0.5 + 4 * rng("weight").uniform(4, dtype=DOUBLE)).log()
        self.points = Points(x[:4] + rng("noise").normal(4, 3, dtype=DOUBLE), y[:4] + 0.3, weight)

    def likelihood(self, thetas: Tensor, points: Points) -> Tensor:
        """Weights are logarithms, as those of the method."""
        x, y, weight = points
        return self.model.log_likelihood(thetas, x, y) @ weight.exp()

    def log_density(self, thetas: Tensor) -> Tensor:
        """Of the posterior on the points, up to a constant."""
        prior = -0.5 * thetas.square().sum(1) / self.model.prior**2
        return self.likelihood(thetas, self.points) + prior

    def posterior(self, points: Points) -> Gaussian:
        x, y, weight = points
        return posterior(self.model, x, y, weight.exp(), num_newton=1)

    def forward_kl(self, points: Points) -> float:
        return float(kl(self.full, self.posterior(points)))

    def finite_differences(self, differentiate: Differentiate) -> Points:
        def by_part(name: str) -> Tensor:
            at = getattr(self.points, name)
            return differentiate(
                lambda part: self.forward_kl(self.points._replace(**{name: part})), at
            )

        return Points(*map(by_part, Points._fields))


@pytest.fixture(params=["location", "regression"])
def exact(request: pytest.FixtureRequest) -> Exact:
    return Exact(request.param)


def sigma_points(gaussian: Gaussian) -> Tensor:
    """Draws whose mean and covariance are exactly the Gaussian's, so that the mean over them of
    anything quadratic is exact.
    """
    num = len(gaussian.mean)
    root = math.sqrt(num) * torch.linalg.cholesky(gaussian.covariance).mT
    return torch.cat([gaussian.mean + root, gaussian.mean - root])


def chains_from(thetas: Tensor, step_size: float) -> Chains:
    log_step = thetas.new_full((len(thetas),), math.log(step_size))
    return Chains(thetas, log_step, torch.zeros_like(thetas))


# --- the gradient


def test_gradient_is_that_of_the_exact_forward_kl(
    exact: Exact, differentiate: Differentiate
) -> None:
    """In points, targets and logarithms of weights, by finite differences."""
    own = exact.posterior(exact.points)
    ours, _ = gradient(exact.likelihood, exact.points, sigma_points(exact.full), sigma_points(own))
    theirs = exact.finite_differences(differentiate)
    for name in Points._fields:
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-6, atol=1e-7)
    assert theirs.x.abs().max() > 0.1
    assert theirs.weight.abs().max() > 0.1


def test_gap_is_the_gain_of_the_reference_in_log_likelihood(exact: Exact) -> None:
    positive, negative = (
        sigma_points(each) for each in (exact.full, exact.posterior(exact.points))
    )
    _, gap = gradient(exact.likelihood, exact.points, positive, negative)
    better, worse = (exact.likelihood(each, exact.points).mean() for each in (positive, negative))
    assert float(gap) == pytest.approx(float(better - worse), rel=1e-12)


def test_gradient_by_chains_is_unbiased(exact: Exact, differentiate: Differentiate) -> None:
    """Chains of their own, each at its end an independent draw of the estimate: |z| < 4."""
    num = 600
    start = Rng(2)("start").normal(num, 3, dtype=DOUBLE)
    chains = chains_from(start, 0.1)
    for number in range(80):
        chains, *_ = move(
            exact.log_density,
            chains,
            Rng(2)(number),
            num_leapfrog=5,
            rate=0.1 if number < 40 else 0.0,
        )
    positive = draw(exact.full, num, Rng(3))
    each = [
        gradient(exact.likelihood, exact.points, one, other)[0]
        for one, other in zip(positive.split(1), chains.z.split(1), strict=True)
    ]
    theirs = exact.finite_differences(differentiate)
    for name in ("x", "weight"):
        values = torch.stack([getattr(one, name) for one in each])
        error = values.std(0) / math.sqrt(num)
        z = (values.mean(0) - getattr(theirs, name)) / error
        assert z.abs().max() < 4
        assert (getattr(theirs, name).abs() / error).max() > 6, "noise would hide a wrong gradient"


def test_gradient_in_soft_labels_is_that_of_the_exact_forward_kl(
    differentiate: Differentiate,
) -> None:
    """A classifier of one parameter by quadrature: draws are cells of a grid, each as often as its
    probability says.
    """
    grid, num = torch.linspace(-4, 4, 4001, dtype=DOUBLE)[:, None], 200_000
    x = torch.tensor([0.7, -1.2, 2.0], dtype=DOUBLE)
    logits = Rng(4).normal(3, 3, dtype=DOUBLE)
    target = torch.softmax(-2 * (grid[:, 0] - 0.8).square(), 0)

    def likelihood(thetas: Tensor, points: Points) -> Tensor:
        slopes = torch.tensor([1.0, -0.5, 0.0], dtype=DOUBLE)
        log_probs = (thetas[:, :, None] * points.x[:, None] * slopes).log_softmax(2)
        return (points.y.softmax(1) * log_probs).sum(2) @ points.weight.exp()

    def own(y: Tensor) -> Tensor:
        value = likelihood(grid, Points(x, y, torch.zeros(3, dtype=DOUBLE)))
        return (value - 0.5 * grid[:, 0].square()).log_softmax(0)

    def at_quantiles(probs: Tensor) -> Tensor:
        levels = (torch.arange(num, dtype=DOUBLE) + 0.5) / num
        return grid[torch.searchsorted(probs.cumsum(0), levels).clamp_max(4000)]

    points = Points(x, logits, torch.zeros(3, dtype=DOUBLE))
    ours, _ = gradient(likelihood, points, at_quantiles(target), at_quantiles(own(logits).exp()))
    theirs = differentiate(lambda y: float((target * (target.log() - own(y))).sum()), logits)
    torch.testing.assert_close(ours.y, theirs, rtol=1e-4, atol=1e-5)
    assert theirs.abs().max() > 0.05


# --- the chains


def test_persistent_chains_have_the_posterior_as_their_distribution(exact: Exact) -> None:
    """Mean and variance of many chains at one time, at a step size that without its Metropolis test
    would give a variance that is too large by far.
    """
    num, own = 3000, exact.posterior(exact.points)
    shortest = float(torch.linalg.eigvalsh(own.covariance).min().sqrt())
    start = own.mean + 3 * Rng(5)("start").normal(num, 3, dtype=DOUBLE)
    chains, accepts = chains_from(start, 1.3 * shortest), []
    for number in range(60):
        chains, _, accept = move(exact.log_density, chains, Rng(5)(number), num_leapfrog=5)
        accepts.append(float(accept.mean()))
    assert 0.3 < accepts[-1] < 0.97, "a test that accepts all tests nothing"
    variance = own.covariance.diagonal()
    z_mean = (chains.z.mean(0) - own.mean) / (variance / num).sqrt()
    z_variance = (chains.z.var(0) / variance - 1) / math.sqrt(2 / num)
    assert z_mean.abs().max() < 4
    assert z_variance.abs().max() < 4


def test_drift_of_chains_in_equilibrium_is_zero(exact: Exact) -> None:
    own = exact.posterior(exact.points)
    for begin, is_zero in ((draw(own, 3000, Rng(6)), True), (own.mean.expand(3000, 3), False)):
        _, drift, _ = move(exact.log_density, chains_from(begin, 0.1), Rng(7), num_leapfrog=5)
        z = drift.mean() / drift.std() * math.sqrt(3000)
        assert (z.abs() < 4) == is_zero


def test_without_a_test_chains_have_the_law_of_their_leapfrog_steps() -> None:
    """Steps of size 1 on a standard normal: variance 1 / (1 - 1/4), or between those of the
    smallest and largest jittered step; momentum is standard normal.
    """
    chains = chains_from(Rng(0).normal(4000, 1, dtype=DOUBLE), 1.0)
    for number in range(30):
        chains, _, _ = move(
            lambda z: -0.5 * z.square().sum(1), chains, Rng(1)(number), num_leapfrog=3, friction=0.4
        )
    error = 4 * math.sqrt(2 / 4000)
    variance = float(chains.z.var())
    assert (1 - error) / (1 - 0.9**2 / 4) < variance < (1 + error) / (1 - 1.1**2 / 4)
    assert float(chains.momentum.var()) == pytest.approx(1, abs=error)


def test_without_a_test_chains_keep_their_momentum() -> None:
    """All but the share that friction takes, which noise replaces."""
    chains = chains_from(torch.zeros(4000, 1, dtype=DOUBLE), 1e-6)
    chains = chains._replace(momentum=torch.full_like(chains.z, 2.0))
    after, _, _ = move(
        lambda z: -0.5 * z.square().sum(1), chains, Rng(1), num_leapfrog=1, friction=0.4
    )
    assert float(after.momentum.mean()) == pytest.approx(0.6 * 2, abs=4 * math.sqrt(0.64 / 4000))
    assert float(after.momentum.var()) == pytest.approx(0.64, rel=4 * math.sqrt(2 / 4000))


def test_a_proposal_without_a_density_is_refused(exact: Exact) -> None:
    """NaN: the chain stays where it was and its step size falls."""
    chains = chains_from(draw(exact.full, 5, Rng(9)), 0.1)
    nowhere = chains.z.sum(1)

    def log_density(z: Tensor) -> Tensor:
        value = exact.log_density(z)
        return torch.where(z.sum(1) == nowhere, value, torch.nan)

    after, drift, accept = move(log_density, chains, Rng(9), num_leapfrog=2, rate=0.1)
    assert torch.equal(after.z, chains.z)
    assert drift.tolist() == accept.tolist() == [0.0] * 5
    torch.testing.assert_close(after.log_step, chains.log_step - 0.1 * 0.8)


def test_without_data_chains_are_draws_from_the_prior(make_problem: MakeProblem) -> None:
    """Of a network with norms, whose gains are around 1."""
    problem = small_problem(model=ConvNet(width=2, depth=1), dtype=DOUBLE, reference=True)
    problem = dataclasses.replace(problem, prior=GaussianPrior(0.5))
    method = BPCPersistentChains(per_class=1, num_chains=60, num_warmup=25, num_leapfrog=4)
    state = method.init(problem, Rng(0))
    lone = state.points._replace(weight=torch.full_like(state.points.weight, -math.inf))
    likelihood = method._likelihood(problem, lone, state.labels)
    chains = method._fresh(problem, likelihood, Rng(1))
    theta = Networks((problem,)).theta(chains.z)
    centre, sd = problem.prior_moments()
    z = (theta.mean(0) - centre) / (sd / math.sqrt(60))
    assert float(z.square().mean()) == pytest.approx(1, abs=0.4)
    gains = theta[:, centre == 1]
    assert gains.shape[1] == 2
    assert float(gains.mean()) == pytest.approx(1, abs=4 * 0.5 / math.sqrt(120))


def test_step_sizes_follow_the_acceptance(exact: Exact) -> None:
    chains = chains_from(draw(exact.full, 50, Rng(8)), 2.0)
    for number in range(200):
        chains, _, accept = move(
            exact.log_density, chains, Rng(8)(number), num_leapfrog=3, target_accept=0.6, rate=0.1
        )
    assert float(accept.mean()) == pytest.approx(0.6, abs=0.12)


# --- the method


@dataclass(frozen=True, eq=False)
class Draws:
    """A reference given."""

    thetas: Tensor
    label: str = "draws"
    diagnostics: dict[str, float] = field(default_factory=dict)


@pytest.fixture(scope="module")
def classifier() -> Callable[..., tuple[Problem, Gaussian]]:
    """Logistic regression on three classes with draws of its Laplace posterior, and the latter."""

    def make(make_problem: MakeProblem) -> tuple[Problem, Gaussian]:
        problem = dataclasses.replace(make_problem(num=300), prior=GaussianPrior(1.0, "isotropic"))
        x, y = problem.batch(torch.arange(300))
        full = posterior(Softmax(num_classes=3), x, y, x.new_ones(300), num_newton=20)
        heads = draw(full, 500, Rng(0)).view(500, 3, -1)
        thetas = torch.cat([heads[..., :-1].flatten(1), heads[..., -1]], 1)
        return dataclasses.replace(problem, reference=Draws(thetas)), full

    return make


def forward_kl(problem: Problem, full: Gaussian, coreset: Coreset) -> float:
    """Between Laplace posteriors."""
    x = problem.inputs(coreset.x)
    own = posterior(Softmax(num_classes=3), x, coreset.targets, coreset.weight, num_newton=30)
    return float(kl(full, own))


@pytest.mark.parametrize(
    "options",
    [{}, {"weighting": "learned"}, {"label_lr": 0.05}, {"chains": "sghmc"}],
    ids=["points", "weights", "soft", "sghmc"],
)
def test_on_a_classifier_it_nears_the_full_posterior(
    make_problem: MakeProblem, classifier: Any, options: dict[str, Any]
) -> None:
    problem, full = classifier(make_problem)
    settings = {"per_class": 5, "image_lr": 0.05, "num_warmup": 20, **options}
    began = run(BPCPersistentChains(**{**settings, "num_steps": 1}), problem, seed=0).coreset
    ended = run(BPCPersistentChains(**{**settings, "num_steps": 200}), problem, seed=0).coreset
    assert forward_kl(problem, full, ended) < 0.1 * forward_kl(problem, full, began)
    lag = ended.provenance["lag"]
    assert abs(lag["energy"]) < 4 / math.sqrt(8)
    assert lag["distance"] < 3 * lag["floor"]


def test_with_several_networks_the_divergences_add_up() -> None:
    """A step's gradient is the sum of those of each network with its own draws and chains."""
    problem = small_problem(model=MLP(width=3, depth=1), dtype=DOUBLE, reference=True, also=True)
    (other,) = problem.also
    method = BPCPersistentChains(per_class=1, num_warmup=2, also="mlp width=4 depth=1")
    state = method.init(problem, Rng(0))
    after, _ = method.step(problem, state, Rng(1))
    chains = Networks((problem, other)).theta(after.chains.z)
    ends = chains.split([problem.model.num_parameters, other.model.num_parameters], 1)
    x = state.points.x.clone().requires_grad_()
    weight = state.points.weight.exp()
    for number, (each, negative) in enumerate(zip((problem, other), ends, strict=True)):
        assert each.reference is not None
        place = Rng(1)("positive")(number).integers(len(each.reference.thetas), 16)
        gap = [
            (each.log_likelihood(thetas, x, state.labels) @ weight).mean()
            for thetas in (each.reference.thetas[place], negative)
        ]
        ((gap[1] - gap[0]) / problem.num_train).backward()
    assert x.grad is not None
    torch.testing.assert_close(after.moments.x.first, 0.1 * x.grad, rtol=1e-9, atol=1e-12)


def test_other_networks_come_with_references_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `reduce`, from their names and options; a name that is none is refused."""
    monkeypatch.setitem(references.OPTIONS, "hmc", {"num_chains": 1, "num_burn": 1, "num_draws": 3})
    options: dict[str, Any] = {"per_class": 1, "num_steps": 1, "num_warmup": 1}
    setup: dict[str, Any] = {"data": few_digits(), "model": "linear"}
    run = api.reduce("bpc-pcd", **setup, **options, also="mlp width=3 depth=1, linear")
    assert [each.model.num_parameters for each in run.problem.also] == []
    assert run.coreset.provenance["options"]["also"] == "mlp width=3 depth=1, linear"
    with pytest.raises(ConfigError) as refused:
        api.reduce("bpc-pcd", **setup, **options, also="mlq")
    assert "mlq" in str(refused.value)


def test_weights_are_mass_ones_or_learned(make_problem: MakeProblem, classifier: Any) -> None:
    problem, _ = classifier(make_problem)
    made = {
        how: run(
            BPCPersistentChains(per_class=2, num_steps=3, num_warmup=2, weighting=how),
            problem,
            seed=0,
        ).coreset.weight
        for how in ("mass", "ones", "learned")
    }
    torch.testing.assert_close(made["mass"], torch.full((6,), 50.0, dtype=DOUBLE))
    torch.testing.assert_close(made["ones"], torch.ones(6, dtype=DOUBLE))
    assert len(made["learned"].unique()) == 6


def test_the_lag_is_measured_once_and_only_at_the_end(
    make_problem: MakeProblem, classifier: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, _ = classifier(make_problem)
    measured: list[int] = []

    def lag(method: Any, problem: Any, state: Any) -> dict[str, float]:
        measured.append(int(state.step))
        return {"energy": 0.0}

    monkeypatch.setattr(BPCPersistentChains, "_lag", lag)
    method = BPCPersistentChains(per_class=2, num_steps=3, num_warmup=2)
    assert run(method, problem, seed=0).coreset.provenance["lag"] == {"energy": 0.0}
    assert measured == [3]


def test_chains_left_behind_show_as_lag(make_problem: MakeProblem, classifier: Any) -> None:
    problem, _ = classifier(make_problem)
    method = BPCPersistentChains(per_class=5, num_steps=5, num_warmup=50)
    state = method.init(problem, Rng(0))
    moved = state.chains._replace(z=-state.chains.z)
    fine, behind = (
        method.diagnostics(problem, state._replace(chains=chains))["lag"]
        for chains in (state.chains, moved)
    )
    assert behind["energy"] > 5 > abs(fine["energy"])
    assert behind["distance"] > 3 * fine["distance"]


def test_weight_of_a_class_is_its_mass(make_problem: MakeProblem) -> None:
    problem = make_problem(MLP(width=4, depth=1), num=31)  # classes of 11, 10 and 10
    thetas = problem.model.init(Rng(0), num=5, dtype=DOUBLE)
    problem = dataclasses.replace(problem, reference=Draws(thetas))
    coreset = run(
        BPCPersistentChains(per_class=2, num_steps=1, num_warmup=1), problem, seed=0
    ).coreset
    assert coreset.weight.tolist() == pytest.approx([5.5, 5.5, 5, 5, 5, 5])


# --- refusals


def test_a_problem_without_a_reference_is_refused(make_problem: MakeProblem) -> None:
    with pytest.raises(ConfigError) as refused:
        run(BPCPersistentChains(per_class=2, num_steps=1), make_problem(), seed=0)
    assert refused.value.code == "needs-reference"


def test_augmentation_is_refused() -> None:
    problem = small_problem(augment=DSA(strategy="crop"), reference=True)
    with pytest.raises(ConfigError) as refused:
        run(BPCPersistentChains(per_class=2, num_steps=1), problem, seed=0)
    assert refused.value.code == "no-augmentation"
