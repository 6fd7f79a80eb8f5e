"""Coresets of regressions: test scores and distance from full-data inference, by method and size.

`PSEUDOCORE_DATA=/path/to/tables python benchmarks/regression.py --commit HASH --out benchmarks/results`

Data: diabetes of scikit-learn (where it is installed), a synthetic of eight skewed features in the
manner of California housing, and the counts biketrips and airportdelays read with task =
"regression": a Gaussian likelihood, although they are counts. Noise by marginal likelihood (linear)
or held-out training points (mlp), prior as by default. Inference is last-layer-vi, which under a
linear network is the exact posterior, on coreset and full data alike: KL and W2 are between
predictive Gaussians at test inputs, nats and units of the target. Every method runs with its own
defaults but for `STEPS`; nothing is tuned. Rows that are there already are kept.
"""

import argparse
import math
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from cells import made_here

import pseudocore as pc
from pseudocore.core.optional import optional_module
from pseudocore.evaluation.metrics import spreads
from pseudocore.reproduce import records

SIZES = (10, 20, 50, 100, 200)
METHODS = ("uniform", "herding", "giga", "psvi", "vbpc", "bpc-pcd")
STEPS = {"bpc-pcd": 1000, "vbpc": 1000}
"""Fewer than the methods' own 3000 and 2000, for time."""
SCORES = ("rmse", "nll", "crps", "coverage_50", "coverage_90", "fidelity_kl", "fidelity_w2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of records")
    add("--commit", required=True)
    add("--data", nargs="+", default=["diabetes", "california", "biketrips", "airportdelays"])
    add("--model", default="linear")
    add("--methods", nargs="+", default=METHODS)
    add("--sizes", type=int, nargs="+", default=SIZES)
    add("--seeds", type=int, default=3)
    add("--tables", action="store_true", help="print the tables of docs/regression.md, and no more")
    arguments = parser.parse_args()
    path = arguments.out / "regression.jsonl"
    known = records.read(path)
    if arguments.tables:
        print_tables(known)
        return
    sets = {name: data_of(name) for name in arguments.data}
    for size in (None, *arguments.sizes):
        for name, data in sets.items():
            for method in ["full"] if size is None else arguments.methods:
                title = f"{name}/{arguments.model}/{method}/{size or data.num_train}"
                if title in known or (method == "psvi" and arguments.model != "linear"):
                    continue
                row = {"name": title, **measured(data, method, size, arguments)}
                row |= {**made_here(arguments.commit), "command": shlex.join(sys.argv)}
                print(
                    title, {n: round(s["mean"], 4) for n, s in row["metrics"].items()}, flush=True
                )
                records.put(path, row)


def measured(
    data: pc.Dataset, method: str, size: int | None, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Scores of coresets by several seeds."""
    found, seconds, problem = [], 0.0, None
    for seed in range(1 if size is None else arguments.seeds):
        options: dict[str, Any] = {} if size is None else {"points": size}
        if method in STEPS:
            options["num_steps"] = STEPS[method]
        began = time.monotonic()
        run = pc.reduce(method, data, model=arguments.model, seed=seed, **options)
        seconds += time.monotonic() - began
        scores = pc.evaluate(
            run, inference="last-layer-vi", seeds=1, first_seed=seed, fidelity=True
        )
        found.append({name: scores.metrics[name]["mean"] for name in SCORES})
        problem = run.problem
    assert problem is not None
    return {
        "data": data.name,
        "model": arguments.model,
        "method": method,
        "points": size or data.num_train,
        "num_train": data.num_train,
        "num_parameters": problem.model.num_parameters,
        "noise": problem.gaussian.noise,
        "target_sd": problem.gaussian.unit,
        "seeds": len(found),
        "steps": STEPS.get(method),
        "seconds": round(seconds / len(found), 2),
        "metrics": spreads(found),
    }


def print_tables(known: Mapping[str, Any]) -> None:
    columns = ("uniform", "herding", "giga", "psvi", "vbpc", "bpc-pcd")
    for score in ("fidelity_kl", "rmse", "nll"):
        whole = score != "fidelity_kl"
        names = [
            "data",
            "points",
            *(f"`{one}`" for one in columns),
            *(["all data"] if whole else []),
        ]
        print(f"\n{score}\n\n| {' | '.join(names)} |\n{'|---' * len(names)}|")
        for data in ("diabetes", "california", "biketrips", "airportdelays"):
            found = {name: row for name, row in known.items() if name.startswith(f"{data}/linear/")}
            last = [cell(row, score) for row in found.values() if row["method"] == "full" and whole]
            for size in SIZES:
                cells = [cell(found.get(f"{data}/linear/{one}/{size}"), score) for one in columns]
                print(f"| {' | '.join([data, str(size), *cells, *last])} |")


def cell(row: Mapping[str, Any] | None, score: str) -> str:
    """Mean, and the spread over seeds where it can be seen."""
    if row is None:
        return "–"
    mean, sd = row["metrics"][score]["mean"], row["metrics"][score]["sd"] or 0.0
    if score == "fidelity_kl" and mean < 1e-6:
        return "< 1e-6"
    least = 0.005 if score != "fidelity_kl" else 0.004
    shown = f"{mean:.2g}" if score == "fidelity_kl" else f"{mean:.3g}"
    return f"{shown} ± {sd:.2g}" if sd > least * (mean if score == "rmse" else 1) else shown


def data_of(name: str) -> pc.Dataset:
    if name == "diabetes":
        bunch = optional_module("sklearn.datasets", "scikit-learn", "sklearn").load_diabetes()
        return pc.dataset(bunch.data, bunch.target, task="regression", name=name)
    if name == "california":
        x, y = california(5000)
        return pc.dataset(x[:4000], y[:4000], test=(x[4000:], y[4000:]), name=name)
    return pc.dataset(name, task="regression")


def california(num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Skewed, correlated features and a target that bends in two of them."""
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(num, 8, generator=rng)
    income = (1.2 + 0.45 * z[:, 0]).exp()
    age = 52 * torch.rand(num, generator=rng)
    rooms = (1.6 + 0.25 * (0.5 * z[:, 0] + 0.9 * z[:, 1])).exp()
    bedrooms = 0.2 * rooms * (0.1 * z[:, 2]).exp()
    population, occupancy = (7 + 0.7 * z[:, 3]).exp(), (1 + 0.25 * z[:, 4]).exp()
    north, west = 35.6 + 2.1 * z[:, 5], -119.6 - 0.8 * 2.1 * z[:, 5] + 0.6 * z[:, 6]
    coast = torch.sigmoid(-2 * (west + 119.6 + 0.8 * (north - 35.6)))
    y = 0.42 * income + 0.01 * age - 0.08 * rooms + 1.2 * coast - 0.05 * occupancy
    y = y + 0.3 * torch.sin(north * math.pi / 2) + 0.5 * z[:, 7]
    return torch.stack([income, age, rooms, bedrooms, population, occupancy, north, west], 1), y


if __name__ == "__main__":
    main()
