"""PSVI beside uniform selection on tabular data: how far is the coreset's posterior from that of all data?

`python benchmarks/psvi_tabular.py SET.npz --seeds 3 --commit HASH --out benchmarks/results/psvi`

Logistic regression with prior N(0, 1) on weights and biases, features as stored. The reference is a long HMC run on all training data;
every coreset is sampled by HMC too. Reverse and forward KL are between Gaussians of the draws' moments, in the difference of the two
classes' parameters: their sum has the prior as its posterior whatever the data are. The chains walk in coordinates in which Laplace's
approximation is standard normal.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pseudocore import setup as setups
from pseudocore.core.loop import drive, run
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.data import load
from pseudocore.inference.hmc import HMC
from pseudocore.methods.full import Full
from pseudocore.methods.psvi import PSVI
from pseudocore.methods.uniform import Uniform
from pseudocore.parts.posterior import Gaussian, Softmax, kl, posterior
from pseudocore.store.manifest import hardware, versions

SIZES = (10, 20, 50, 100, 200, 500)


class Sampled(NamedTuple):
    moments: Gaussian
    draws: Tensor  # (draws, p)
    report: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--covariance", choices=["draws", "moments"], default="moments")
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--draws", type=int, default=250)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    data = load(arguments.data)
    problem = setups.build(setups.Setup(model="linear", preprocess="none"), data, device="cpu")
    began = time.monotonic()
    full = sample(problem, Full().select(problem, Rng(0)), Rng(0)("full"), arguments)
    record: dict[str, Any] = {
        "data": data.name,
        "num_train": problem.num_train,
        "num_features": data.shape[0],
        "full": {**full.report, "test_log_likelihood": score(problem, full.draws), "seconds": round(time.monotonic() - began, 1)},
        "rows": [],
        "date": str(date.today()),
        "commit": arguments.commit,
        "hardware": hardware(),
        "versions": versions(),
        "command": shlex.join(["python", *sys.argv]),
    }
    print("full", record["full"], flush=True)
    for row in rows(problem, full, arguments):
        print(row, flush=True)
        record["rows"].append(row)
        (arguments.out / f"{Path(arguments.data).stem}.json").write_text(json.dumps(record, indent=1) + "\n")


def rows(problem: Problem, full: Sampled, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for size in arguments.sizes:
        for seed in range(arguments.seeds):
            uniform = Uniform(per_class=size // 2, weighting="mass").select(problem, Rng(seed))
            yield {"method": "uniform", "size": size, "seed": seed, **judged(problem, uniform, full, arguments)}
            method = PSVI(per_class=size // 2, num_steps=arguments.steps, covariance=arguments.covariance)
            outcome = run(method, problem, seed=seed)
            about = {"status": outcome.status, "seconds": round(outcome.seconds, 1), "num_active": int((outcome.coreset.weight > 0).sum())}
            yield {"method": "psvi", "size": size, "seed": seed, **about, **judged(problem, outcome.coreset, full, arguments)}


def judged(problem: Problem, coreset: Coreset, full: Sampled, arguments: argparse.Namespace) -> dict[str, float]:
    sampled = sample(problem, coreset, Rng(0)("coreset"), arguments)
    return {
        "reverse_kl": float(kl(sampled.moments, full.moments)),
        "forward_kl": float(kl(full.moments, sampled.moments)),
        "test_log_likelihood": score(problem, sampled.draws),
        **sampled.report,
    }


def sample(problem: Problem, coreset: Coreset, rng: Rng, arguments: argparse.Namespace) -> Sampled:
    """HMC on the posterior of the classes' difference, which has twice the prior's variance."""
    inputs = problem.inputs(coreset.x).double()
    weight, signs = coreset.weight.double(), (2 * coreset.y - 1).double()
    laplace = posterior(Softmax(), inputs, coreset.y, weight, num_newton=40)
    difference = torch.cat([-torch.eye(len(laplace.mean) // 2), torch.eye(len(laplace.mean) // 2)], 1).double()
    centre, root = difference @ laplace.mean, torch.linalg.cholesky(difference @ laplace.covariance @ difference.mT)
    rows = signs[:, None] * torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1)

    def log_density(z: Tensor, rng: Rng) -> Tensor:  # noqa: ARG001
        theta = centre + z @ root.mT
        value: Tensor = logsigmoid(theta @ rows.mT) @ weight - theta.square().sum(1) / 4
        return value

    hmc = HMC(num_draws=arguments.draws, num_burn=100, num_chains=arguments.chains, num_leapfrog=5, step_size=0.3, target_accept=0.8)
    start = rng("start").normal(hmc.num_chains, len(centre), dtype=torch.float64)
    kept, accepted = [], []

    def keep(done: int, state: Any, info: Any) -> None:
        if done > hmc.num_burn:
            kept.append(state.theta.clone())
            accepted.append(float(info.accept.mean()))

    drive(
        lambda _, state, rng: hmc.step(log_density, state, rng),
        hmc.init(log_density, start, rng("init")),
        problem,
        rng,
        num_steps=hmc.num_burn + hmc.num_draws,
        on_step=keep,
    )
    chains = torch.stack(kept)  # (draws, chains, p), in the whitened coordinates
    draws = centre + chains.flatten(0, 1) @ root.mT
    report = {"accept": sum(accepted) / len(accepted), "worst_r_hat": float(r_hat(chains).max())}
    return Sampled(Gaussian(draws.mean(0), draws.mT.cov()), draws, report)


def r_hat(chains: Tensor) -> Tensor:
    """Potential scale reduction of chains (draws, chains, p), each cut in two, (p,)."""
    halves = torch.cat(chains[: len(chains) // 2 * 2].chunk(2), 1)
    within, between = halves.var(0).mean(0), halves.mean(0).var(0)
    return ((len(halves) - 1) / len(halves) + between / within).sqrt()


def score(problem: Problem, draws: Tensor, num: int = 1000) -> float:
    """Mean over test examples of the log of the mean probability over draws."""
    some = draws[:: max(1, len(draws) // num)]
    inputs = problem.inputs(problem.data.test.x).double()
    signs = (2 * problem.data.test.y - 1).double()
    logits = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1) @ some.mT  # (n, draws)
    log_probs = logsigmoid(signs[:, None] * logits).logsumexp(1) - torch.tensor(len(some)).log()
    return float(log_probs.mean())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
