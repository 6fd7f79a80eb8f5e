"""The prior's scale from held-out training points: what may be looked at, which scale wins, what is
done with it.
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
from pseudocore.core.types import Coreset
from pseudocore.inference.choose import FACTORS, by_split, held_out, mean_log_likelihood
from pseudocore.inference.hmc import CANDIDATES, HMC
from pseudocore.inference.langevin import SGLD
from pseudocore.inference.laplace import Laplace
from pseudocore.inference.last_layer_vi import LastLayerVI
from pseudocore.inference.predict import Prediction, Predictive

SETTINGS = [{"prior_scale": factor} for factor in FACTORS]


@dataclass(frozen=True)
class Fake:
    """Gives the true label probability exp(-|log(scale / best)|) on training points, and notes how
    it was called.
    """

    best: float
    calls: list[Any]
    prior_scale: float = 1.0
    num_draws: int = 40
    num_burn: int = 40
    num_chains: int = 2
    broken: tuple[float, ...] = ()

    def sample(self, problem: Problem, coreset: Coreset, rng: Rng, **options: Any) -> Any:
        self.calls.append(
            (self.prior_scale, self.num_chains, self.num_draws, self.num_burn, options)
        )
        if self.prior_scale in self.broken:
            raise RunError(f"ran away at {self.prior_scale}")
        score = -abs(math.log(self.prior_scale / self.best)) - 0.1
        labels = {tuple(x.tolist()): int(y) for x, y in zip(*problem.data.train, strict=True)}

        class Fitted:
            selected_settings: dict[str, float]

            def __call__(self, raw: Tensor) -> Tensor:
                y = torch.tensor(
                    [labels[tuple(x.tolist())] for x in raw]
                )  # a test point would not be found
                other = math.log(1 - math.exp(score))
                return torch.full((len(raw), 2), other, dtype=torch.float64).scatter(
                    1, y[:, None], score
                )

        return Fitted()


@pytest.mark.parametrize(("best", "expected"), [(0.25, 0.25), (0.6, 0.5), (1.1, 1.0), (100.0, 4.0)])
def test_the_best_scale_on_held_out_training_points_wins(
    problem: Problem, coreset: Coreset, best: float, expected: float
) -> None:
    calls: list[Any] = []
    predictive = by_split(Fake(best, calls), SETTINGS, problem, coreset, Rng(0), draws="kept")
    assert [scale for scale, *_ in calls] == [*FACTORS, expected]
    assert all(call[1:] == (2, 10, 20, {}) for call in calls[:-1])
    assert calls[-1] == (expected, 2, 40, 40, {"draws": "kept"})
    assert predictive.selected_settings["prior_scale"] == expected
    assert predictive.selected_settings["held_out_nll"] == pytest.approx(
        abs(math.log(expected / best)) + 0.1
    )


def test_a_scale_whose_chain_fails_is_out(problem: Problem, coreset: Coreset) -> None:
    assert by_split(
        Fake(1.0, [], broken=(1.0, 4.0)), SETTINGS, problem, coreset, Rng(0)
    ).selected_settings["prior_scale"] in (0.5, 2.0)
    with pytest.raises(RunError, match="ran away at 4"):
        by_split(Fake(1.0, [], broken=FACTORS), SETTINGS, problem, coreset, Rng(0))


def test_points_of_the_coreset_are_not_held_out(problem: Problem) -> None:
    own = problem.subset(torch.arange(0, problem.num_train, 2))
    index = held_out(problem, own, Rng(0))
    assert index.sort().values.tolist() == list(range(1, problem.num_train, 2))
    assert len(held_out(problem, own, Rng(0), num=7)) == 7
    made = Coreset(own.x, own.y, own.weight)
    assert len(held_out(problem, made, Rng(0))) == problem.num_train
    with pytest.raises(ConfigError, match="holds every training point"):
        held_out(problem, problem.subset(torch.arange(problem.num_train)), Rng(0))


def test_the_score_is_the_mean_log_probability_of_the_label(problem: Problem) -> None:
    index = torch.arange(problem.num_train)
    even = torch.full((2,), 0.5, dtype=torch.float64).log()
    assert mean_log_likelihood(
        lambda raw: even.expand(len(raw), 2), problem, index
    ) == pytest.approx(math.log(0.5))
    lean = torch.tensor([0.9, 0.1], dtype=torch.float64).log()
    share = float((problem.data.train.y == 0).double().mean())
    expected = share * math.log(0.9) + (1 - share) * math.log(0.1)
    assert mean_log_likelihood(
        lambda raw: lean.expand(len(raw), 2), problem, index
    ) == pytest.approx(expected)


def test_a_sampler_chooses_and_then_samples_as_if_told(problem: Problem, coreset: Coreset) -> None:
    """From a scale too small for moons a wider one is chosen; the draws are those of a chain that
    was given it.
    """
    sgld = SGLD(num_draws=20, num_burn=40, temperature=1.0, prior_scale=0.5, choose_prior="split")
    predictive = sgld.fit(problem, coreset, Rng(0))
    assert isinstance(predictive, Predictive)
    scale = predictive.selected_settings["prior_scale"]
    assert scale in (1.0, 2.0)
    told = dataclasses.replace(sgld, prior_scale=scale, choose_prior="given").fit(
        problem, coreset, Rng(0)
    )
    assert told.selected_settings == {}
    x = problem.data.test.x[:20]
    assert torch.equal(predictive(x), told(x))


@pytest.mark.parametrize(
    ("told", "tried"),
    [
        ({}, {(0.1, 8.0), (0.001, 2.0), (0.001, 4.0), (0.001, 8.0)}),
        ({"temperature": 1.0}, {(1.0, 8.0), (1.0, 4.0), (1.0, 2.0)}),
        ({"prior_scale": 2.0}, {(0.1, 2.0), (0.001, 2.0)}),
    ],
)
def test_hmc_chooses_what_it_is_not_told(
    problem: Problem,
    coreset: Coreset,
    told: dict[str, float],
    tried: set[tuple[float, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hmc = HMC(num_draws=4, num_burn=12, num_leapfrog=2, num_chains=2, **told)  # type: ignore[arg-type]
    calls: list[Any] = []
    monkeypatch.setattr(
        "pseudocore.inference.chain.by_split",
        lambda sampler, settings, *_, **__: calls.append(settings),
    )
    hmc.fit(problem, coreset, Rng(0))
    assert {(one["temperature"], one["prior_scale"]) for one in calls[0]} == tried
    assert len(calls[0]) == len(tried)  # none twice
    monkeypatch.undo()
    predictive = hmc.fit(problem, coreset, Rng(0))
    assert (
        predictive.selected_settings["temperature"],
        predictive.selected_settings["prior_scale"],
    ) in tried
    as_told = dataclasses.replace(
        hmc,
        temperature=predictive.selected_settings["temperature"],
        prior_scale=predictive.selected_settings["prior_scale"],
    )
    x = problem.data.test.x[:20]
    assert torch.equal(predictive(x), as_told.fit(problem, coreset, Rng(0))(x))


def test_hmc_on_all_training_points_has_nothing_to_choose_on(problem: Problem) -> None:
    whole = problem.subset(torch.arange(problem.num_train))
    hmc = HMC(num_draws=2, num_burn=12, num_leapfrog=2, num_chains=2)
    told = dataclasses.replace(hmc, temperature=CANDIDATES[0][0], prior_scale=CANDIDATES[0][1])
    x = problem.data.test.x[:5]
    assert torch.equal(hmc.fit(problem, whole, Rng(0))(x), told.fit(problem, whole, Rng(0))(x))


def test_laplace_by_marginal_likelihood_is_laplace_at_that_precision(
    problem: Problem, coreset: Coreset
) -> None:
    given = Laplace(num_steps=30, prior_scale=3.0, temperature=1.0)
    chosen = dataclasses.replace(given, choose_prior="marginal")
    old, new = given.posterior(problem, coreset, Rng(0)), chosen.posterior(problem, coreset, Rng(0))
    assert torch.equal(old.theta, new.theta)  # the network is not trained again
    assert new.precision != old.precision
    predict = chosen.fit(problem, coreset, Rng(0))
    assert isinstance(predict, Prediction)
    assert predict.selected_settings["prior_scale"] == pytest.approx(
        math.sqrt(problem.model.num_features / new.precision)
    )
    assert predict(problem.data.test.x[:5]).exp().sum(1) == pytest.approx(1)


def test_last_layer_vi_by_marginal_likelihood(problem: Problem, coreset: Coreset) -> None:
    way = LastLayerVI(num_steps=20, choose_prior="marginal")
    predict = way.fit(problem, coreset, Rng(0))
    assert isinstance(predict, Prediction)
    told = LastLayerVI(num_steps=20, **predict.selected_settings).fit(problem, coreset, Rng(0))  # type: ignore[arg-type]
    assert torch.equal(predict(problem.data.test.x), told(problem.data.test.x))
    fixed = dataclasses.replace(way, ridge=0.5).fit(problem, coreset, Rng(0))
    assert isinstance(fixed, Prediction)
    assert fixed.selected_settings["ridge"] == 0.5
    with pytest.raises(ConfigError, match="leave one of them out"):
        dataclasses.replace(way, prior_variance=0.1).fit(problem, coreset, Rng(0))
