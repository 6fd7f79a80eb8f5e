"""Settings selected on held-out training points: what may be looked at, which candidate wins, what
is done with it.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Predict
from pseudocore.inference import HMC, SGLD, Laplace, LastLayerVI
from pseudocore.inference.choose import COLD, FACTORS, by_split, held_out, mean_log_likelihood

SETTINGS = [{"prior_scale": factor} for factor in FACTORS]


class Fitted:
    """A function whose selected settings can be noted."""

    def __init__(self, predict: Predict) -> None:
        self.predict = predict

    def __call__(self, raw: Tensor) -> Tensor:
        return self.predict(raw)


@dataclass(frozen=True)
class Fake:
    """A sampler whose draws give the true label probability .9 exp(-|log(scale / best)|) on
    training points; it records its calls.
    """

    best: float
    calls: list[Any]
    broken: tuple[float, ...] = ()
    prior_scale: float = 1.0
    num_draws: int = 40
    num_burn: int = 40
    num_chains: int = 2

    def sample(self, problem: Problem, coreset: Coreset, rng: Rng, **options: Any) -> Any:
        length = (self.num_chains, self.num_draws, self.num_burn)
        self.calls.append((self.prior_scale, *length, options))
        if self.prior_scale in self.broken:
            raise RunError(f"ran away at {self.prior_scale}")
        score = math.log(0.9) - abs(math.log(self.prior_scale / self.best))
        labels = {tuple(x.tolist()): int(y) for x, y in zip(*problem.data.train, strict=True)}

        def predict(raw: Tensor) -> Tensor:
            y = torch.tensor([labels[tuple(x.tolist())] for x in raw])  # no test point is found
            other = math.log(1 - math.exp(score))
            even = torch.full((len(raw), 2), other, dtype=torch.float64)
            return even.scatter(1, y[:, None], score)

        return Fitted(predict)


def select(fake: Any, problem: Problem, coreset: Coreset, **options: Any) -> Any:
    return by_split(fake, SETTINGS, problem, coreset, Rng(0), **options).selected_settings


@pytest.mark.parametrize(("best", "expected"), [(0.25, 0.25), (0.6, 0.5), (1.1, 1.0), (100.0, 4.0)])
def test_the_best_scale_on_held_out_training_points_wins(
    problem: Problem, coreset: Coreset, best: float, expected: float
) -> None:
    calls: list[Any] = []
    selected = select(Fake(best, calls), problem, coreset, draws="kept")
    assert [scale for scale, *_ in calls] == [*FACTORS, expected]
    assert all(call[1:] == (2, 10, 20, {}) for call in calls[:-1])
    assert calls[-1] == (expected, 2, 40, 40, {"draws": "kept"})
    assert selected["prior_scale"] == expected
    score = math.log(0.9) - abs(math.log(expected / best))
    assert selected["held_out_nll"] == pytest.approx(-score)


def test_a_scale_whose_chain_fails_is_out(problem: Problem, coreset: Coreset) -> None:
    selected = select(Fake(1.0, [], broken=(1.0, 4.0)), problem, coreset)
    assert selected["prior_scale"] in (0.5, 2.0)
    with pytest.raises(RunError, match="ran away at 4"):
        select(Fake(1.0, [], broken=FACTORS), problem, coreset)


def test_points_of_the_coreset_are_not_held_out(problem: Problem) -> None:
    own = problem.subset(torch.arange(0, problem.num_train, 2))
    index = held_out(problem, own, Rng(0))
    assert index.sort().values.tolist() == list(range(1, problem.num_train, 2))
    assert len(held_out(problem, own, Rng(0), num=7)) == 7
    made = Coreset(own.x, own.y, own.weight)
    assert len(held_out(problem, made, Rng(0))) == problem.num_train
    with pytest.raises(ConfigError) as caught:
        held_out(problem, problem.subset(torch.arange(problem.num_train)), Rng(0))
    assert caught.value.code == "nothing-held-out"


@pytest.mark.parametrize("p", [0.5, 0.9])
def test_the_score_is_the_mean_log_probability_of_the_label(problem: Problem, p: float) -> None:
    log_probs = torch.tensor([p, 1 - p], dtype=torch.float64).log()
    share = float((problem.data.train.y == 0).double().mean())
    expected = share * math.log(p) + (1 - share) * math.log(1 - p)
    found = mean_log_likelihood(
        lambda raw: log_probs.expand(len(raw), 2), problem, torch.arange(problem.num_train)
    )
    assert found == pytest.approx(expected)


def test_a_sampler_selects_and_samples_as_if_given(problem: Problem, coreset: Coreset) -> None:
    """From a scale too small for moons a wider one is selected; the draws are those of a chain that
    was given it.
    """
    options = {"temperature": 1.0, "prior_scale": 0.5}
    sgld = SGLD(num_draws=20, num_burn=40, select="scale", **options)  # type: ignore[arg-type]
    predictive = sgld.fit(problem, coreset, Rng(0))
    scale = predictive.selected_settings["prior_scale"]
    assert scale in (1.0, 2.0)
    given = dataclasses.replace(sgld, prior_scale=scale, select="none")
    told = given.fit(problem, coreset, Rng(0))
    assert told.selected_settings == {}
    x = problem.data.test.x[:20]
    assert torch.equal(predictive(x), told(x))


@pytest.mark.parametrize(
    ("given", "tried"),
    [
        ({"select": "cold"}, {(0.1, 8.0), (0.001, 2.0), (0.001, 4.0), (0.001, 8.0)}),
        ({"select": "cold", "prior_scale": 2.0}, {(0.1, 2.0), (0.001, 2.0)}),
        ({}, set()),
        ({"temperature": 0.01, "prior_scale": 2.0}, set()),
    ],
)
def test_hmc_selects_a_cold_setting_on_request(
    problem: Problem, coreset: Coreset, given: dict[str, Any], tried: set[tuple[float, float]]
) -> None:
    hmc = HMC(num_draws=4, num_burn=12, num_leapfrog=2, num_chains=2, **given)
    candidates = hmc.candidates(problem, coreset)
    assert {(one["temperature"], one["prior_scale"]) for one in candidates} == tried
    assert len(candidates) == len(tried)  # none twice
    predictive = hmc.fit(problem, coreset, Rng(0))
    selected: Any = {**predictive.selected_settings}
    assert bool(selected) == bool(tried)
    if selected:
        del selected["held_out_nll"]
        assert (selected["temperature"], selected["prior_scale"]) in tried
    same = dataclasses.replace(hmc, select="none", **selected).fit(problem, coreset, Rng(0))
    assert torch.equal(predictive(problem.data.test.x[:20]), same(problem.data.test.x[:20]))


def test_hmc_on_all_training_points_has_nothing_to_select_on(problem: Problem) -> None:
    whole, x = problem.subset(torch.arange(problem.num_train)), problem.data.test.x[:5]
    hmc = HMC(num_draws=2, num_burn=12, num_leapfrog=2, num_chains=2, select="cold")
    temperature, scale = COLD[0]
    given = dataclasses.replace(hmc, select="none", temperature=temperature, prior_scale=scale)
    assert torch.equal(hmc.fit(problem, whole, Rng(0))(x), given.fit(problem, whole, Rng(0))(x))


def test_laplace_by_marginal_likelihood_is_laplace_at_that_precision(
    problem: Problem, coreset: Coreset
) -> None:
    given = Laplace(num_steps=30, prior_scale=3.0, temperature=1.0)
    marginal = dataclasses.replace(given, choose_prior="marginal")
    old, new = (one.posterior(problem, coreset, Rng(0)) for one in (given, marginal))
    assert torch.equal(old.theta, new.theta)  # the network is not trained again
    assert new.precision != old.precision
    predict = marginal.fit(problem, coreset, Rng(0))
    scale = math.sqrt(problem.model.num_features / new.precision)
    assert predict.selected_settings == {"prior_scale": pytest.approx(scale)}
    assert predict(problem.data.test.x[:5]).exp().sum(1) == pytest.approx(1)


def test_last_layer_vi_by_marginal_likelihood(problem: Problem, coreset: Coreset) -> None:
    way = LastLayerVI(num_steps=20, choose_prior="marginal")
    predict = way.fit(problem, coreset, Rng(0))
    selected: Any = predict.selected_settings
    told = LastLayerVI(num_steps=20, **selected).fit(problem, coreset, Rng(0))
    assert torch.equal(predict(problem.data.test.x), told(problem.data.test.x))
    fixed = dataclasses.replace(way, ridge=0.5).fit(problem, coreset, Rng(0))
    assert fixed.selected_settings["ridge"] == 0.5
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(way, prior_variance=0.1).fit(problem, coreset, Rng(0))
    assert caught.value.code == "conflicting-options"
