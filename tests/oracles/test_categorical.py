r"""objectives/last_layer_categorical.py against Newton's method on the dense log-posterior and the
bound it maximises; inference/left_out.py against refitting; and last-layer-vi on linear networks
against scikit-learn's logistic regression.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import pseudocore
from pseudocore.core.problem import label_log_likelihood
from pseudocore.core.rng import Rng
from pseudocore.inference import left_out
from pseudocore.inference.last_layer_vi import LastLayerVI
from pseudocore.inference.left_out import Points
from pseudocore.objectives import last_layer_categorical as categorical
from pseudocore.objectives import last_layer_gaussian as gaussian
from pseudocore.testing import few_digits

NUM_CLASSES, VARIANCE, INTERCEPT = 3, 4.0, 2.0


def some(num: int, size: int, *, soft: bool = False) -> Points:
    """Points of classes that overlap, off the origin, of uneven weight."""
    rng = Rng(num * size)
    centres = 1.5 * Rng(size)("centres").normal(NUM_CLASSES, size, dtype=torch.float64)
    labels = torch.arange(num) % NUM_CLASSES
    features = centres[labels] + rng("x").normal(num, size, dtype=torch.float64) + 1
    one_hot = torch.eye(NUM_CLASSES, dtype=torch.float64)[labels]
    targets = 0.7 * one_hot + 0.1 if soft else labels
    weight = 0.5 + 2 * rng("weight").uniform(num, dtype=torch.float64)
    return Points(features, one_hot - 1 / NUM_CLASSES, targets, weight)


def with_constant(points: Points) -> tuple[Tensor, float]:
    """Features with the intercept's, and the prior precision, from the definitions."""
    typical = float((points.weight * points.features.square().sum(1)).sum() / points.weight.sum())
    constant = points.features.new_full((len(points.y), 1), INTERCEPT * typical**0.5)
    return torch.cat([points.features, constant], 1), typical / VARIANCE


@pytest.mark.parametrize("shape", [(12, 3), (12, 40)], ids=["M>h", "M<h"])
@pytest.mark.parametrize("soft", [False, True], ids=["labels", "probabilities"])
def test_the_mean_is_the_mode_of_the_log_posterior(shape: tuple[int, int], soft: bool) -> None:
    points = some(*shape, soft=soft)
    phi, precision = with_constant(points)
    y = points.targets if soft else points.y + 1 / NUM_CLASSES

    def log_posterior(flat: Tensor) -> Tensor:
        W = flat.view(phi.shape[1], NUM_CLASSES)
        log_likelihood = (points.weight * (y * (phi @ W).log_softmax(1)).sum(1)).sum()
        return log_likelihood - precision / 2 * W.square().sum()

    flat = torch.zeros(phi.shape[1] * NUM_CLASSES, dtype=torch.float64)
    for _ in range(30):  # Newton's, whose steps may overshoot at first
        gradient = torch.func.grad(log_posterior)(flat)
        curvature = torch.func.hessian(log_posterior)(flat)
        step = torch.linalg.solve(curvature, gradient)
        while log_posterior(flat - step) < log_posterior(flat):
            step = step / 2
        flat = flat - step
    settings = {"prior_variance": VARIANCE, "intercept": INTERCEPT}
    ours = left_out.fit(points, "categorical", settings)
    assert torch.allclose(ours.mean, flat.view_as(ours.mean), rtol=1e-4, atol=1e-5)
    warm = categorical.fit(points.features, y, weight=points.weight, start=ours, **settings)
    assert torch.allclose(warm.mean, ours.mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(12, 3), (12, 40)], ids=["M>h", "M<h"])
def test_the_covariance_is_that_of_boehnings_bound(shape: tuple[int, int]) -> None:
    points = some(*shape)
    phi, precision = with_constant(points)
    ours = left_out.fit(points, "categorical", {"prior_variance": VARIANCE, "intercept": INTERCEPT})
    identity = torch.eye(phi.shape[1], dtype=torch.float64)
    V = torch.linalg.inv(precision * identity + 0.5 * (phi.mT * points.weight) @ phi)
    expected = torch.einsum("ni,ij,nj->n", phi, V, phi)
    assert torch.allclose(gaussian.predict(ours, points.features)[1], expected, rtol=1e-9)


