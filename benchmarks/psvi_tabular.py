"""PSVI beside uniform selection on tabular data: how far is the coreset's posterior from that of
all data?

`python benchmarks/psvi_tabular.py SET.npz --seeds 3 --commit HASH --out benchmarks/results`

Logistic regression with prior N(0, 1) on weights and biases, features as stored. The reference is a
long HMC run on all training data; every coreset is sampled by HMC too. Reverse and forward KL are
between Gaussians of the draws' moments, in the difference of the two classes' parameters: their sum
has the prior as its posterior whatever the data are. The chains walk in coordinates in which
Laplace's approximation is standard normal; R-hat and ESS are the worst over these coordinates (of
coresets, every eighth) and their squares, since both moments are used.

`floor` is the least reverse KL that M points can have. They say nothing of all but M directions of
θ, where their posterior is the prior; with Λ the eigenvalues of the full posterior's precision, in
units of the prior's, from the largest on, that costs at least ½ Σ (Λ − 1 − log Λ) over those after
the M-th.
"""

import argparse
import itertools
import shlex
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cells import made_here
from torch import Tensor
from torch.nn.functional import logsigmoid

from pseudocore import assembly
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, LogDensity
from pseudocore.data import load
from pseudocore.inference.diagnostics import mixing
from pseudocore.inference.hmc import HMC
from pseudocore.methods.bayes.psvi import PSVI
from pseudocore.methods.select.full import Full
from pseudocore.methods.select.uniform import Uniform
from pseudocore.objectives.small_models import Gaussian, Softmax, kl, posterior
from pseudocore.reproduce import records
from pseudocore.runtime.loop import drive, run

SIZES = (10, 20, 50, 100, 200, 500)
PRIOR = 2.0
"""Variance of the prior on a difference of two parameters."""
JUDGED = ("reverse_kl", "forward_kl", "test_log_likelihood")


class Sampled(NamedTuple):
    moments: Gaussian
    laplace: Gaussian
    draws: Tensor  # (draws, chains, p)
    report: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("data")
    add("--out", type=Path, required=True, help="folder of records")
    add("--commit", required=True)
    add("--seeds", type=int, default=1)
    add("--sizes", type=int, nargs="+", default=SIZES)
    add("--steps", type=int, default=2000)
    add("--covariance", choices=["draws", "moments"], default="moments")
    add("--chains", type=int, default=64)
    add("--draws", type=int, default=400)
    arguments = parser.parse_args()
    data = load(arguments.data)
    setup = assembly.Setup(model="linear", preprocess="none")
    problem = assembly.build(setup, data, device="cpu")
    full = sample(problem, Full().select(problem, Rng(0)), Rng(0)("full"), arguments)
    record: dict[str, Any] = {
        "name": Path(arguments.data).stem,
        **about(problem, data.name, arguments),
        **made_here(arguments.commit),
        "command": shlex.join(["python", *sys.argv]),
        "full": reference(problem, full),
        "floor": {size: floor(full.moments, size) for size in arguments.sizes},
        "summary": [],
        "rows": [],
    }
    print(record, flush=True)
    for row in rows(problem, full, arguments):
        print(row, flush=True)
        record["rows"].append(row)
        record["summary"] = list(summary(record["rows"]))
        records.put(arguments.out / "psvi.jsonl", record)


def about(problem: Problem, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "data": name,
        "num_train": problem.num_train,
        "num_features": problem.data.shape[0],
        "num_steps": arguments.steps,
        "num_seeds": arguments.seeds,
    }


def reference(problem: Problem, full: Sampled) -> dict[str, float]:
    halves = full.draws.chunk(2, 1)
    return {
        **full.report,
        "test_log_likelihood": score(problem, full),
        "kl_between_halves": float(kl(*(moments(half) for half in halves))),
        "reverse_kl_of_laplace": float(kl(full.laplace, full.moments)),
        "forward_kl_of_laplace": float(kl(full.moments, full.laplace)),
    }


def floor(full: Gaussian, size: int) -> float:
    ratios = (
        (PRIOR / torch.linalg.eigvalsh(full.covariance)).clamp_min(1).sort(descending=True).values
    )
    return float(0.5 * (ratios - 1 - ratios.log())[size:].sum())


