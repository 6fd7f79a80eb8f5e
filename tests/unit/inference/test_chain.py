"""From start to draws: what is kept, resuming bit for bit, and sentences for chains that fail."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.inference import diagnostics
from pseudocore.inference.chain import Units, run_chains
from pseudocore.inference.draws import Draws, MemoryDraws
from pseudocore.inference.hmc import HMC
from pseudocore.inference.langevin import SGLD
from pseudocore.inference.predict import Predictive
from pseudocore.inference.sgd import Ensemble
from pseudocore.inference.sghmc import SGHMC, AlteredSGHMC
from pseudocore.store.draws import DrawsFolder

COMMON = {"num_draws": 5, "num_burn": 4, "num_chains": 3}
SAMPLERS = [
    HMC(num_leapfrog=3, **COMMON),
    SGLD(num_inner=2, batch_size=5, **COMMON),
    SGHMC(num_inner=2, batch_size=5, **COMMON),
    AlteredSGHMC(num_inner=2, **COMMON),
]
every_sampler = pytest.mark.parametrize(
    "sampler", [pytest.param(one, id=type(one).__name__) for one in SAMPLERS]
)


class Memory:
    """Checkpoints kept as copies."""

    def __init__(self) -> None:
        self.saved: tuple[int, dict[str, Tensor]] | None = None

    def load(self) -> tuple[int, dict[str, Tensor]] | None:
        return self.saved

    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        self.saved = (step, {name: value.clone() for name, value in tensors.items()})


def thetas(draws: Draws) -> Tensor:
    return torch.stack([draws[number] for number in range(len(draws))])


@every_sampler
def test_draws_are_those_after_burn_in(sampler: Any, problem: Problem, coreset: Coreset) -> None:
    """The loop spelled out: the streams are theta, init and (step, number)."""
    kept, steps = MemoryDraws(), []
    sampler.sample(
        problem,
        coreset,
        Rng(2),
        draws=kept,
        log_every=1,
        on_log=lambda step, values: steps.append(step),
    )
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
    whole, cut = MemoryDraws(), MemoryDraws()
    sampler.sample(problem, coreset, Rng(2), draws=whole)
    checkpoints, kept = Memory(), DrawsFolder(tmp_path / "draws") if on_disk else cut

    def interrupt(step: int, values: dict[str, float]) -> None:
        if step == stop + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sampler.sample(
            problem,
            coreset,
            Rng(2),
            draws=kept,
            checkpoints=checkpoints,
            checkpoint_every=2,
            log_every=1,
            on_log=interrupt,
        )
    assert checkpoints.saved is not None
    assert checkpoints.saved[0] == stop  # the step whose log was interrupted is taken again
    again = DrawsFolder(tmp_path / "draws") if on_disk else kept
    predictive = sampler.sample(problem, coreset, Rng(2), draws=again, checkpoints=checkpoints)
    assert torch.equal(thetas(again), thetas(whole))
    assert torch.equal(again.trace("log_density"), whole.trace("log_density"))
    assert torch.equal(
        predictive(problem.data.test.x), sampler.fit(problem, coreset, Rng(2))(problem.data.test.x)
    )


def test_draws_newer_than_the_checkpoint_are_made_again(problem: Problem, coreset: Coreset) -> None:
    whole, kept, checkpoints = MemoryDraws(), MemoryDraws(), Memory()
    SAMPLERS[0].sample(problem, coreset, Rng(2), draws=whole)

    def crash(step: int, values: dict[str, float]) -> None:
        if step == 8:
            raise RuntimeError("the machine went away")

    with pytest.raises(RuntimeError, match="went away"):
        SAMPLERS[0].sample(
            problem,
            coreset,
            Rng(2),
            draws=kept,
            checkpoints=checkpoints,
            checkpoint_every=5,
            log_every=1,
            on_log=crash,
        )
    assert len(kept) == 4
    SAMPLERS[0].sample(problem, coreset, Rng(2), draws=kept, checkpoints=checkpoints)
    assert torch.equal(thetas(kept), thetas(whole))


def test_draws_lost_since_the_checkpoint_are_missed(problem: Problem, coreset: Coreset) -> None:
    checkpoints = Memory()
    SAMPLERS[0].sample(problem, coreset, Rng(2), checkpoints=checkpoints)
    with pytest.raises(RunError, match="made 5 draws at its checkpoint, but only 0"):
        SAMPLERS[0].sample(problem, coreset, Rng(2), checkpoints=checkpoints)


def test_starts(problem: Problem, coreset: Coreset) -> None:
    own, scaled = (
        HMC(num_draws=1, num_burn=0, num_chains=2, num_leapfrog=1, step_size=1e-9, init_scale=scale)
        for scale in (None, 5.0)
    )
    networks = own.sample(problem, coreset, Rng(2)).draws[0]
    assert torch.allclose(
        networks, problem.model.init(Rng(2)("theta"), num=2, dtype=torch.float64), atol=1e-6
    )
    assert float(scaled.sample(problem, coreset, Rng(2)).draws[0].std()) == pytest.approx(
        5, rel=0.3
    )


@pytest.mark.parametrize(("num_burn", "adapted"), [(9, False), (10, True)])
def test_a_burn_in_too_short_to_adapt_in(
    problem: Problem, coreset: Coreset, num_burn: int, adapted: bool
) -> None:
    kept = MemoryDraws()
    hmc = HMC(
        num_draws=2, num_burn=num_burn, num_leapfrog=2, step_size=0.02, jitter=0.0, temperature=0.25
    )
    hmc.sample(problem, coreset, Rng(0), draws=kept)
    assert (
        torch.allclose(kept.trace("step_size"), torch.tensor(0.01, dtype=torch.float64))
        is not adapted
    )  # 0.02 √T


TOLD: dict[str, Any] = {"temperature": 0.1, "prior_scale": 8.0}


@pytest.mark.parametrize("target", [0.0, 0.8])
def test_no_proposal_accepted(problem: Problem, coreset: Coreset, target: float) -> None:
    hmc = HMC(
        num_draws=3,
        num_burn=0,
        num_chains=2,
        num_leapfrog=2,
        step_size=1e4,
        target_accept=target,
        **TOLD,
    )
    with pytest.raises(
        RunError,
        match=r"every one of 6 proposals was rejected: a step size of 1.*e\+04 is too long .*; try .*1e\+03",
    ):
        hmc.fit(problem, coreset, Rng(0))


@pytest.mark.parametrize(
    "sampler",
    [
        SGLD(step_size=1e3, **COMMON),
        SGHMC(step_size=1e3, **COMMON),
        AlteredSGHMC(step_size=1e3, **COMMON),
    ],
)
def test_a_step_size_that_diverges(sampler: Any, problem: Problem, coreset: Coreset) -> None:
    with pytest.raises(
        RunError,
        match=r"the chain diverged: theta became NaN .* a step size of 1e\+03 is too long .*, try [13]e\+02",
    ):
        sampler.fit(problem, coreset, Rng(0))


def test_a_start_without_a_density(problem: Problem, coreset: Coreset) -> None:
    with pytest.raises(RunError, match=r"try a smaller init_scale than 1e\+200"):
        HMC(init_scale=1e200, **COMMON).fit(problem, coreset, Rng(0))
    assert "init_scale = 0.01" in HMC(**COMMON).on_divergence()
    assert "None" not in HMC(**COMMON).on_divergence()


def test_more_draws_than_memory(problem: Problem, coreset: Coreset) -> None:
    with pytest.raises(ConfigError, match=r"5 draws of .* MiB take .* keep fewer"):
        SAMPLERS[0].sample(problem, coreset, Rng(0), draws=MemoryDraws(limit_mib=1e-3))


def test_the_default_step_size_shrinks_with_the_weight(problem: Problem, coreset: Coreset) -> None:
    """A hundredfold weight leaves a default chain stable, where the same step size would not be."""
    heavy = Coreset(coreset.x, coreset.y, 1e6 * coreset.weight)
    for sampler in SAMPLERS[1:]:
        assert sampler.fit(problem, heavy, Rng(0))(problem.data.test.x).isfinite().all()


# --- diagnosis of a real chain
# ----------------------------------------------------------------------------------------


def test_a_chain_and_its_diagnosis(problem: Problem, coreset: Coreset) -> None:
    predictive = HMC(
        num_draws=100, num_burn=80, num_chains=4, num_leapfrog=8, temperature=1.0, prior_scale=1.0
    ).fit(problem, coreset, Rng(0))
    found = diagnostics.diagnose(predictive)
    assert (found.num_draws, found.num_chains, found.stuck, found.divergent) == (100, 4, 0, 0)
    assert 0.6 < (found.accept or 0) < 0.97
    assert 0.99 < found.predictions.rhat < 1.1
    assert found.predictions.ess_bulk > 40


def test_a_chain_that_was_too_short(problem: Problem, coreset: Coreset) -> None:
    hmc = HMC(
        num_draws=20, num_burn=0, num_chains=4, num_leapfrog=1, step_size=1e-4, target_accept=0.0
    )
    words = diagnostics.warnings(diagnostics.diagnose(hmc.fit(problem, coreset, Rng(0))))
    assert any("have not mixed" in word for word in words)


def test_samplers_without_a_metropolis_test_have_no_acceptance(
    problem: Problem, coreset: Coreset
) -> None:
    found = diagnostics.diagnose(
        SGLD(num_draws=10, num_burn=2, num_inner=2).fit(problem, coreset, Rng(0))
    )
    assert found[4:] == (None, None, None, None)


def test_an_ensemble_is_no_chain(problem: Problem, coreset: Coreset) -> None:
    predictive = Ensemble(num_steps=2, num_members=2).fit(problem, coreset, Rng(0))
    assert isinstance(predictive, Predictive)
    with pytest.raises(ConfigError, match="only draws of chains"):
        diagnostics.diagnose(predictive)


def test_units_change_the_walk_and_not_the_posterior(problem: Problem, coreset: Coreset) -> None:
    """A Gaussian whose scales span three decades; in its own units it is a ball."""
    num = problem.model.num_parameters
    centre, spread = (
        Rng(5)("centre").normal(num, dtype=torch.float64),
        10 ** (-3 * Rng(5)("scale").uniform(num, dtype=torch.float64)),
    )
    units = Units(centre, spread)
    theta = Rng(6).normal(2, num, dtype=torch.float64)
    assert torch.allclose(units.theta(units.measured(theta)), theta, atol=1e-12)

    def log_density(theta: Tensor, rng: Rng) -> Tensor:
        return -0.5 * ((theta - centre) / spread).square().sum(-1)

    hmc = HMC(num_draws=200, num_burn=300, num_leapfrog=8, step_size=0.1, temperature=1.0)
    kept = {name: MemoryDraws() for name in ("own", "equal")}
    run_chains(hmc, log_density, problem, coreset, Rng(7), draws=kept["own"], units=units)
    run_chains(hmc, log_density, problem, coreset, Rng(7), draws=kept["equal"])
    square = (
        torch.stack([units.measured(kept["own"][place]) for place in range(200)]).square().mean()
    )
    assert float(square) == pytest.approx(1, abs=0.05)
    own, equal = (float(kept[name].trace("step_size").double().mean()) for name in ("own", "equal"))
    assert own > 100 * equal  # the narrowest direction bounds the step of all
