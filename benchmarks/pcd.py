"""BPC-PCD beside uniform selection: how far are predictions from those of the full-data posterior?

    python benchmarks/pcd.py digits --per-class 1 5 10 20 --seeds 2 --cross 64 --commit HASH
        --out benchmarks/results
    python benchmarks/pcd.py mnist.npz --pool --per-class 1 10 50 --seconds 3000 ...

Every coreset is sampled by fresh HMC chains of its own at temperature 1 under the problem's prior.
`tv` and `kl` are between the averaged predictions for the test set of the reference and of these
chains; the floor is that between two fits of the reference. The reference that the method learns
from is another one. Settings were chosen by distances on training inputs. Cells that are in the
record already are left alone, so that the command resumes.
"""

import argparse
import dataclasses
import resource
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cells import Cell, diagnostics, fill, made_here, name_values
from torch import Tensor, nn

from pseudocore import assembly, references
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.data import load
from pseudocore.inference.hmc import HMC
from pseudocore.models.flat import FlatModel
from pseudocore.reduction import run_reduction
from pseudocore.store.coreset_file import save_coreset

REFERENCE = {"num_chains": 8, "num_burn": 150, "num_draws": 60, "num_leapfrog": 20}
FRESH = {"num_chains": 8, "num_burn": 200, "num_draws": 60, "num_leapfrog": 15}
NETWORKS = ("mlp", "tanh", "convnet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("data")
    add("--pool", action="store_true", help="average 2 × 2 pixels")
    add("--num-train", type=int, help="of the training images, the first; defaults to all")
    add("--network", choices=NETWORKS, default="mlp", help="one hidden layer, or two convolutions")
    add("--width", type=int, default=32, help="of the hidden layer")
    add("--cross", type=int, help="width of another network, to which coresets are given too")
    add("--methods", nargs="+", default=["uniform", "bpc-pcd"])
    add("--per-class", type=int, nargs="+", default=[1, 10, 50])
    add("--seeds", type=int, default=1)
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of bpc-pcd, or of METHOD.NAME",
    )
    add("--reference", action="append", default=[], metavar="NAME=VALUE", help="of its HMC")
    add("--fresh", action="append", default=[], metavar="NAME=VALUE", help="of HMC on coresets")
    add("--label", default="", help="added to the record's name, for other settings")
    add("--seconds", type=float, help="the rest is done when run again")
    add("--device", default="cpu")
    add("--commit", default="unknown")
    add("--out", type=Path, required=True, help="folder of records")
    add("--keep", type=Path, help="folder for the coresets")
    arguments = parser.parse_args()
    problems = [_problem(arguments, arguments.width)]
    if arguments.cross:
        problems.append(_problem(arguments, arguments.cross))
    began = time.monotonic()
    judges = [_Judge(each, arguments) for each in problems]
    num_train, model = problems[0].num_train, problems[0].model
    record: dict[str, Any] = {
        "name": "-".join(
            part
            for part in (
                problems[0].data.name,
                arguments.network,
                str(arguments.width),
                arguments.label,
            )
            if part
        ),
        **made_here(arguments.commit),
        "command": shlex.join(["python", *sys.argv]),
        "num_train": num_train,
        "num_parameters": model.num_parameters,
        "reference": [judge.about() for judge in judges],
        "reference_seconds": round(time.monotonic() - began, 1),
        "cells": [],
    }
    print(record, flush=True)
    fill(arguments.out / "pcd.jsonl", record, _jobs(judges, arguments), arguments.seconds)


def _jobs(
    judges: list["_Judge"], arguments: argparse.Namespace
) -> Iterator[tuple[Cell, Callable[[], Cell]]]:
    for per_class in arguments.per_class:
        for seed in range(arguments.seeds):
            for method in arguments.methods:
                key = {"per_class": per_class, "seed": seed, "method": method}
                yield key, partial(_cell, judges, arguments, **key)


def _cell(
    judges: list["_Judge"], arguments: argparse.Namespace, per_class: int, seed: int, method: str
) -> Cell:
    given = name_values(arguments.set)
    own = {
        name.removeprefix(f"{method}."): value
        for name, value in given.items()
        if name.startswith(f"{method}.") or ("." not in name and method == "bpc-pcd")
    }
    made = methods[method].make(per_class=per_class, **own)
    problem, cell = judges[0].to_learn(), Cell()
    wall, cpu, last = time.monotonic(), time.process_time(), Cell()
    outcome = run_reduction(
        assembly.Reduction(made, assembly.Setup(model="mlp"), seed),
        problem,
        on_log=lambda _, values: last.update(values),
    )
    coreset = outcome.coreset
    if outcome.num_steps:
        cell |= {"status": outcome.status, "note": outcome.note, "last": last, "options": own}
        cell["lag"] = coreset.provenance.get("lag", {})
    cell["wall"] = round(time.monotonic() - wall, 2)
    cell["cpu"] = round(time.process_time() - cpu, 2)
    cell["peak_mib"] = round(_peak(problem.device))
    cell["total_weight"] = float(coreset.weight.sum())
    cell |= judges[0].judged(coreset)
    if len(judges) > 1:
        cell["cross"] = judges[1].judged(coreset)
    if arguments.keep:
        _keep(arguments.keep, f"{problem.data.name}-{method}-{per_class}-{seed}", coreset)
    print({name: cell[name] for name in ("tv", "kl", "accuracy", "wall", "cpu")}, flush=True)
    return cell


