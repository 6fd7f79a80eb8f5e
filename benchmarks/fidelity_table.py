"""How far coresets are from full-data inference: digits by three networks, a9a and phishing_uci.

    PYTHONPATH=src python benchmarks/fidelity_table.py --seconds 3600 --commit HASH --out results
    PYTHONPATH=src python benchmarks/fidelity_table.py --only digits/linear --methods uniform psvi
    PYTHONPATH=src python benchmarks/fidelity_table.py --processes 10 --gpu-processes 5 \
        --gpu-groups digits/convnet a9a --seconds 220 --tabular DIR --out results

A row a record in OUT/fidelity.jsonl, written when it is measured; run again with more time, it
resumes. Every coreset is sampled by HMC at temperature 1 under the problem's prior, with as many
draws as the full data are, and compared on the test set; the methods of `OWN` by `last-layer-vi`
too, against the same on all data. References and coresets are kept in --work. Rows come in the order
of `plan`, the most important first; `--shard i/n` takes every n-th of them.
"""

import argparse
import itertools
import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cells import made_here, name_values
from task_pool import Task, run

import pseudocore
from pseudocore import assembly
from pseudocore.core import config
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.inference.full_posterior import FullPosterior
from pseudocore.reproduce import records
from pseudocore.workflows import references

SETUPS: dict[str, dict[str, Any]] = {
    "digits/linear": {"data": "digits", "model": "linear"},
    "digits/mlp-32": {"data": "digits", "model": "mlp", "width": 32, "depth": 1},
    "digits/convnet-wide-16": {"data": "digits", "model": "convnet-wide", "width": 16},
    "phishing_uci": {"data": "phishing_uci.npz", "model": "linear"},
    "a9a": {"data": "a9a.npz", "model": "linear"},
}
PER_CLASS = (1, 5, 10, 20)
SIZES = (10, 20, 50, 100, 200, 500)
LONG = {"num_burn": 200, "num_draws": 200}
"""HMC of the tabular sets, whose parameters are compared too."""

TRAJECTORY = {"num_steps": 300, "num_experts": 3, "max_start": 3}
INNER = {"num_inner_steps": 10, "inner_lr": 0.03}
LABELS: dict[str, tuple[str, dict[str, Any]]] = {
    "uniform": ("uniform", {}),
    "herding": ("herding", {}),
    "lcmat-s": ("lcmat-s", {}),
    "kernel-herding": ("kernel-herding", {}),
    "kernel-thinning": ("kernel-thinning", {}),
    "stein-thinning": ("stein-thinning", {}),
    "giga": ("giga", {}),
    "sparse-vi": ("sparse-vi", {"num_inner": 1, "data_batch": 4000}),
    "quasi-newton": ("quasi-newton", {"data_batch": 4000}),
    "coreset-mcmc": ("coreset-mcmc", {"batch_size": 2000}),
    "psvi": ("psvi", {}),
    "bpc-pcd": ("bpc-pcd", {"num_steps": 2000}),
    "fbpc": ("fbpc", {}),
    "black-box-vi": ("black-box-vi", {}),
    "vbpc": ("vbpc", {"num_steps": 1500}),
    "vbpc-posterior": ("vbpc", {"num_steps": 1500, "match": "posterior"}),
    "vbpc-300": ("vbpc", {"num_steps": 300}),
    "vbpc-posterior-300": ("vbpc", {"num_steps": 300, "match": "posterior"}),
    "frepo": ("frepo", {"num_steps": 1500}),
    "dm": ("dm", {"num_steps": 300, "batch_size": 64, "image_lr": 3.0}),
    "datm": ("datm", {**TRAJECTORY, **INNER, "inner_lr_lr": 0.001, "image_lr": 10.0, "horizon": 1}),
    "rcig": ("rcig", {"num_steps": 300, "image_lr": 0.05, "label_lr": 0.02, "num_inner_steps": 10}),
    "ncfm": ("ncfm", {**TRAJECTORY, "batch_size": 64, "num_frequencies": 256, "image_lr": 0.05}),
    "bpc-fkl": ("bpc-fkl", {**TRAJECTORY, **INNER, "num_draws": 3, "image_lr": 10.0}),
    "bpc-rkl": ("bpc-rkl", {**TRAJECTORY, **INNER, "num_draws": 5, "image_lr": 1000.0}),
    "bpc-w": ("bpc-w", {**TRAJECTORY, **INNER, "inner_lr_lr": 0.001, "image_lr": 10.0, "horizon": 1}),
}  # fmt: skip
"""Rows' names: a method and what differs from its defaults; of the trajectory methods and dm, what
`pseudocore table digits` sets, for longer."""
OWN = ("uniform", "vbpc", "vbpc-posterior", "vbpc-300", "vbpc-posterior-300", "frepo")
"""Measured by last-layer-vi too, the last but one by nothing else."""
LEARN = {
    "bpc-pcd": "hmc",
    "fbpc": "hmc",
    "vbpc-posterior": "last-layer-vi",
    "vbpc-posterior-300": "last-layer-vi",
}
"""What they learn from."""
STEPS = ("vbpc-300", "vbpc-posterior-300")
MAIN = ("uniform", "vbpc-posterior", "bpc-pcd", "psvi", "vbpc", "herding")
REST = (
    "fbpc",
    "black-box-vi",
    "frepo",
    "dm",
    "ncfm",
    "datm",
    "rcig",
    "bpc-fkl",
    "bpc-rkl",
    "bpc-w",
)
WEIGHTED = ("giga", "quasi-newton", "coreset-mcmc", "sparse-vi")
KERNELS = ("kernel-herding", "kernel-thinning", "stein-thinning")
TABULAR = ("uniform", "psvi", "herding", "lcmat-s", "bpc-pcd")
SHOWN = ("fidelity_kl", "fidelity_floor_kl", "fidelity_tv", "accuracy", "nll")


