"""How far coresets are from full-data inference: digits by three networks, a9a and phishing_uci.

    PYTHONPATH=src python benchmarks/fidelity_table.py --seconds 3600 --commit HASH --out results
    PYTHONPATH=src python benchmarks/fidelity_table.py --only digits/linear --methods uniform psvi
    PYTHONPATH=src python benchmarks/fidelity_table.py --tabular DIR --only a9a --out results

A row a record in OUT/fidelity.jsonl, written when it is measured; run again with more time, it
resumes. Every coreset is sampled by HMC at temperature 1 under the problem's prior, with as many
draws as the full data are, and compared on the test set; vbpc by its own inference too
(`last-layer-vi`, against the same on all data). References are made once, in OUT/references. The
cheap rows come first: all methods with seed 0, then seed 1.
"""

import argparse
import itertools
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cells import made_here, name_values

import pseudocore
from pseudocore import assembly, references
from pseudocore.core.errors import PseudocoreError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.inference.full_posterior import FullPosterior
from pseudocore.reproduce import records

DIGITS = {
    "linear": {"model": "linear"},
    "mlp-32": {"model": "mlp", "width": 32},
    "convnet-wide-16": {"model": "convnet-wide", "width": 16},
}
DIGITS_METHODS = (
    "uniform", "herding", "bpc-pcd", "psvi", "vbpc", "dm", "bpc-fkl", "bpc-rkl", "bpc-w",
)  # fmt: skip
PER_CLASS = (1, 5, 10, 20)
TABULAR = ("phishing_uci", "a9a")
TABULAR_METHODS = ("uniform", "herding", "psvi", "lcmat-s")
SIZES = (10, 20, 50, 100, 200, 500)
OWN = {"vbpc": "last-layer-vi"}
"""Methods that assume another inference than hmc."""


class Job(NamedTuple):
    group: str
    method: str
    per_class: int
    seed: int
    inference: str

    @property
    def name(self) -> str:
        last = f"seed{self.seed}/{self.inference}"
        return f"{self.group}/{self.method}/ipc{self.per_class}/{last}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("benchmarks/results"), help="folder of records")
    add("--commit", default="unknown")
    add("--seconds", type=float, default=float("inf"), help="do not begin a row after this long")
    add("--only", nargs="+", default=[""], help="groups that begin so, as digits/linear")
    add("--methods", nargs="+", help="of these methods")
    add("--per-class", type=int, nargs="+", help="of these budgets, in points per class")
    add("--seeds", type=int, default=2)
    add("--tabular", type=Path, default=Path("/work/shared/data/tabular"), help="npz files")
    add("--set", action="append", default=[], metavar="METHOD.OPTION=VALUE")
    add("--hmc", action="append", default=[], metavar="OPTION=VALUE", help="of both sides")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    began, longest = time.monotonic(), 0.0
    for job in bench.jobs():
        spent = time.monotonic() - began
        if spent + longest > arguments.seconds:
            print(f"stopped after {spent:.0f} s, before {job.name}", file=sys.stderr)
            break
        try:
            row = bench.row(job)
        except PseudocoreError as error:
            print(f"{job.name}: {error}", file=sys.stderr)
            continue
        longest = max(longest, time.monotonic() - began - spent)
        records.put(arguments.out / "fidelity.jsonl", row)
        print(job.name, {name: round(row[name], 4) for name in SHOWN}, flush=True)
    show(records.read(arguments.out / "fidelity.jsonl").values())


SHOWN = ("fidelity_kl", "fidelity_floor_kl", "fidelity_tv", "accuracy", "nll")