def _keep(folder: Path, name: str, coreset: Coreset) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_coreset(folder / f"{name}.safetensors", coreset)


class _Judge:
    """The full-data posterior of a problem, and distances to it."""

    def __init__(self, problem: Problem, arguments: argparse.Namespace) -> None:
        self.problem = problem
        self.fresh = HMC(**{**FRESH, **name_values(arguments.fresh)})
        self.options = {**REFERENCE, **name_values(arguments.reference)}
        self.reference = references.reference(problem, "hmc", num_fits=2, **self.options)
        raw = problem.data.test.x
        self.fits = [each.exp() for each in self.reference.log_probs(raw)]
        self.full = torch.stack(self.fits).mean(0)

    def to_learn(self) -> Problem:
        """With a reference of its own."""
        learned_from = references.reference(
            self.problem, "hmc", num_fits=1, role="learn", **self.options
        )
        return dataclasses.replace(self.problem, reference=learned_from)

    def about(self) -> dict[str, Any]:
        floor = _distance(self.fits[0], self.fits[1])
        return {
            "label": self.reference.label,
            "options": self.options,
            "diagnostics": self.reference.diagnostics,
            "floor_tv": floor["tv"],
            "floor_kl": floor["kl"],
            "accuracy": self._accuracy(self.full),
        }

    def judged(self, coreset: Coreset) -> Cell:
        began = time.monotonic()
        posterior = self.fresh.fit(self.problem, coreset, Rng(0)("fresh"))
        parts = torch.split(self.problem.data.test.x, 1000)
        with torch.no_grad():
            own = torch.cat([posterior(part).exp().cpu().double() for part in parts])
        mixing = {name: round(value, 4) for name, value in diagnostics(posterior).items()}
        cell: Cell = {**_distance(self.full, own), "accuracy": self._accuracy(own), **mixing}
        return {**cell, "sampling_seconds": round(time.monotonic() - began, 1)}

    def _accuracy(self, probs: Tensor) -> float:
        return round(float((probs.argmax(1) == self.problem.data.test.y).double().mean()), 4)


def _distance(p: Tensor, q: Tensor) -> dict[str, float]:
    p, q = p.double(), q.double()
    logs = p.clamp_min(1e-12).log() - q.clamp_min(1e-12).log()
    return {
        "tv": round(0.5 * float((p - q).abs().sum(1).mean()), 5),
        "kl": round(float((p * logs).sum(1).mean()), 6),
    }


def _problem(arguments: argparse.Namespace, width: int) -> Problem:
    data = load(arguments.data)
    if arguments.pool or arguments.num_train:
        parts = [_pooled(part) if arguments.pool else part for part in (data.train, data.test)]
        parts[0] = Examples(*(part[: arguments.num_train] for part in parts[0]))
        name = data.name + "-14" * arguments.pool
        data = Dataset(name, *parts, data.num_classes, data.class_names)
    if arguments.network == "mlp":
        setup = assembly.Setup(model="mlp", width=width, depth=1)
        return assembly.build(setup, data, device=arguments.device)
    problem = assembly.build(assembly.Setup(model="linear"), data, device=arguments.device)
    return dataclasses.replace(problem, model=_network(arguments.network, width, data))


def _pooled(examples: Examples) -> Examples:
    x = nn.functional.avg_pool2d(examples.x.float(), 2).round().to(torch.uint8)
    return Examples(x, examples.y)


def _network(kind: str, width: int, data: Dataset) -> FlatModel:
    """One hidden tanh layer, or two convolutions of 8 and 16 channels, each rectified and pooled;
    neither is a registered network.
    """
    channels, height, columns = data.shape
    if kind == "tanh":
        size = channels * height * columns
        body = nn.Sequential(nn.Flatten(), nn.Linear(size, width, device="meta"), nn.Tanh())
        return FlatModel(
            body, width, data.num_classes, {"name": "mlp", "activation": "tanh", "width": width}
        )
    body = nn.Sequential(
        *(nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
    )
    size = 16 * (height // 4) * (columns // 4)
    return FlatModel(body, size, data.num_classes, {"name": "two-convolutions"})


def _peak(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