class Job(NamedTuple):
    group: str
    label: str
    per_class: int
    seed: int
    inference: str

    @property
    def name(self) -> str:
        last = f"seed{self.seed}/{self.inference}"
        return f"{self.group}/{self.label}/ipc{self.per_class}/{last}"


def plan(num_seeds: int) -> Iterator[Job]:
    """Every row, the most important first."""
    digits, tabular = [name for name in SETUPS if "/" in name], ["phishing_uci", "a9a"]
    sizes = [size // 2 for size in SIZES]
    for seed in range(num_seeds):
        yield from _jobs(digits, MAIN, PER_CLASS, seed)
        yield from _jobs(tabular, TABULAR, sizes, seed)
        yield from _jobs(digits, STEPS, PER_CLASS, seed)
    for seed in range(num_seeds):
        yield from _jobs(digits, REST, PER_CLASS, seed)
        yield from _jobs([name for name in digits if "conv" not in name], WEIGHTED, PER_CLASS, seed)
        yield from _jobs(tabular, WEIGHTED, sizes, seed)
        yield from _jobs(digits, KERNELS, PER_CLASS, seed)
        yield from _jobs(tabular, KERNELS, sizes, seed)


def _jobs(
    groups: Iterable[str], labels: Iterable[str], budgets: Iterable[int], seed: int
) -> Iterator[Job]:
    for label, per_class, group in itertools.product(labels, budgets, groups):
        if label == "psvi" and SETUPS[group]["model"] != "linear":
            continue  # it needs a linear network
        if label not in STEPS:
            yield Job(group, label, per_class, seed, "hmc")
        if label in OWN and "/" in group:
            yield Job(group, label, per_class, seed, "last-layer-vi")


def tasks_of(jobs: Iterable[Job], gpu_groups: Iterable[str]) -> list[Task]:
    """References first, then coresets and their rows in the order of the jobs."""
    starts, first, then = tuple(gpu_groups), dict[Any, Task](), dict[Any, Task]()
    for job in jobs:
        device = "cuda" if starts and job.group.startswith(starts) else "cpu"
        measure = ("reference", job.group, job.inference, "measure")
        first.setdefault(measure, Task(measure, device))
        learn = ("reference", job.group, LEARN.get(job.label, ""), "learn")
        if job.label in LEARN:
            first.setdefault(learn, Task(learn, device))
        made = ("coreset", job.group, job.label, job.per_class, job.seed)
        then.setdefault(made, Task(made, device, (learn,) if job.label in LEARN else ()))
        row = ("row", job)
        then[row] = Task(row, device, (measure, made))
    return [*first.values(), *then.values()]


class Worker:
    """What a process keeps between tasks."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.changes = name_values(arguments.set)
        self._problems: dict[str, Problem] = {}
        self._references: dict[tuple[str, str], FullPosterior] = {}

    def hmc(self, group: str) -> dict[str, Any]:
        longer = {} if "/" in group else LONG
        return {**references.OPTIONS["hmc"], **longer, **name_values(self.arguments.hmc)}

    def problem(self, group: str) -> Problem:
        if group not in self._problems:
            setup = assembly.Setup(**self._setup(group))
            self._problems[group] = assembly.build(setup, device=self._device(group))
        return self._problems[group]

    def reference(self, group: str, inference: str, role: str) -> str:
        """Made once, and kept in the cache of the problem."""
        own = self.hmc(group) if (inference, role) == ("hmc", "measure") else {}
        full = references.reference(self.problem(group), inference, role=role, **own)  # type: ignore[arg-type]
        self._references[group, inference] = full
        return " ".join([full.label, str(full.diagnostics), *full.warnings])

    def coreset(self, group: str, label: str, per_class: int, seed: int) -> str:
        method, options = LABELS[label]
        changed = {
            name.removeprefix(f"{method}."): value
            for name, value in self.changes.items()
            if name.startswith(f"{method}.")
        }
        options = {**options, **changed, **self._setup(group), "per_class": per_class}
        device, began = self._device(group), time.monotonic()
        made = pseudocore.reduce(method, seed=seed, device=device, **options)
        seconds = time.monotonic() - began
        path = self._path(group, label, per_class, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        made.coreset.with_provenance(reduce_seconds=round(seconds, 2)).save(path)
        return f"{seconds:.1f} s"

    def row(self, job: Job) -> dict[str, Any]:
        problem, began = self.problem(job.group), time.monotonic()
        key = job.group, job.inference
        if key not in self._references:
            self.reference(*key, "measure")
        full = self._references[key]
        coreset = pseudocore.load(self._path(job.group, job.label, job.per_class, job.seed))
        fitted = self.hmc(job.group) if job.inference == "hmc" else {}
        found = pseudocore.evaluate(
            coreset, inference=job.inference, seeds=1, first_seed=job.seed, fidelity=full,
            device=self._device(job.group), **fitted,
        )  # fmt: skip
        worst = (found.diagnostics or [{}])[0].get("predictions", {})
        return {
            "name": job.name,
            **job._asdict(),
            "method": LABELS[job.label][0],
            "points": len(coreset),
            "total_weight": float(coreset.weight.sum()),
            **{name: spread["mean"] for name, spread in found.metrics.items()},
            "rhat": worst.get("rhat"),
            "ess_bulk": worst.get("ess_bulk"),
            "warnings": found.warnings,
            "learned": dict(coreset.learned),
            "options": dict(coreset.provenance["options"]),
            "inference_options": found.options,
            "prior": config.to_dict(problem.prior),
            "reference": full.label,
            "reference_diagnostics": full.diagnostics,
            "reduce_seconds": coreset.provenance["reduce_seconds"],
            "seconds": round(time.monotonic() - began, 2),
            "command": shlex.join(["python", *sys.argv]),
            **made_here(self.arguments.commit),
        }

    def _setup(self, group: str) -> dict[str, Any]:
        setup = dict(SETUPS[group])
        if setup["data"].endswith(".npz"):
            setup["data"] = str(self.arguments.tabular / setup["data"])
        return setup

    def _device(self, group: str) -> str:
        starts = tuple(self.arguments.gpu_groups)
        return "cuda" if starts and group.startswith(starts) else "cpu"

    def _path(self, group: str, label: str, per_class: int, seed: int) -> Path:
        file = f"{group.replace('/', '-')}-{label}-ipc{per_class}-seed{seed}.safetensors"
        return Path(self.arguments.work) / "coresets" / file


WORKER: list[Worker] = []
"""The one of this process."""


def begin(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    os.environ["PSEUDOCORE_CACHE"] = str(arguments.work / "cache")
    WORKER[:] = [Worker(arguments)]


def call(kind: str, *words: Any) -> Any:
    return getattr(WORKER[0], kind)(*words)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("benchmarks/results"), help="folder of records")
    add("--work", type=Path, help="folder of references and coresets (default: OUT/work)")
    add("--commit", default="unknown")
    add("--seconds", type=float, default=float("inf"), help="after which no task is begun")
    add("--processes", type=int, default=0, help="on the CPU, of one thread each; 0: this one")
    add("--gpu-processes", type=int, default=0)
    add("--gpu-groups", nargs="+", default=[], help="groups that begin so are run on the GPU")
    add("--shard", default="0/1", metavar="I/N", help="every N-th row from the I-th on")
    add("--only", nargs="+", default=[""], help="groups that begin so, as digits/linear")
    add("--methods", nargs="+", help="rows of these names")
    add("--per-class", type=int, nargs="+", help="of these budgets, in points per class")
    add("--seeds", type=int, default=2)
    add("--tabular", type=Path, default=Path("/work/shared/data/tabular"), help="npz files")
    add("--set", action="append", default=[], metavar="METHOD.OPTION=VALUE")
    add("--hmc", action="append", default=[], metavar="OPTION=VALUE", help="of both sides")
    add("--show", action="store_true", help="only print what is there, as a table in Markdown")
    arguments = parser.parse_args()
    arguments.work = arguments.work or arguments.out / "work"
    file = arguments.out / "fidelity.jsonl"
    if not arguments.show:
        began = time.monotonic()
        finished = run(
            tasks_of(jobs_of(arguments, set(records.read(file))), arguments.gpu_groups),
            call,
            processes={"cpu": arguments.processes, "cuda": arguments.gpu_processes},
            begin=begin,
            arguments=(arguments,),
            seconds=arguments.seconds,
        )
        for task, result in finished:
            name, text = " ".join(map(str, task.key)), result
            if task.key[0] == "row":
                records.put(file, result)
                name, text = result["name"], {one: round(result[one], 4) for one in SHOWN}
            print(f"{time.monotonic() - began:6.1f} s  {name}: {text}", flush=True)
    show(records.read(file).values())


def jobs_of(arguments: argparse.Namespace, done: set[str]) -> list[Job]:
    """Rows that are asked for and not there yet."""
    starts = tuple(arguments.only)
    place, num = map(int, arguments.shard.split("/"))
    asked = [
        job
        for job in plan(arguments.seeds)
        if job.group.startswith(starts)
        and job.label in (arguments.methods or [job.label])
        and job.per_class in (arguments.per_class or [job.per_class])
        and LABELS[job.label][0] in methods
        and job.name not in done
    ]
    return asked[place::num]


def show(rows: Iterable[dict[str, Any]]) -> None:
    """KL and TV to full-data inference, mean over seeds, a line for each group and method."""
    found: dict[tuple[str, str, str], dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        key = row["group"], row["inference"], row["label"]
        found.setdefault(key, {}).setdefault(row["per_class"], []).append(row)
    for group, inference in dict.fromkeys(key[:2] for key in found):
        lines = {label: found[key] for key in found if key[:2] == (group, inference)
                 for label in key[2:]}  # fmt: skip
        budgets = sorted(set(itertools.chain(*lines.values())))
        some = [row for by in lines.values() for several in by.values() for row in several]
        floor_kl, floor_tv = (_mean(some, f"fidelity_floor_{name}") for name in ("kl", "tv"))
        print(f"\n**{group}, {inference}**; floor {floor_kl:.4f} / {floor_tv:.3f}\n")
        print("| method |" + "".join(f" {budget} |" for budget in budgets))
        print("|---|" + "---:|" * len(budgets))
        for label in sorted(lines, key=list(LABELS).index):
            cells = [lines[label].get(budget, []) for budget in budgets]
            print(f"| {label} |" + "".join(f" {_cell(several)} |" for several in cells))


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return sum(float(row[name]) for row in rows) / len(rows)


def _cell(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "–"
    mark = "¹" if len(rows) == 1 else ""
    return f"{_mean(rows, 'fidelity_kl'):.3f} / {_mean(rows, 'fidelity_tv'):.3f}{mark}"


if __name__ == "__main__":
    main()
