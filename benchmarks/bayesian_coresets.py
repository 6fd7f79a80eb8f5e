"""Bayesian coresets on logistic regression: 1,500 points of 10 features and a bias, 10 to 50 points.

    PYTHONPATH=src python benchmarks/bayesian_coresets.py --out benchmarks/results --commit HASH

Inputs are standard normal, the true parameter is 3 in every direction (the set-up of
`examples/simple_lr` of trevorcampbell/bayesian-coresets), and the prior of a difference of two
parameters is N(0, 2). Full posterior and coresets' are sampled by HMC; reverse and forward KL are
between Gaussians of their moments (`psvi_tabular.py`), and between Laplace's approximations beside
(`laplace_kl`). A row a record in OUT/bayesian.jsonl; rows that are there are left alone.

`--peer FILE` adds rows of coresets that other code selected on the same data (`--data FILE` writes
them), measured alike: lines of JSON with method, size, seed, seconds, indices, weight and source.
"""

import argparse
import itertools
import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import made_here
from psvi_tabular import JUDGED, Sampled, reference, sample, score, spread

import pseudocore
from pseudocore import assembly
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.methods.select.full import Full
from pseudocore.objectives.small_models import kl
from pseudocore.reproduce import records

NUM, NUM_TEST, DIM, SLOPE = 1500, 2000, 10, 3.0
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "uniform": ("uniform", {"balanced": False}),
    "giga": ("giga", {"balanced": False}),
    "giga-path": ("giga", {"balanced": False, "weighting": "path"}),
    "frank-wolfe": ("frank-wolfe", {"balanced": False}),
    "sparse-vi": ("sparse-vi", {"balanced": False}),
    "quasi-newton": ("quasi-newton", {"balanced": False}),
    "coreset-mcmc": ("coreset-mcmc", {"balanced": False}),
    "psvi": ("psvi", {"num_steps": 2000}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("benchmarks/results"), help="folder of records")
    add("--commit", default="unknown")
    add("--methods", nargs="+", default=list(METHODS))
    add("--sizes", type=int, nargs="+", default=[10, 20, 50])
    add("--seeds", type=int, default=3)
    add("--chains", type=int, default=32)
    add("--draws", type=int, default=400)
    add("--peer", type=Path, help="coresets of other code")
    add("--data", type=Path, help="only write the training data to this npz file")
    add("--show", action="store_true", help="only print what is there, as a table in Markdown")
    arguments = parser.parse_args()
    file = arguments.out / "bayesian.jsonl"
    if arguments.data:
        train = dataset().train
        np.savez(arguments.data, x=train.x.numpy(), y=train.y.numpy())
        return
    if not arguments.show:
        setup = assembly.Setup(
            model="linear", preprocess="none", prior="isotropic", prior_scale=1.0
        )
        problem = assembly.build(setup, dataset(), device="cpu")
        full = sample(problem, Full().select(problem, Rng(0)), Rng(0)("full"), arguments)
        done = set(records.read(file))
        for row in rows(problem, full, done, arguments):
            row |= made_here(arguments.commit)
            row |= {"command": shlex.join(["python", *sys.argv]), "full": reference(problem, full)}
            records.put(file, row)
            print({name: row[name] for name in ("name", "seconds", *JUDGED)}, flush=True)
    show(records.read(file).values())


def dataset() -> Dataset:
    """The generated data, the same in every call."""
    rng = Rng(0)
    x = rng("x").normal(NUM + NUM_TEST, DIM)
    y = (rng("y").uniform(len(x)) < (SLOPE * x.sum(1)).sigmoid()).long()
    train, test = Examples(x[:NUM], y[:NUM]), Examples(x[NUM:], y[NUM:])
    return Dataset("logistic-1500", train, test, 2)


def rows(
    problem: Problem, full: Sampled, done: set[str], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    for found in peers(arguments.peer) if arguments.peer else ours(problem, done, arguments):
        coreset = found.pop("coreset")
        if found["name"] in done:
            continue
        own = sample(problem, coreset, Rng(0)("coreset"), arguments)
        divergences = (
            float(kl(own.moments, full.moments)),
            float(kl(full.moments, own.moments)),
            score(problem, own),
        )
        yield {
            **found,
            **dict(zip(JUDGED, divergences, strict=True)),
            "laplace_kl": float(kl(own.laplace, full.laplace)),
            "num_active": int((coreset.weight > 0).sum()),
            "total_weight": float(coreset.weight.sum()),
            **own.report,
        }


def ours(
    problem: Problem, done: set[str], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    for seed, size, label in itertools.product(
        range(arguments.seeds), arguments.sizes, arguments.methods
    ):
        name = f"{label}/{size}/seed{seed}"
        if name in done:
            continue
        method, options = METHODS[label]
        began = time.monotonic()
        made = pseudocore.reduce(
            method, dataset(), points=size, seed=seed, model="linear", preprocess="none",
            prior="isotropic", prior_scale=1.0, device="cpu", **options,
        )  # fmt: skip
        seconds = round(time.monotonic() - began, 2)
        key = {"name": name, "label": label, "size": size, "seed": seed, "seconds": seconds}
        yield {**key, "options": options, "coreset": made.coreset}


def peers(file: Path) -> Iterator[dict[str, Any]]:
    train = dataset().train
    for line in file.read_text().splitlines():
        found = json.loads(line)
        label, size, seed = f"{found['method']} (peer)", found["size"], found["seed"]
        weight = torch.tensor(found["weight"], dtype=torch.float32)
        index = torch.tensor(found["indices"])
        yield {
            "name": f"{label}/{size}/seed{seed}",
            "label": label,
            "size": size,
            "seed": seed,
            "seconds": round(found["seconds"], 2),
            "source": found["source"],
            "coreset": Coreset(train.x[index], train.y[index], weight),
        }


def show(found: Any) -> None:
    """Reverse KL and test log-likelihood, mean over seeds, a line for each method."""
    lines: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in found:
        lines.setdefault(row["label"], {}).setdefault(row["size"], []).append(row)
    sizes = sorted(set(itertools.chain(*lines.values())))
    print("| method |" + "".join(f" {size} |" for size in sizes) + " seconds |")
    print("|---|" + "---:|" * (len(sizes) + 1))
    for label, by in lines.items():
        cells = [cell(by.get(size, [])) for size in sizes]
        seconds = [f"{spread([row['seconds'] for row in by[size]])['mean']:.3g}" for size in by]
        print(f"| {label} |" + "".join(f" {one} |" for one in cells) + f" {', '.join(seconds)} |")


def cell(several: list[dict[str, Any]]) -> str:
    if not several:
        return "–"
    values, scores = (
        spread([row[name] for row in several]) for name in ("reverse_kl", "test_log_likelihood")
    )
    sd = "" if values["sd"] is None else f" ± {values['sd']:.2g}"
    return f"{values['mean']:.3g}{sd} / {scores['mean']:.3f}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
