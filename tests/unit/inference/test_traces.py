"""What is kept of the chains for looking at: every number there is, thinned, and nothing that JSON
cannot hold.
"""

import json
import math

import torch

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.inference.draws import MemoryDraws, traces
from pseudocore.inference.hmc import HMC
from pseudocore.inference.langevin import SGLD


def draws(num: int) -> MemoryDraws:
    kept = MemoryDraws()
    for number in range(num):
        kept.append(
            torch.zeros(2, 3),
            {"log_density": torch.tensor([float(number), -float(number)]), "other": torch.zeros(2)},
        )
    return kept


def test_traces_are_thinned_evenly() -> None:
    assert traces(draws(5)) == {
        "log_density": [[0.0, 1.0, 2.0, 3.0, 4.0], [-0.0, -1.0, -2.0, -3.0, -4.0]]
    }
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


def test_samplers_tell_what_they_know(problem: Problem, coreset: Coreset) -> None:
    hmc = HMC(num_draws=4, num_burn=2, num_leapfrog=2, num_chains=3).fit(problem, coreset, Rng(0))
    found = traces(hmc.draws)  # type: ignore[arg-type]
    assert set(found) == {"log_density", "accept", "step_size", "energy_error"}
    assert all(
        len(chains) == 3 and all(len(chain) == 4 for chain in chains) for chains in found.values()
    )
    sgld = SGLD(num_draws=4, num_burn=2, num_inner=2).fit(problem, coreset, Rng(0))
    assert set(traces(sgld.draws)) == {"log_density", "gradient_norm"}  # type: ignore[arg-type]
