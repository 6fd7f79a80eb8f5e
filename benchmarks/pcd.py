"""BPC-PCD beside other methods: how far are predictions from those of the full-data posterior?

    python benchmarks/pcd.py digits --network tanh-32 --cross tanh-64 --per-class 1 5 10 20
        --seeds 2 --commit HASH --out benchmarks/results
    python benchmarks/pcd.py mnist.npz --network convnet-8 --sampler sghmc --per-class 1 10 50 ...
    python benchmarks/pcd.py digits --network mlp-32 --also convnet-8 --cross tanh-32
        --methods bpc-pcd bpc-pcd+also vbpc bpc-fkl ...

Networks are a kind and a width: `mlp-32`, one hidden layer of ReLU; `tanh-32`, the same with tanh;
`convnet-8`, two convolutions of 8 and 16 channels (`convnet-wide`); `convnet3-128`, the default
network of images. A coreset is made with the first network, by `METHOD+also` with those of `--also` too, and measured on it and on `--cross`.

Every coreset is sampled by fresh HMC chains of its own at temperature 1 under the problem's prior.
`tv` and `kl` are between the averaged predictions for the test set of the reference and of these
chains; the floor is that between two fits of the reference. The reference that the method learns
from is another one. Settings were chosen by distances on training inputs. Cells that are in the
record already are left alone, so that the command resumes; a cell is written when it is done.
"""

import argparse
import dataclasses
import math
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

from pseudocore import assembly
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.data import load
from pseudocore.inference.hmc import HMC
from pseudocore.models.flat import FlatModel
from pseudocore.store.coreset_file import save_coreset
from pseudocore.workflows import references
from pseudocore.workflows.reduction import run_reduction