def test_the_bound_bounds() -> None:
    """log Σ exp is nowhere above its expansion at ψ with curvature ½(I − 11ᵀ/k)."""
    psi, f = (3 * Rng(seed).normal(500, 4, dtype=torch.float64) for seed in (0, 1))
    d = f - psi
    curved = 0.25 * (d.square().sum(1) - d.sum(1).square() / 4)
    bound = psi.logsumexp(1) + (psi.softmax(1) * d).sum(1) + curved
    assert (bound >= f.logsumexp(1) - 1e-12).all()


# --- settings by left-out labels


def score(points: Points, mean: Tensor, variance: Tensor, scale: float, at: Points) -> float:
    log_probs = gaussian.log_probs(mean, variance, scale)
    each = label_log_likelihood(log_probs, at.targets)
    return float((at.weight * each).sum() / at.weight.sum())


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
def test_settings_for_held_out_labels_are_the_best_of_all(likelihood: Any) -> None:
    points, held_out = some(12, 3), some(90, 3)
    chosen = left_out.choose(points, likelihood, {"intercept": INTERCEPT}, held_out)

    def scored(settings: dict[str, float]) -> float:
        posterior = left_out.fit(points, likelihood, {**settings, "intercept": INTERCEPT})
        found = gaussian.predict(posterior, held_out.features)
        return score(points, *found, settings["logit_scale"], held_out)

    best = scored(chosen)
    for name, value in chosen.items():
        for factor in (0.8, 1.25) if name == "logit_scale" else (10**-0.5, 10**0.5, 0.1, 10):
            if name != "logit_scale" and not 1e-3 <= value * factor <= 1e3:
                continue
            if name == "prior_variance" and likelihood == "gaussian":
                continue  # three values alone are tried
            assert scored({**chosen, name: value * factor}) <= best + 1e-9, name


def test_given_settings_stay_and_the_others_follow() -> None:
    points = some(30, 3)
    given = {"intercept": 0.0, "ridge": 0.3, "prior_variance": 0.2}
    chosen = left_out.choose(points, "gaussian", given)
    assert list(chosen) == ["logit_scale"]
    means, variances = [], []
    for place in range(30):
        kept = torch.arange(30) != place
        # The typical norm is that of all points, as r and ρ are.
        rest = points._replace(weight=points.weight * kept)
        whole = gaussian.fit(points.features, points.y, weight=points.weight, **_only(given))
        ratio = _typical(points) / _typical(rest)
        posterior = gaussian.fit(
            points.features,
            points.y,
            weight=rest.weight,
            ridge=0.3 * ratio,
            prior_variance=0.2 / ratio,
        )
        assert float(posterior.ridge) == pytest.approx(float(whole.ridge))
        mean, variance = gaussian.predict(posterior, points.features[place : place + 1])
        means.append(mean)
        variances.append(variance)
    mean, variance = torch.cat(means), torch.cat(variances)
    best = score(points, mean, variance, chosen["logit_scale"], points)
    for factor in (0.9, 1.1):
        assert score(points, mean, variance, factor * chosen["logit_scale"], points) < best


def _only(given: dict[str, float]) -> dict[str, float]:
    return {name: given[name] for name in ("ridge", "prior_variance")}


def _typical(points: Points) -> float:
    return float(gaussian.typical_norm(points.features, points.weight))


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
def test_one_point_a_class_has_nothing_to_leave_out(likelihood: Any) -> None:
    chosen = left_out.choose(some(3, 3), likelihood, {"intercept": 1.0})
    assert chosen == left_out.DEFAULTS[likelihood]


def test_every_class_is_split_into_fifths_once() -> None:
    labels = torch.tensor([0] * 7 + [1] * 3 + [2])
    points = Points(torch.zeros(11, 2), torch.zeros(11, 3), labels, torch.ones(11))
    places = left_out._with_a_neighbour(points)
    assert places.tolist() == list(range(10))  # class 2 has no second point
    folds = [fold.tolist() for fold in left_out._folds(points, places)]
    assert folds == [[0, 5, 7], [1, 6, 8], [2, 9], [3], [4]]


# --- against scikit-learn, on all points


def standardised(x: Any, y: Any, seed: int = 0) -> tuple[Any, ...]:
    """Training and test halves, scaled by the training half."""
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[::2], order[1::2]
    centre, scale = x[train].mean(0), x[train].std(0) + 1e-12 + (x[train].std(0) == 0)
    return (x[train] - centre) / scale, y[train], (x[test] - centre) / scale, y[test]


