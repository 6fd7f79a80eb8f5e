"""R-hat and effective sample sizes against arviz-stats and theory; words for what went wrong."""

import math
from collections.abc import Callable

import pytest
import torch
from arviz_stats.base import array_stats
from torch import Tensor

from pseudocore.core.rng import Rng
from pseudocore.inference import diagnostics
from pseudocore.inference.diagnostics import Diagnosis, Mixing


def chains(rho: float, num_draws: int, num_chains: int, num: int = 1, seed: int = 0) -> Tensor:
    """Stationary AR(1) chains with correlation rho, (draws, chains, num)."""
    noise = Rng(seed).normal(num_draws, num_chains, num, dtype=torch.float64)
    values = [noise[0]]
    for one in noise[1:]:
        values.append(rho * values[-1] + math.sqrt(1 - rho**2) * one)
    return torch.stack(values)


DRAWS = {
    "independent": chains(0.0, 100, 4, 3),
    "slow": chains(0.9, 251, 2, 3),
    "alternating": chains(-0.7, 60, 3, 3),
    "apart": chains(0.3, 50, 4, 3) + torch.arange(4)[:, None],
    "other scales": chains(0.3, 50, 4, 3) * (1 + torch.arange(4)[:, None]),
    "heavy tails": chains(0.5, 120, 2, 3) ** 5,
    "ties": chains(0.5, 120, 2, 3).round(),
    "few": chains(0.2, 8, 2, 3),
}
AXES = {"chain_axis": 1, "draw_axis": 0}
REFEREES = {
    diagnostics.rhat: lambda values: array_stats.rhat(values, **AXES, method="rank"),
    diagnostics.ess_bulk: lambda values: array_stats.ess(values, **AXES, method="bulk"),
    diagnostics.ess_tail: lambda values: array_stats.ess(
        values, **AXES, method="tail", prob=(0.05, 0.95)
    ),
}


@pytest.mark.parametrize("kind", [*DRAWS, "alone"])
@pytest.mark.parametrize("ours", REFEREES, ids=lambda ours: ours.__name__)
def test_against_arviz(kind: str, ours: Callable[[Tensor], Tensor]) -> None:
    """Arviz has no R-hat for a single chain; ours is that of its halves."""
    if kind == "alone" and ours is diagnostics.rhat:
        return
    values = {**DRAWS, "alone": chains(0.5, 80, 1, 3)}[kind]
    expected = torch.as_tensor(REFEREES[ours](values.numpy()))
    assert torch.allclose(ours(values), expected, rtol=1e-8, atol=0)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, -0.4])
def test_the_worth_of_autocorrelated_draws(rho: float) -> None:
    """The ESS of an AR(1) chain is n (1 − ρ) / (1 + ρ)."""
    values = chains(rho, 4000, 4, 8)
    theory = 16000 * (1 - rho) / (1 + rho)
    assert float(diagnostics.ess_bulk(values).median()) == pytest.approx(theory, rel=0.12)


def test_chains_that_agree_have_rhat_one_and_chains_that_do_not_more() -> None:
    assert float(diagnostics.rhat(chains(0.0, 1000, 4)).max()) < 1.01
    assert float(diagnostics.rhat(DRAWS["apart"]).min()) > 1.4
    assert float(diagnostics.rhat(DRAWS["other scales"]).min()) > 1.1


def test_a_drift_within_one_chain_is_seen() -> None:
    drift = chains(0.0, 200, 1) + torch.linspace(0, 3, 200)[:, None, None]
    assert float(diagnostics.rhat(drift)) > 1.2


def test_a_constant_is_worth_all_its_draws() -> None:
    assert float(diagnostics.ess_bulk(torch.ones(20, 2))) == 40


def test_too_few_draws_to_tell() -> None:
    assert all(math.isnan(value) for value in diagnostics.mixing(chains(0.0, 7, 2)))


def healthy(**changes: object) -> Diagnosis:
    mixed = Mixing(1.0, 300.0, 250.0)
    return Diagnosis(100, 4, mixed, mixed, 0.8, 0, 0, 0.2)._replace(**changes)


def test_nothing_to_say_about_healthy_chains() -> None:
    assert diagnostics.warnings(healthy()) == []
    assert (
        diagnostics.warnings(healthy(accept=None, stuck=None, divergent=None, energy_error=None))
        == []
    )
    assert (
        diagnostics.warnings(healthy(parameters=Mixing(3.0, 4.0, 4.0))) == []
    )  # weights need not agree


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"predictions": Mixing(1.4, 300.0, 250.0)}, "have not mixed: R-hat 1.40 on predictions"),
        ({"predictions": Mixing(1.0, 12.0, 9.0)}, "the 400 draws are worth 12 independent ones"),
        (
            {"num_draws": 3, "predictions": Mixing(math.nan, math.nan, math.nan)},
            "3 draws a chain are too few",
        ),
        ({"divergent": 7}, "7 of 400 trajectories diverged"),
        ({"stuck": 1}, "1 of 4 chains accepted nothing"),
        ({"accept": 0.12}, "only 12% of proposals were accepted"),
    ],
)
def test_each_trouble_has_its_sentence(changes: dict[str, object], words: str) -> None:
    (sentence,) = diagnostics.warnings(healthy(**changes))
    assert words in sentence


def test_several_fits_are_warned_of_at_once() -> None:
    fits = [
        healthy(predictions=Mixing(rhat, ess, ess))
        for rhat, ess in ((3.72, 7), (4.59, 60), (1.0, 300), (2.83, 8))
    ]
    mixed, worth = diagnostics.of_all_seeds(fits)
    assert mixed.startswith(
        "the chains have not mixed: R-hat 2.83 to 4.59 on predictions; run longer"
    )
    assert mixed.endswith(" (3 of 4 seeds)")
    assert worth.startswith("the 400 draws are worth 7 to 8 independent ones on predictions")
    assert worth.endswith(" (2 of 4 seeds)")
    assert diagnostics.of_all_seeds(fits[:1]) == diagnostics.warnings(fits[0])
    assert diagnostics.of_all_seeds([healthy(), healthy()]) == []
