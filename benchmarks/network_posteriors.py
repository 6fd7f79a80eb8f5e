"""Posteriors of a small network on the digits by every inference, beside Hamiltonian chains.

`python benchmarks/network_posteriors.py --points coreset --inference swag --out FILE --commit HASH`

An mlp of 32 units; the points are 10 random ones per class that weigh as all, or all 1,437. TV is
the mean total variation, over test images, to the predictions of `hmc` on the same points, seed
1000; `hmc` itself is its floor. `across` is the mean TV between averages of the quarters of a chain
(for cyclical-sghmc its cycles), `within` that between halves of a quarter: where `across` is the
larger, quarters saw different modes. sghmc and cyclical-sghmc take the same gradients; all else is
by default. Nothing is tuned on test images.
"""

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import torch
from cells import made_here
from torch import Tensor

import pseudocore as pc
from pseudocore.core import config
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.evaluation.metrics import measure

SETTINGS: dict[str, dict[str, Any]] = {"sghmc": {"num_burn": 160}}
INFERENCES = (
    "hmc", "sghmc", "cyclical-sghmc", "mean-field-vi", "swag", "laplace", "sgd", "ensemble",
)  # fmt: skip
REFERENCE_SEED = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--points", choices=["coreset", "all"], required=True)
    add("--inference", nargs="+", default=INFERENCES)
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--out", type=Path, required=True, help="file of records, to which rows are added")
    add("--commit", required=True)
    add("--set", nargs="*", default=[], help="options of the inferences, as name=number")
    arguments = parser.parse_args()
    options = {
        name: float(value) for name, _, value in (one.partition("=") for one in arguments.set)
    }
    options = {n: int(v) if v == int(v) else v for n, v in options.items()}
    method, budget = (
        ("uniform", {"per_class": 10}) if arguments.points == "coreset" else ("full", {})
    )
    run = pc.reduce(
        method, "digits", model="mlp", width=32, depth=1, seed=0, device="cpu", **budget
    )
    x, y = run.problem.data.test
    exact = fitted("hmc", {}, run, REFERENCE_SEED)(x)
    for name in arguments.inference:
        for seed in arguments.seeds:
            began = time.monotonic()
            posterior = fitted(name, {**SETTINGS.get(name, {}), **options}, run, seed)
            seconds = time.monotonic() - began
            found = posterior(x)
            scores = measure(lambda _, found=found: found, [(x, y)], 10)
            row = {
                "name": "/".join([arguments.points, name, *arguments.set, str(seed)]),
                "points": arguments.points,
                "inference": name,
                "options": options,
                "seed": seed,
                "seconds": round(seconds, 1),
                **{score: getattr(scores, score) for score in ("accuracy", "nll", "ece")},
                "tv": variation(found, exact),
                **spread(posterior, x),
                **made_here(arguments.commit),
                "command": shlex.join(sys.argv),
            }
            print({n: row[n] for n in ("name", "accuracy", "nll", "tv", "seconds")}, flush=True)
            with arguments.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


def fitted(name: str, options: dict[str, Any], run: Any, seed: int) -> Any:
    inference: Any = config.build(inferences[name].make, options)
    return inference.fit(run.problem, run.coreset, Rng(seed))


def variation(one: Tensor, other: Tensor) -> float:
    return float((one.exp() - other.exp()).abs().sum(1).mean() / 2)


def spread(posterior: Any, x: Tensor) -> dict[str, float | None]:
    """R-hat, and how far apart quarters of each chain are."""
    if posterior.chains is None:
        return {"rhat": None, "across": None, "within": None}
    num, chains = len(posterior.chains), len(posterior.chains[0])
    each = torch.stack([one.exp() for one in posterior.each(x)])
    each = each.view(num, chains, *each.shape[1:])[: num - num % 8]
    eighths = each.view(8, -1, *each.shape[1:]).mean(1)
    quarters = (eighths[::2] + eighths[1::2]) / 2

    def apart(one: Tensor, other: Tensor) -> float:
        return float((one - other).abs().sum(-1).mean() / 2)

    pairs = [(a, b) for a in range(4) for b in range(a)]
    return {
        "rhat": posterior.diagnostics.predictions.rhat,
        "across": sum(apart(quarters[a], quarters[b]) for a, b in pairs) / len(pairs),
        "within": sum(apart(eighths[2 * a], eighths[2 * a + 1]) for a in range(4)) / 4,
    }


if __name__ == "__main__":
    main()