def breast_cancer() -> tuple[Any, ...]:
    return standardised(*load_breast_cancer(return_X_y=True))


def imbalanced() -> tuple[Any, ...]:
    return standardised(
        *make_classification(2000, 20, n_informative=6, weights=[0.95], random_state=0)
    )


def pixels() -> tuple[Any, ...]:
    return standardised(*load_digits(return_X_y=True))


@pytest.mark.parametrize("make", [breast_cancer, imbalanced, pixels])
def test_all_data_under_a_linear_network_is_logistic_regression(make: Any) -> None:
    """Not worse than scikit-learn's default by more than .01 in test NLL; prior variance and scale
    are fitted to the training points alone.
    """
    x, y, test_x, test_y = make()
    theirs = LogisticRegression(max_iter=2000).fit(x, y)
    nll = -float(theirs.predict_log_proba(test_x)[np.arange(len(test_y)), test_y].mean())
    accuracy = float(theirs.score(test_x, test_y))
    data = pseudocore.dataset(
        x.astype(np.float32), y, test=(test_x.astype(np.float32), test_y), name="theirs"
    )
    made = pseudocore.reduce("full", data, model="linear", preprocess="none")
    ours = pseudocore.evaluate(made, seeds=1).metrics
    assert ours["nll"]["mean"] < nll + 0.01
    assert ours["accuracy"]["mean"] > accuracy - 0.01


def test_a_thousand_classes() -> None:
    """Within 10 % of scikit-learn's NLL; regression on one-hot targets had an accuracy of .02."""
    rng = np.random.default_rng(0)
    centres, y = rng.normal(size=(1000, 12)), np.repeat(np.arange(1000), 2)
    x, test_x = (
        (centres[y] + 0.4 * rng.normal(size=(2000, 12))).astype(np.float32) for _ in range(2)
    )
    theirs = LogisticRegression(max_iter=100).fit(x, y)
    nll = -float(theirs.predict_log_proba(test_x)[np.arange(len(y)), y].mean())
    data = pseudocore.dataset(x, y, test=(test_x, y), name="thousand")
    made = pseudocore.reduce("full", data, model="linear", preprocess="none")
    ours = pseudocore.evaluate(made, seeds=1).metrics
    assert ours["nll"]["mean"] < 1.1 * nll
    assert ours["accuracy"]["mean"] > theirs.score(test_x, y) - 0.01


def test_what_was_fitted_is_stored_and_used() -> None:
    """Reduction fits the settings to training labels outside the coreset; inference takes them as
    if they were given. A method that learned its own keeps those.
    """
    made = pseudocore.reduce("uniform", few_digits(), per_class=1, model="mlp", width=8)
    learned = made.coreset.learned
    assert list(learned) == ["intercept", "logit_scale", "prior_variance", "ridge"]
    defaults = {**left_out.DEFAULTS["gaussian"], "intercept": 10.0}
    assert learned != defaults  # what the ten points themselves would have given
    bare = dataclasses.replace(made.coreset, provenance={})
    x = made.problem.data.test.x
    stored, given = (
        LastLayerVI(num_steps=3, **options).fit(made.problem, coreset, Rng(0))
        for coreset, options in ((made.coreset, {}), (bare, learned))
    )
    assert torch.equal(stored(x), given(x))
    assert stored.selected_settings == {}
    alone = LastLayerVI(num_steps=3).fit(made.problem, bare, Rng(0))
    assert {**alone.selected_settings, "intercept": 10.0} == defaults
    own = pseudocore.reduce(
        "frepo", few_digits(), per_class=1, model="mlp", width=8, num_steps=1, batch_size=8
    )
    mean_weight = few_digits().num_train / 10
    assert own.coreset.learned["ridge"] == pytest.approx(0.01 * mean_weight)
    assert "intercept" not in own.coreset.learned


def test_more_points_than_a_matrix_of_them_would_allow() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(30_000) % 2
    x = (rng.normal(size=(30_000, 3)) + y[:, None]).astype(np.float32)
    data = pseudocore.dataset(x, y, test=(x[:500], y[:500]), name="many")
    made = pseudocore.reduce("full", data, model="mlp", width=4)
    assert pseudocore.evaluate(made, seeds=1, num_steps=2).metrics["nll"]["mean"] < 0.5