def rows(
    problem: Problem, full: Sampled, arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    for size, seed in itertools.product(arguments.sizes, range(arguments.seeds)):
        key = {"size": size, "seed": seed}
        uniform = Uniform(per_class=size // 2, weighting="mass").select(problem, Rng(seed))
        yield {"method": "uniform", **key, **judged(problem, uniform, full, arguments)}
        method = PSVI(
            per_class=size // 2, num_steps=arguments.steps, covariance=arguments.covariance
        )
        outcome = run(method, problem, seed=seed)
        about = {
            "status": outcome.status,
            "seconds": round(outcome.seconds, 1),
            "num_active": int((outcome.coreset.weight > 0).sum()),
        }
        yield {
            "method": "psvi",
            **key,
            **about,
            **judged(problem, outcome.coreset, full, arguments),
        }


def summary(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Mean and standard deviation over seeds, and the worst that the chains looked."""
    for method, size in dict.fromkeys((row["method"], row["size"]) for row in rows):
        mine = [row for row in rows if (row["method"], row["size"]) == (method, size)]
        yield {
            "method": method,
            "size": size,
            "num_seeds": len(mine),
            **{name: spread([row[name] for row in mine]) for name in JUDGED},
            "r_hat": max(row["r_hat"] for row in mine),
            "ess": min(min(row["ess_bulk"], row["ess_tail"]) for row in mine),
        }


def spread(values: list[float]) -> dict[str, float | None]:
    return {
        "mean": statistics.mean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else None,
    }


def judged(
    problem: Problem, coreset: Coreset, full: Sampled, arguments: argparse.Namespace
) -> dict[str, float]:
    sampled = sample(problem, coreset, Rng(0)("coreset"), arguments)
    reverse, forward = kl(sampled.moments, full.moments), kl(full.moments, sampled.moments)
    return (
        dict(zip(JUDGED, (float(reverse), float(forward), score(problem, sampled)), strict=True))
        | sampled.report
    )


def sample(problem: Problem, coreset: Coreset, rng: Rng, arguments: argparse.Namespace) -> Sampled:
    """HMC on the posterior of the classes' difference; equal rows are one row with their weight
    together.
    """
    began = time.monotonic()
    inputs = problem.inputs(coreset.x).double()
    laplace = posterior(Softmax(), inputs, coreset.y, coreset.weight.double(), num_newton=40)
    difference = torch.cat(
        [-torch.eye(len(laplace.mean) // 2), torch.eye(len(laplace.mean) // 2)], 1
    ).double()
    laplace = Gaussian(difference @ laplace.mean, difference @ laplace.covariance @ difference.mT)
    centre, root = laplace.mean, torch.linalg.cholesky(laplace.covariance)
    signed = (2 * coreset.y - 1).double()[:, None] * torch.cat(
        [inputs, inputs.new_ones(len(inputs), 1)], 1
    )
    rows, place = torch.unique(signed, dim=0, return_inverse=True)
    weight = torch.zeros(len(rows)).double().index_add(0, place, coreset.weight.double())

    def log_density(z: Tensor, rng: Rng) -> Tensor:
        theta = centre + z @ root.mT
        value: Tensor = logsigmoid(theta @ rows.mT) @ weight - theta.square().sum(1) / (2 * PRIOR)
        return value

    chains, accept = walk(log_density, len(centre), problem, rng, arguments)
    draws = centre + chains @ root.mT
    watched = chains[..., :: 1 if len(coreset.y) == problem.num_train else 8]
    mixed = mixing(torch.cat([watched, watched.square()], 2))
    seconds = round(time.monotonic() - began, 1)
    report = {
        "accept": accept,
        "r_hat": mixed.rhat,
        "ess_bulk": mixed.ess_bulk,
        "ess_tail": mixed.ess_tail,
        "sampling_seconds": seconds,
    }
    return Sampled(moments(draws), laplace, draws, {"num_draws": chains[..., 0].numel(), **report})


def walk(
    log_density: LogDensity, num: int, problem: Problem, rng: Rng, arguments: argparse.Namespace
) -> tuple[Tensor, float]:
    """Chains (draws, chains, num) and their acceptance.

    Three steps of the adapted size are about a quarter of a period. Five are about half of one,
    after which θ is back where it began but for its sign: such a chain soon knows the mean and
    hardly ever the variance.
    """
    hmc = HMC(
        num_draws=arguments.draws,
        num_burn=100,
        num_chains=arguments.chains,
        num_leapfrog=3,
        step_size=0.3,
        target_accept=0.8,
        jitter=0.2,
        temperature=1.0,
    )
    kept, accepted = [], []

    def keep(done: int, state: Any, info: Any) -> None:
        if done > hmc.num_burn:
            kept.append(state.theta.clone())
            accepted.append(float(info.accept.mean()))

    drive(
        lambda _, state, rng: hmc.step(log_density, state, rng),
        hmc.init(
            log_density, rng("start").normal(hmc.num_chains, num, dtype=torch.float64), rng("init")
        ),
        problem,
        rng,
        num_steps=hmc.num_burn + hmc.num_draws,
        on_step=keep,
    )
    return torch.stack(kept), statistics.mean(accepted)


def moments(draws: Tensor) -> Gaussian:
    flat = draws.flatten(0, 1)
    return Gaussian(flat.mean(0), flat.mT.cov())


def score(problem: Problem, sampled: Sampled, num: int = 1000) -> float:
    """Mean over test examples of the log of the mean probability over draws."""
    draws = sampled.draws.flatten(0, 1)
    some = draws[:: max(1, len(draws) // num)]
    inputs = problem.inputs(problem.data.test.x).double()
    signs = (2 * problem.data.test.y - 1).double()
    logits = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1) @ some.mT  # (n, draws)
    log_probs = logsigmoid(signs[:, None] * logits).logsumexp(1) - torch.tensor(len(some)).log()
    return float(log_probs.mean())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