REFERENCE = {
    "hmc": {"num_chains": 8, "num_burn": 150, "num_draws": 60, "num_leapfrog": 20},
    "sghmc": {"num_chains": 8, "num_burn": 100, "num_draws": 60, "num_inner": 50},
}
FRESH = {"num_chains": 8, "num_burn": 200, "num_draws": 60, "num_leapfrog": 15}
ALSO = "+also"
"""Ends the name of a method that learns with other networks too."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("data")
    add("--pool", action="store_true", help="average 2 × 2 pixels")
    add("--num-train", type=int, help="of the training images, the first; defaults to all")
    add("--network", default="mlp-32", help="KIND-WIDTH of the network to learn with")
    add("--also", nargs="+", default=[], help="others that METHOD+also learns with too")
    add("--cross", nargs="+", default=[], help="others on which coresets are measured")
    add("--sampler", choices=sorted(REFERENCE), default="hmc", help="of the references")
    add("--learn-from", choices=sorted(REFERENCE), help="defaults to --sampler, as it is told")
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
    add("--reference", action="append", default=[], metavar="NAME=VALUE", help="of its sampler")
    add("--fresh", action="append", default=[], metavar="NAME=VALUE", help="of HMC on coresets")
    add("--label", default="", help="added to the record's name, for other settings")
    add("--seconds", type=float, help="the rest is done when run again")
    add("--device", default="cpu")
    add("--commit", default="unknown")
    add("--out", type=Path, required=True, help="folder of records")
    add("--keep", type=Path, help="folder for the coresets")
    arguments = parser.parse_args()
    began = time.monotonic()
    data = _data(arguments)
    judges = {
        name: _Judge(_problem(name, data, arguments.device), arguments)
        for name in dict.fromkeys([arguments.network, *arguments.also, *arguments.cross])
    }
    num_train, model = data.num_train, judges[arguments.network].problem.model
    name_parts = (data.name, arguments.network, arguments.label)
    record: dict[str, Any] = {
        "name": "-".join(part for part in name_parts if part),
        **made_here(arguments.commit),
        "command": shlex.join(["python", *sys.argv]),
        "num_train": num_train,
        "num_parameters": model.num_parameters,
        "reference": {name: judge.about() for name, judge in judges.items()},
        "reference_seconds": round(time.monotonic() - began, 1),
        "cells": [],
    }
    print(record, flush=True)
    left = None if arguments.seconds is None else arguments.seconds - (time.monotonic() - began)
    fill(arguments.out / "pcd.jsonl", record, _jobs(judges, arguments), left)


def _jobs(
    judges: dict[str, "_Judge"], arguments: argparse.Namespace
) -> Iterator[tuple[Cell, Callable[[], Cell]]]:
    for per_class in arguments.per_class:
        for seed in range(arguments.seeds):
            for method in arguments.methods:
                key = {"per_class": per_class, "seed": seed, "method": method}
                yield key, partial(_cell, judges, arguments, **key)


def _cell(
    judges: dict[str, "_Judge"],
    arguments: argparse.Namespace,
    per_class: int,
    seed: int,
    method: str,
) -> Cell:
    own, made = _method(arguments, method, per_class)
    problem, cell = judges[arguments.network].to_learn(), Cell()
    if method.endswith(ALSO):
        also = tuple(judges[name].to_learn() for name in arguments.also)
        problem = dataclasses.replace(problem, also=also)
    _forget_peak(problem.device)
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
    cell |= judges[arguments.network].judged(coreset)
    cell |= {"cross": {name: judges[name].judged(coreset) for name in arguments.cross}}
    if arguments.keep:
        _keep(arguments.keep, f"{problem.data.name}-{method}-{per_class}-{seed}", coreset)
    print({name: cell[name] for name in ("tv", "kl", "accuracy", "wall", "cpu")}, flush=True)
    return cell


def _method(
    arguments: argparse.Namespace, method: str, per_class: int
) -> tuple[dict[str, Any], Any]:
    """The options given to a method, and the method."""
    name, given = method.removesuffix(ALSO), name_values(arguments.set)
    own = {
        option.removeprefix(f"{name}."): value
        for option, value in given.items()
        if option.startswith(f"{name}.") or ("." not in option and name == "bpc-pcd")
    }
    if method.endswith(ALSO):
        own["also"] = ", ".join(arguments.also)
    return own, methods[name].make(per_class=per_class, **own)


def _keep(folder: Path, name: str, coreset: Coreset) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_coreset(folder / f"{name}.safetensors", coreset)


class _Judge:
    """The full-data posterior of a problem, and distances to it."""

    def __init__(self, problem: Problem, arguments: argparse.Namespace) -> None:
        self.problem = problem
        self.fresh = HMC(**{**FRESH, **name_values(arguments.fresh)})
        self.sampler, self.learn_from = arguments.sampler, arguments.learn_from
        self.options = {**REFERENCE[self.sampler], **name_values(arguments.reference)}
        self.reference = references.reference(problem, self.sampler, num_fits=2, **self.options)
        raw = problem.data.test.x
        self.fits = [each.exp() for each in self.reference.log_probs(raw)]
        self.full = torch.stack(self.fits).mean(0)

    def to_learn(self) -> Problem:
        """With a reference of its own."""
        sampler, options = self.sampler, self.options
        if self.learn_from not in (None, sampler):
            sampler, options = self.learn_from, REFERENCE[self.learn_from]
        learned_from = references.reference(
            self.problem, sampler, num_fits=1, role="learn", **options
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


def _data(arguments: argparse.Namespace) -> Dataset:
    data = load(arguments.data)
    if not arguments.pool and not arguments.num_train:
        return data
    parts = [_pooled(part) if arguments.pool else part for part in (data.train, data.test)]
    parts[0] = Examples(*(part[: arguments.num_train] for part in parts[0]))
    return Dataset(data.name + "-14" * arguments.pool, *parts, data.num_classes, data.class_names)


def _pooled(examples: Examples) -> Examples:
    x = nn.functional.avg_pool2d(examples.x.float(), 2).round().to(torch.uint8)
    return Examples(x, examples.y)


def _problem(network: str, data: Dataset, device: str) -> Problem:
    kind, _, width = network.partition("-")
    kinds = {"mlp": ("mlp", 1), "convnet": ("convnet-wide", 2), "convnet3": ("convnet3", 3)}
    if kind in kinds:
        model, depth = kinds[kind]
        setup = assembly.Setup(model=model, width=int(width), depth=depth)
        return assembly.build(setup, data, device=device)
    problem = assembly.build(assembly.Setup(model="linear"), data, device=device)
    return problem if kind == "linear" else dataclasses.replace(problem, model=_tanh(width, data))


def _tanh(width: str, data: Dataset) -> FlatModel:
    """One hidden layer of tanh, which is no registered network."""
    size, num = math.prod(data.shape), int(width)
    body = nn.Sequential(nn.Flatten(), nn.Linear(size, num, device="meta"), nn.Tanh())
    about = {"name": "mlp", "activation": "tanh", "width": num}
    return FlatModel(body, num, data.num_classes, about)


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _peak(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
