"""Inference against exact posteriors, torch's optimisers and naive averages."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.inference.draws_posterior import DrawsPosterior
from pseudocore.inference.last_layer_vi import LastLayerVI
from pseudocore.inference.sgd import SGD, Ensemble, _mean_log_likelihood
from pseudocore.models.dense import MLP
from pseudocore.objectives import last_layer_gaussian as gaussian

MakeProblem = Callable[..., Problem]

NUM_CLASSES, M = 3, 8
NUMBERS: dict[str, Any] = {"logit_scale": 4.0, "prior_variance": 0.3, "ridge": 0.05}
GIVEN: dict[str, Any] = {**NUMBERS, "intercept": 0.0}


@pytest.fixture
def problem(make_problem: MakeProblem) -> Problem:
    return make_problem()


class Points(NamedTuple):
    """Eight points with a label, a real-valued target, a distribution over classes and a weight
    each.
    """

    x: Tensor
    labels: Tensor
    outputs: Tensor
    probabilities: Tensor
    weight: Tensor


@pytest.fixture
def points() -> Points:
    rng = Rng(1)
    outputs = rng("outputs").normal(M, NUM_CLASSES, dtype=torch.float64)
    x, weight = (
        rng("x").normal(M, 6, dtype=torch.float64),
        0.2 + 2 * rng("weight").uniform(M, dtype=torch.float64),
    )
    return Points(x, torch.arange(M) % NUM_CLASSES, outputs, (2 * outputs).softmax(1), weight)


def plain(x: Tensor, y: Tensor, weight: Tensor | None = None, **provenance: Any) -> Coreset:
    return Coreset(
        x,
        y,
        torch.ones(len(x), dtype=torch.float64) if weight is None else weight,
        provenance=provenance,
    )


# --- last-layer-vi


def regression(
    problem: Problem, coreset: Coreset, y: Tensor, typical: float, intercept: float = 0.0
) -> Tensor:
    """log p at the test points by dense Bayesian linear regression on the inputs, then the probit
    formula. An intercept has a prior of its own, on a column of ones.
    """
    phi, test, w = (
        problem.inputs(coreset.x).numpy(),
        problem.inputs(problem.data.test.x).numpy(),
        coreset.weight.numpy(),
    )
    rho = typical / NUMBERS["prior_variance"]
    noise_precision = rho / (NUMBERS["ridge"] * typical)
    precisions = np.full(6, rho)
    if intercept:
        phi, test = (np.column_stack([x, np.ones(len(x))]) for x in (phi, test))
        precisions = np.append(precisions, 1 / (NUMBERS["prior_variance"] * intercept**2))
    V = np.linalg.inv(np.diag(precisions) + noise_precision * phi.T @ (w[:, None] * phi))
    m = noise_precision * V @ phi.T @ (w[:, None] * y.numpy())
    s, sigma = NUMBERS["logit_scale"], np.diag(test @ V @ test.T)
    logits = s * (test @ m) / np.sqrt(1 + np.pi / 8 * s**2 * sigma)[:, None]
    return torch.from_numpy(logits).log_softmax(1)


def test_on_a_linear_model_it_is_exact_bayesian_linear_regression(
    problem: Problem, points: Points
) -> None:
    """The features are the inputs, so training the network must change nothing."""
    coreset = plain(points.x, points.outputs)
    typical = float(problem.inputs(points.x).square().sum(1).mean())
    expected = regression(problem, coreset, points.outputs, typical)
    for num_steps in (1, 5):
        ours = LastLayerVI(num_steps=num_steps, **GIVEN).fit(problem, coreset, Rng(0))(
            problem.data.test.x
        )
        assert (ours - expected).abs().max() < 1e-10


def test_an_intercept_is_a_column_of_ones_under_a_prior_of_its_own(
    problem: Problem, points: Points
) -> None:
    """Targets and test points are far from centred."""
    x, outputs = points.x + 1.5, points.outputs + torch.tensor([2.0, 0.0, -1.0])
    coreset = plain(x, outputs, points.weight)
    norms = problem.inputs(x).square().sum(1)
    typical = float((points.weight * norms).sum() / points.weight.sum())
    expected = regression(problem, coreset, outputs, typical, intercept=3.0)
    for asked, stored in (({"intercept": 3.0}, {}), ({}, {"intercept": 3.0})):
        told = dataclasses.replace(coreset, provenance={"posterior": {**NUMBERS, **stored}})
        fitted = LastLayerVI(num_steps=1, **asked).fit(problem, told, Rng(0))
        assert (fitted(problem.data.test.x) - expected).abs().max() < 1e-9
    without = regression(problem, coreset, outputs, typical)
    assert (without - expected).abs().max() > 0.1


@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_weights_multiply_the_likelihood(problem: Problem, points: Points, factor: float) -> None:
    """A hundredfold weight is a hundredfold data: the posterior narrows, the prior stays where it
    was.
    """
    directions = points.x / points.x.norm(dim=1, keepdim=True)
    x = problem.pixels(
        2 * directions
    )  # one norm for all, so that it does not matter how the typical one is averaged
    coreset = plain(x, points.outputs, factor * points.weight)
    ours = LastLayerVI(num_steps=1, **GIVEN).fit(problem, coreset, Rng(0))(problem.data.test.x)
    assert (ours - regression(problem, coreset, points.outputs, typical=4.0)).abs().max() < 1e-10
    unweighted = LastLayerVI(num_steps=1, **GIVEN).fit(problem, plain(x, points.outputs), Rng(0))(
        problem.data.test.x
    )
    assert (ours - unweighted).abs().max() > 1e-3


def test_a_weight_is_a_repetition(make_problem: MakeProblem, points: Points) -> None:
    """A point of weight three is three points: features, posterior and all."""
    problem = make_problem(MLP(width=9, depth=1))
    times = 1 + torch.arange(M) % 3
    weighted = plain(points.x, points.outputs, times.double())
    repeated = plain(
        points.x.repeat_interleave(times, 0), points.outputs.repeat_interleave(times, 0)
    )
    ours, theirs = (
        LastLayerVI(num_steps=5, **GIVEN).fit(problem, c, Rng(0))(problem.data.test.x)
        for c in (weighted, repeated)
    )
    assert (ours - theirs).abs().max() < 1e-10


def test_a_point_without_weight_is_no_point(problem: Problem, points: Points) -> None:
    x = torch.cat([points.x, 100 * points.x[:1]])
    y = torch.cat([points.outputs, points.outputs[:1]])
    weight = torch.ones(M + 1, dtype=torch.float64)
    weight[-1] = 0
    way = LastLayerVI(num_steps=5, **GIVEN)
    ours, theirs = (
        way.fit(problem, c, Rng(0))(problem.data.test.x)
        for c in (plain(x, y, weight), plain(points.x, points.outputs))
    )
    assert (ours - theirs).abs().max() < 1e-10


@pytest.mark.parametrize("width", [None, 9])
def test_hard_labels_are_centred_one_hot_targets(
    make_problem: MakeProblem, points: Points, width: int | None
) -> None:
    problem = make_problem(MLP(width=width, depth=1)) if width else make_problem()
    soft = torch.eye(NUM_CLASSES, dtype=torch.float64)[points.labels] - 1 / NUM_CLASSES
    hard, centred = (
        LastLayerVI(num_steps=5, **GIVEN).fit(problem, plain(points.x, y), Rng(0))
        for y in (points.labels, soft)
    )
    assert (hard(problem.data.test.x) - centred(problem.data.test.x)).abs().max() < 1e-12


def test_settings_come_from_the_options_then_the_coreset(problem: Problem, points: Points) -> None:
    bare = plain(points.x, points.outputs)
    learned = plain(points.x, points.outputs, posterior=NUMBERS)

    def predict(coreset: Coreset, **options: Any) -> Tensor:
        fitted = LastLayerVI(num_steps=1, **options).fit(problem, coreset, Rng(0))
        return fitted(problem.data.test.x)

    assert torch.equal(predict(learned), predict(bare, **GIVEN))
    assert torch.equal(predict(learned, ridge=0.5), predict(bare, **{**GIVEN, "ridge": 0.5}))
    assert torch.equal(predict(learned, intercept=2.0), predict(bare, **NUMBERS, intercept=2.0))
    assert not torch.equal(predict(bare), predict(learned))
    # A regression that keeps no prior variance has the default one.
    few = plain(points.x, points.outputs, posterior={"logit_scale": 4.0, "ridge": 0.05})
    assert torch.equal(predict(few), predict(bare, **{**GIVEN, "prior_variance": 0.01}))


def test_stored_settings_count_for_their_own_likelihood(problem: Problem, points: Points) -> None:
    """A ridge belongs to the gaussian likelihood; those of one say nothing about the other."""

    def predict(likelihood: Any, **stored: float) -> Tensor:
        coreset = plain(points.x, points.labels, **({"posterior": stored} if stored else {}))
        fitted = LastLayerVI(num_steps=1, likelihood=likelihood).fit(problem, coreset, Rng(0))
        return fitted(problem.data.test.x)

    categorical = {"logit_scale": 0.3, "prior_variance": 2.0, "intercept": 1.0}
    assert torch.equal(predict("categorical", **NUMBERS), predict("categorical"))
    assert torch.equal(predict("gaussian", **categorical), predict("gaussian"))
    assert not torch.equal(predict("gaussian", **NUMBERS), predict("gaussian"))
    assert not torch.equal(predict("categorical", **categorical), predict("categorical"))


@pytest.mark.parametrize(
    "options", [{"ridge": 0.1}, {"choose_prior": "marginal"}], ids=["ridge", "choose_prior"]
)
def test_what_belongs_to_the_gaussian_likelihood_is_refused_beside_the_other(
    problem: Problem, points: Points, options: Any
) -> None:
    coreset = plain(points.x, points.labels)
    with pytest.raises(ConfigError) as caught:
        LastLayerVI(likelihood="categorical", **options).fit(problem, coreset, Rng(0))
    assert caught.value.code == "conflicting-options"
    assert caught.value.fields["options"] == ("likelihood", next(iter(options)))
    asked, auto = (
        LastLayerVI(likelihood=one, **options).fit(problem, coreset, Rng(0))
        for one in ("gaussian", "auto")
    )
    x = problem.data.test.x
    assert torch.equal(asked(x), auto(x))


@pytest.mark.parametrize("head_start", ["zero", "random"])
def test_training_is_torchs_adam_on_the_weighted_squared_error(
    make_problem: MakeProblem, points: Points, head_start: Any
) -> None:
    """Each test point's features tell its network apart, so the predictions of a network trained by
    hand are the test.
    """
    problem, rng = make_problem(MLP(width=9, depth=1)), Rng(4)
    network = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, NUM_CLASSES)).double()
    nn.utils.vector_to_parameters(
        problem.model.init(rng("theta"), dtype=torch.float64), network.parameters()
    )
    if head_start == "zero":
        for parameter in network[2].parameters():
            nn.init.zeros_(parameter)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(7):
        optimiser.zero_grad()
        errors = (network(problem.inputs(points.x)) - points.outputs).square().sum(1) / 2
        torch.autograd.backward((points.weight * errors).sum() / points.weight.sum())
        optimiser.step()
    with torch.no_grad():
        phi, test = (network[:2](problem.inputs(x)) for x in (points.x, problem.data.test.x))
    posterior = gaussian.fit(
        phi, points.outputs, ridge=0.05, prior_variance=0.3, weight=points.weight
    )
    theirs = gaussian.log_probs(*gaussian.predict(posterior, test), 4.0)
    coreset = plain(points.x, points.outputs, points.weight)
    way = LastLayerVI(num_steps=7, step_size=3e-3, head_start=head_start, **GIVEN)
    ours = way.fit(problem, coreset, rng)(problem.data.test.x)
    assert (ours - theirs).abs().max() < 1e-10


# --- sgd and ensemble


def torch_sgd(
    problem: Problem, theta: Tensor, x: Tensor, targets: Tensor, weight: Tensor, settings: SGD
) -> nn.Linear:
    """Torch's own SGD on the same objective. Its velocity is free of step sizes and ours holds
    them, so a falling step size
    goes into its loss and its lr is 1: v ← μv + η_t∇, θ ← θ − v."""
    network = nn.Linear(6, NUM_CLASSES).double()
    nn.utils.vector_to_parameters(theta.clone(), network.parameters())
    optimiser = torch.optim.SGD(network.parameters(), lr=1.0, momentum=settings.momentum)
    for step in range(settings.num_steps):
        optimiser.zero_grad()
        cross_entropy = nn.functional.cross_entropy(
            network(problem.inputs(x)), targets, reduction="none"
        )
        squares = sum(parameter.square().sum() for parameter in network.parameters())
        loss = (weight * cross_entropy).sum() / weight.sum() + settings.weight_decay / 2 * squares
        eta = settings.step_size * (1 + math.cos(math.pi * step / settings.num_steps)) / 2
        torch.autograd.backward(eta * loss)
        optimiser.step()
    return network


FIELDS: dict[str, Any] = {"num_steps": 15, "step_size": 0.3, "momentum": 0.8, "weight_decay": 0.02}
SETTINGS = SGD(**FIELDS)


@pytest.mark.parametrize("kind", ["labels", "probabilities", "outputs"])
@pytest.mark.parametrize("weighted", [False, True])
def test_sgd_is_torchs(problem: Problem, points: Points, kind: str, weighted: bool) -> None:
    """Real-valued outputs become probabilities by the logit scale learned with them."""
    weight = points.weight if weighted else torch.ones(M, dtype=torch.float64)
    coreset = plain(
        points.x,
        getattr(points, kind),
        weight,
        **({"posterior": {"logit_scale": 2.0}} if kind == "outputs" else {}),
    )
    targets = points.labels if kind == "labels" else points.probabilities
    start = problem.model.init(Rng(5)("theta"), dtype=torch.float64)
    network = torch_sgd(problem, start, points.x, targets, weight, SETTINGS)
    ours = SETTINGS.fit(problem, coreset, Rng(5))(problem.data.test.x)
    theirs = network(problem.inputs(problem.data.test.x)).log_softmax(1).detach()
    assert (ours - theirs).abs().max() < 1e-10
    untrained = problem.model.logits(start, problem.inputs(problem.data.test.x)).log_softmax(1)
    assert (ours - untrained).abs().max() > 1e-2


def test_a_weight_is_a_repetition_for_sgd(problem: Problem, points: Points) -> None:
    times = 1 + torch.arange(M) % 3
    repeated = plain(
        points.x.repeat_interleave(times, 0), points.labels.repeat_interleave(times, 0)
    )
    ours, theirs = (
        SETTINGS.fit(problem, coreset, Rng(5))(problem.data.test.x)
        for coreset in (plain(points.x, points.labels, times.double()), repeated)
    )
    assert (ours - theirs).abs().max() < 1e-12


def test_members_of_an_ensemble_are_networks_trained_alone(
    problem: Problem, points: Points
) -> None:
    coreset, test = (
        plain(points.x, points.labels, points.weight),
        problem.inputs(problem.data.test.x),
    )
    starts = problem.model.init(Rng(5)("theta"), num=3, dtype=torch.float64)
    networks = [
        torch_sgd(problem, theta, points.x, points.labels, points.weight, SETTINGS)
        for theta in starts
    ]
    probabilities = torch.stack([network(test).softmax(1) for network in networks]).mean(0).detach()
    ours = Ensemble(num_members=3, **FIELDS).fit(problem, coreset, Rng(5))(problem.data.test.x)
    assert (ours.exp() - probabilities).abs().max() < 1e-10


def test_an_ensemble_of_one_is_sgd(problem: Problem, points: Points) -> None:
    coreset = plain(points.x, points.labels)
    one, alone = (
        way.fit(problem, coreset, Rng(5))(problem.data.test.x)
        for way in (Ensemble(num_members=1, **FIELDS), SETTINGS)
    )
    assert torch.equal(one, alone)


def test_batches_estimate_the_whole_without_bias(problem: Problem, points: Points) -> None:
    """Over many draws of two-point batches the mean gradient at zero is that of all points."""
    start, once = (
        torch.zeros(21, dtype=torch.float64),
        SGD(num_steps=1, step_size=1.0, weight_decay=0.0),
    )
    whole = torch_sgd(problem, start, points.x, points.labels, points.weight, once)
    density = _mean_log_likelihood(problem, plain(points.x, points.labels, points.weight), 2)
    drawn = torch.stack([grad(density)(start, Rng(seed)) for seed in range(800)])
    z = (drawn.mean(0) - nn.utils.parameters_to_vector(whole.parameters()).detach()) / (
        drawn.std(0) / math.sqrt(len(drawn))
    )
    assert z.abs().max() < 4


# --- averaging


def test_averaging_is_the_log_of_the_mean_probability(
    make_problem: MakeProblem, points: Points
) -> None:
    problem = make_problem(MLP(width=9, depth=1))
    thetas = 3 * problem.model.init(Rng(6), num=4, dtype=torch.float64)
    x = problem.data.test.x
    naive = (
        torch.stack([problem.model.logits(theta, problem.inputs(x)).softmax(1) for theta in thetas])
        .mean(0)
        .log()
    )
    assert (DrawsPosterior(problem, thetas, points)(x) - naive).abs().max() < 1e-12


def test_averaging_survives_probabilities_that_underflow(problem: Problem, points: Points) -> None:
    thetas = 1e4 * problem.model.init(Rng(6), num=4, dtype=torch.float64)
    log_probs = DrawsPosterior(problem, thetas, points)(problem.data.test.x)
    assert log_probs.isfinite().all()
    assert log_probs.exp().sum(1) == pytest.approx(1.0)