class Bench:
    """Problems and references, made when a row first needs them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.hmc = {**references.OPTIONS["hmc"], **name_values(arguments.hmc)}
        self.changes = name_values(arguments.set)
        self._problems: dict[str, Problem] = {}
        self._references: dict[tuple[str, str], FullPosterior] = {}

    def jobs(self) -> Iterator[Job]:
        """Rows that are not there yet, seed by seed, small before large."""
        done = records.read(self.arguments.out / "fidelity.jsonl")
        for seed in range(self.arguments.seeds):
            for group, names, budgets in groups():
                for per_class, method in itertools.product(budgets, names):
                    for inference in dict.fromkeys(("hmc", OWN.get(method, "hmc"))):
                        job = Job(group, method, per_class, seed, inference)
                        if self._is_asked(job) and job.name not in done:
                            yield job

    def _is_asked(self, job: Job) -> bool:
        asked = self.arguments
        return (
            any(job.group.startswith(start) for start in asked.only)
            and job.method in (asked.methods or [job.method])
            and job.per_class in (asked.per_class or [job.per_class])
            and job.method in methods
            and not (job.method == "psvi" and job.group.startswith("digits/") and
                     job.group != "digits/linear")
        )  # fmt: skip

    def row(self, job: Job) -> dict[str, Any]:
        problem, setup = self._problem(job.group), self._setup(job.group)
        full = self._reference(job)
        options = {
            name.removeprefix(f"{job.method}."): value
            for name, value in self.changes.items()
            if name.startswith(f"{job.method}.")
        }
        began = time.monotonic()
        made = pseudocore.reduce(
            job.method, problem.data, seed=job.seed, per_class=job.per_class, **setup, **options
        )
        reduced = time.monotonic() - began
        fitted = self.hmc if job.inference == "hmc" else {}
        found = pseudocore.evaluate(
            made, inference=job.inference, seeds=1, first_seed=job.seed, fidelity=full, **fitted
        )
        worst = (found.diagnostics or [{}])[0].get("predictions", {})
        return {
            "name": job.name,
            **job._asdict(),
            "points": len(made.coreset),
            "total_weight": float(made.coreset.weight.sum()),
            **{name: spread["mean"] for name, spread in found.metrics.items()},
            "rhat": worst.get("rhat"),
            "ess_bulk": worst.get("ess_bulk"),
            "warnings": found.warnings,
            "options": dict(made.coreset.provenance["options"]),
            "inference_options": found.options,
            "prior": assembly.config.to_dict(problem.prior),
            "reference": full.label,
            "reference_diagnostics": full.diagnostics,
            "reduce_seconds": round(reduced, 2),
            "seconds": round(time.monotonic() - began, 2),
            "command": shlex.join(["python", *sys.argv]),
            **made_here(self.arguments.commit),
        }

    def _setup(self, group: str) -> dict[str, Any]:
        data, _, network = group.partition("/")
        return dict(DIGITS[network]) if data == "digits" else {"model": "linear"}

    def _problem(self, group: str) -> Problem:
        if group not in self._problems:
            data, _, _ = group.partition("/")
            path = data if data == "digits" else str(self.arguments.tabular / f"{data}.npz")
            setup = assembly.Setup(data=path, **self._setup(group))
            self._problems[group] = assembly.build(setup)
        return self._problems[group]

    def _reference(self, job: Job) -> FullPosterior:
        key = job.group, job.inference
        if key not in self._references:
            problem = self._problem(job.group)
            file = f"{job.group.replace('/', '-')}-{job.inference}.safetensors"
            path = self.arguments.out / "references" / file
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                fitted = self.hmc if job.inference == "hmc" else {}
                references.save(path, references.reference(problem, job.inference, **fitted))
            self._references[key] = references.load(path, problem)
            full = self._references[key]
            print(f"{path.name}: {full.label}", full.diagnostics, *full.warnings, file=sys.stderr)
        return self._references[key]


def groups() -> Iterator[tuple[str, Sequence[str], Sequence[int]]]:
    """Group, methods and points per class; the quick ones first."""
    for network in ("linear", "mlp-32"):
        yield f"digits/{network}", DIGITS_METHODS, PER_CLASS
    for data in TABULAR:
        yield data, TABULAR_METHODS, [size // 2 for size in SIZES]
    yield "digits/convnet-wide-16", DIGITS_METHODS, PER_CLASS


def show(rows: Any) -> None:
    """KL and TV, mean over seeds, a line for each group and method."""
    found: dict[tuple[str, str, str], dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        key = row["group"], row["method"], row["inference"]
        found.setdefault(key, {}).setdefault(row["per_class"], []).append(row)
    for (group, method, inference), by_budget in found.items():
        cells = []
        for per_class, several in sorted(by_budget.items()):
            kl, tv = (
                sum(row[name] for row in several) / len(several)
                for name in ("fidelity_kl", "fidelity_tv")
            )
            cells.append(f"{per_class}: {kl:.4f} / {tv:.3f}")
        floor = next(iter(by_budget.values()))[0]["fidelity_floor_kl"]
        print(f"{group:<24} {method:<8} {inference:<14} {'   '.join(cells)}   floor {floor:.4f}")


if __name__ == "__main__":
    main()
