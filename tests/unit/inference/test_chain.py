"""From start to draws: what is kept, resuming bit for bit, and errors of chains that fail; draws
thinned for a file.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.inference import HMC, SGHMC, SGLD, AlteredSGHMC, Ensemble, diagnostics
from pseudocore.inference.chain import Units, run_chains
from pseudocore.inference.draws import Draws, MemoryDraws, traces
from pseudocore.store.draws import DrawsFolder
from pseudocore.testing.problems import MemoryCheckpoints

COMMON = {"num_draws": 5, "num_burn": 4, "num_chains": 3}
SAMPLERS: list[Any] = [
    HMC(num_leapfrog=3, **COMMON),
    SGLD(num_inner=2, batch_size=5, **COMMON),
    SGHMC(num_inner=2, batch_size=5, **COMMON),
    AlteredSGHMC(num_inner=2, **COMMON),
]
every_sampler = pytest.mark.parametrize(
    "sampler", [pytest.param(one, id=type(one).__name__) for one in SAMPLERS]
)


def thetas(draws: Draws) -> Tensor:
    return torch.stack([draws[number] for number in range(len(draws))])


@every_sampler
def test_draws_are_those_after_burn_in(sampler: Any, problem: Problem, coreset: Coreset) -> None:
    kept, steps = MemoryDraws(), list[int]()
    log: dict[str, Any] = {"log_every": 1, "on_log": lambda step, values: steps.append(step)}
    sampler.sample(problem, coreset, Rng(2), draws=kept, **log)
    assert thetas(kept).shape == (5, 3, problem.model.num_parameters)
    assert steps == list(range(1, 10))
    assert len(thetas(kept).unique(dim=0)) == 5
    assert kept.trace("log_density").shape == (5, 3)


@every_sampler
@pytest.mark.parametrize("stop", [1, 4, 7])
@pytest.mark.parametrize("on_disk", [False, True])
def test_killed_and_resumed_is_never_killed(
    sampler: Any, problem: Problem, coreset: Coreset, stop: int, on_disk: bool, tmp_path: Path
) -> None:
    whole, memory = MemoryDraws(), MemoryDraws()
    sampler.sample(problem, coreset, Rng(2), draws=whole)

    def kept() -> Draws:
        return DrawsFolder(tmp_path / "draws") if on_disk else memory

    def interrupt(step: int, values: dict[str, float]) -> None:
        if step == stop + 1:
            raise KeyboardInterrupt

    checkpoints = MemoryCheckpoints()
    options: dict[str, Any] = {"checkpoints": checkpoints, "checkpoint_every": 2, "log_every": 1}
    with pytest.raises(KeyboardInterrupt):
        sampler.sample(problem, coreset, Rng(2), draws=kept(), on_log=interrupt, **options)
    saved = checkpoints.load()
    assert saved is not None
    assert saved[0] == stop  # the step whose log was interrupted is taken again
    again = kept()
    predictive = sampler.sample(problem, coreset, Rng(2), draws=again, checkpoints=checkpoints)
    assert torch.equal(thetas(again), thetas(whole))
    assert torch.equal(again.trace("log_density"), whole.trace("log_density"))
    x = problem.data.test.x
    assert torch.equal(predictive(x), sampler.fit(problem, coreset, Rng(2))(x))


def test_draws_and_checkpoints_that_do_not_match(problem: Problem, coreset: Coreset) -> None:
    """Draws newer than the checkpoint are made again, older ones are missed."""
    whole, kept, checkpoints = MemoryDraws(), MemoryDraws(), MemoryCheckpoints()
    sampler = SAMPLERS[0]
    sampler.sample(problem, coreset, Rng(2), draws=whole)

    def crash(step: int, values: dict[str, float]) -> None:
        if step == 8:
            raise RuntimeError("the machine went away")

    options: dict[str, Any] = {"draws": kept, "checkpoints": checkpoints}
    often: dict[str, Any] = {"checkpoint_every": 5, "log_every": 1, "on_log": crash}
    with pytest.raises(RuntimeError, match="went away"):
        sampler.sample(problem, coreset, Rng(2), **options, **often)
    assert len(kept) == 4
    sampler.sample(problem, coreset, Rng(2), **options)
    assert torch.equal(thetas(kept), thetas(whole))
    with pytest.raises(RunError) as caught:
        sampler.sample(problem, coreset, Rng(2), checkpoints=checkpoints)
    assert caught.value.fields == {"expected": 5, "found": 0}


def test_starts(problem: Problem, coreset: Coreset) -> None:
    own, scaled = (
        HMC(num_draws=1, num_burn=0, num_chains=2, num_leapfrog=1, step_size=1e-9, init_scale=scale)
        .sample(problem, coreset, Rng(2))
        .draws
        for scale in (None, 5.0)
    )
    networks = problem.model.init(Rng(2)("theta"), num=2, dtype=torch.float64)
    assert torch.allclose(own, networks, atol=1e-6)
    assert float(scaled.std()) == pytest.approx(5, rel=0.3)


@pytest.mark.parametrize(("num_burn", "is_adapted"), [(9, False), (10, True)])
def test_a_short_burn_in_adapts_no_step_size(
    problem: Problem, coreset: Coreset, num_burn: int, is_adapted: bool
) -> None:
    kept = MemoryDraws()
    options = {"num_leapfrog": 2, "step_size": 0.02, "jitter": 0.0, "temperature": 0.25}
    HMC(num_draws=2, num_burn=num_burn, **options).sample(problem, coreset, Rng(0), draws=kept)  # type: ignore[arg-type]
    scaled = torch.tensor(0.01, dtype=torch.float64)  # 0.02 √T
    assert torch.allclose(kept.trace("step_size"), scaled) is not is_adapted


@pytest.mark.parametrize("target", [0.0, 0.8])
def test_no_proposal_accepted(problem: Problem, coreset: Coreset, target: float) -> None:
    given = {"temperature": 0.1, "prior_scale": 8.0, "target_accept": target, "step_size": 1e4}
    hmc = HMC(num_draws=3, num_burn=0, num_chains=2, num_leapfrog=2, **given)  # type: ignore[arg-type]
    words = r"every one of 6 proposals was rejected: a step size of 1.*e\+04 .*; try .*1e\+03"
    with pytest.raises(RunError, match=words) as caught:
        hmc.fit(problem, coreset, Rng(0))
    assert caught.value.code == "draws-unusable"


@pytest.mark.parametrize("make", [SGLD, SGHMC, AlteredSGHMC])
def test_a_step_size_that_diverges(make: Any, problem: Problem, coreset: Coreset) -> None:
    words = r"theta became NaN .* a step size of 1e\+03 is too long .*, try [13]e\+02"
    with pytest.raises(RunError, match=words) as caught:
        make(step_size=1e3, **COMMON).fit(problem, coreset, Rng(0))
    assert caught.value.code == "chain-diverged"


def test_a_start_without_a_density(problem: Problem, coreset: Coreset) -> None:
    with pytest.raises(RunError, match=r"try a smaller init_scale than 1e\+200"):
        HMC(init_scale=1e200, **COMMON).fit(problem, coreset, Rng(0))
    assert "init_scale = 0.01" in HMC(**COMMON).on_divergence()


def test_more_draws_than_memory(problem: Problem, coreset: Coreset) -> None:
    with pytest.raises(ConfigError) as caught:
        SAMPLERS[0].sample(problem, coreset, Rng(0), draws=MemoryDraws(limit_mib=1e-3))
    assert caught.value.code == "too-many-draws"


def test_the_default_step_size_shrinks_with_the_weight(problem: Problem, coreset: Coreset) -> None:
    """A millionfold weight leaves a default chain stable, where the same step size would not be."""
    heavy = Coreset(coreset.x, coreset.y, 1e6 * coreset.weight)
    for sampler in SAMPLERS[1:]:
        assert sampler.fit(problem, heavy, Rng(0))(problem.data.test.x).isfinite().all()


def test_units_change_the_walk_and_not_the_posterior(problem: Problem, coreset: Coreset) -> None:
    """A Gaussian whose scales span three decades; in its own units it is a ball."""
    num, rng = problem.model.num_parameters, Rng(5)
    centre = rng("centre").normal(num, dtype=torch.float64)
    spread = 10 ** (-3 * rng("scale").uniform(num, dtype=torch.float64))
    units = Units(centre, spread)
    theta = Rng(6).normal(2, num, dtype=torch.float64)
    assert torch.allclose(units.theta(units.measured(theta)), theta, atol=1e-12)

    def log_density(theta: Tensor, rng: Rng) -> Tensor:
        return -0.5 * ((theta - centre) / spread).square().sum(-1)

    hmc = HMC(num_draws=200, num_burn=300, num_leapfrog=8, step_size=0.1, temperature=1.0)
    own, equal = MemoryDraws(), MemoryDraws()
    run_chains(hmc, log_density, problem, coreset, Rng(7), draws=own, units=units)
    run_chains(hmc, log_density, problem, coreset, Rng(7), draws=equal)
    square = units.measured(thetas(own)).square().mean()
    assert float(square) == pytest.approx(1, abs=0.05)
    sizes = [float(draws.trace("step_size").double().mean()) for draws in (own, equal)]
    assert sizes[0] > 100 * sizes[1]  # the narrowest direction bounds the step of all


# --- diagnosis of a real chain


def test_a_chain_and_its_diagnosis(problem: Problem, coreset: Coreset) -> None:
    given = {"temperature": 1.0, "prior_scale": 1.0}
    hmc = HMC(num_draws=100, num_burn=80, num_chains=4, num_leapfrog=8, **given)  # type: ignore[arg-type]
    found = diagnostics.diagnose(hmc.fit(problem, coreset, Rng(0)))
    assert (found.num_draws, found.num_chains, found.stuck, found.divergent) == (100, 4, 0, 0)
    assert 0.6 < (found.accept or 0) < 0.97
    assert 0.99 < found.predictions.rhat < 1.1
    assert found.predictions.ess_bulk > 40


def test_a_chain_that_was_too_short(problem: Problem, coreset: Coreset) -> None:
    hmc = HMC(num_draws=20, num_burn=0, num_leapfrog=1, step_size=1e-4, target_accept=0.0)
    words = diagnostics.warnings(diagnostics.diagnose(hmc.fit(problem, coreset, Rng(0))))
    assert any("have not mixed" in word for word in words)


def test_what_is_no_metropolis_chain(problem: Problem, coreset: Coreset) -> None:
    sgld = SGLD(num_draws=10, num_burn=2, num_inner=2).fit(problem, coreset, Rng(0))
    assert diagnostics.diagnose(sgld)[4:] == (None, None, None, None)
    ensemble = Ensemble(num_steps=2, num_members=2).fit(problem, coreset, Rng(0))
    with pytest.raises(ConfigError) as caught:
        diagnostics.diagnose(ensemble)
    assert caught.value.code == "no-chains"


# --- traces


def test_traces_are_thinned_evenly() -> None:
    def draws(num: int) -> MemoryDraws:
        kept = MemoryDraws()
        for number in range(num):
            density = torch.tensor([float(number), -float(number)])
            kept.append(torch.zeros(2, 3), {"log_density": density, "other": torch.zeros(2)})
        return kept

    expected = [[0.0, 1.0, 2.0, 3.0, 4.0], [-0.0, -1.0, -2.0, -3.0, -4.0]]
    assert traces(draws(5)) == {"log_density": expected}
    thin = traces(draws(1001), limit=200)["log_density"][0]
    assert thin == [6.0 * place for place in range(167)]
    assert len(traces(draws(400))["log_density"][1]) == 200


def test_what_is_not_finite_is_none() -> None:
    kept = MemoryDraws()
    for value in (1 / 3, math.inf, math.nan):
        kept.append(torch.zeros(1, 3), {"energy_error": torch.tensor([value], dtype=torch.float64)})
    found = traces(kept)
    assert found == {"energy_error": [[0.333333, None, None]]}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_what_samplers_trace(problem: Problem, coreset: Coreset) -> None:
    names = {
        "HMC": {"log_density", "accept", "step_size", "energy_error"},
        "SGLD": {"log_density", "gradient_norm"},
        "SGHMC": {"log_density", "kinetic"},
        "AlteredSGHMC": {"log_density", "kinetic"},
    }
    for sampler in SAMPLERS:
        found = traces(sampler.fit(problem, coreset, Rng(0)).chains)
        assert set(found) == names[type(sampler).__name__]
        assert all([len(chain) for chain in chains] == [5, 5, 5] for chains in found.values())
