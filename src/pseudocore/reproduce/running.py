"""Running one cell: its coresets, then every way of using them. What several cells share is made
once and kept in the work folder.

A coreset is a RUN folder named by a digest of its configuration, so cells that use one coreset in
several ways make it once, and a cell that was killed goes on at its checkpoint. Experts are a
buffer for every data set, network, preprocessing, augmentation and loss; networks that selectors
look through are on the user's shelf. A selector chooses anew for every seed and one network is
fitted to each choice; any other coreset is made once, with seed 0, and a network is fitted for
every seed.

Several processes can fill one table from one work folder: each takes cells that no other is at, and
waits where another is making what it needs.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pseudocore import api
from pseudocore import assembly as setups
from pseudocore.assembly import Reduction, Setup
from pseudocore.core import config
from pseudocore.core.errors import PseudocoreError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.types import Coreset
from pseudocore.evaluation.metrics import spreads
from pseudocore.reproduce.cells import Cell
from pseudocore.reproduce.recipes import Recipe
from pseudocore.reproduce.results import FAILED, FINISHED, Result, settings
from pseudocore.runtime import profiling as cost
from pseudocore.store.expert_folder import ExpertFolder
from pseudocore.store.files import encode_json, writing
from pseudocore.store.folders import Lock, TakenError
from pseudocore.store.run_folder import Run

_KEPT = ("inference", "options", "model", "data")
_GATHERED = ("warnings", "chosen")
"""Of an evaluation: what several have in common, and lists of what each has to say."""

_OF_EXPERTS = (
    "model",
    "width",
    "depth",
    "norm",
    "init",
    "preprocess",
    "augment",
    "siamese",
    "precision",
)
"""Words of a setup that decide what experts are."""

OnLog = Callable[[int, dict[str, float]], None]


@dataclass
class CellRunner:
    """Where cells are run, and how."""

    folder: Path
    """For coresets and experts."""
    seeds: int = 3
    severities: Sequence[int] = ()
    device: str = "auto"
    commit: str | None = None
    on_wait: Callable[[str], None] = lambda what: None
    """Told what another process is making, before it is waited for."""
    _problems: dict[Setup, Problem] = field(default_factory=dict)

    def run(self, cell: Cell, recipe: Recipe, on_log: OnLog = lambda step, values: None) -> Result:
        """The result of a cell; a failure that has a sentence is one too. Ctrl-C goes on upwards."""
        began = time.monotonic()
        about: dict[str, Any] = {
            "table": cell.table, "cell": cell.name, "preset": recipe.preset, "changes": dict(recipe.changes), "commit": self.commit,
            "settings": settings(recipe, self.seeds, self.severities),
        }  # fmt: skip
        try:
            found = self._measured(recipe, on_log)
        except PseudocoreError as error:
            return Result(
                **about,
                status=FAILED,
                reason=str(error),
                seconds=round(time.monotonic() - began, 3),
            )
        return Result(**about, **found, status=FINISHED, seconds=round(time.monotonic() - began, 3))

    def _measured(self, recipe: Recipe, on_log: OnLog) -> dict[str, Any]:
        is_selector = hasattr(Reduction.from_config(recipe.table).method, "select")
        num_coresets, num_networks = (self.seeds, 1) if is_selector else (1, self.seeds)
        found: dict[str, list[Mapping[str, Any]]] = {name: [] for name in recipe.ways}
        costs: cost.Costs = {}
        for seed in range(num_coresets):
            coreset, problem, spent = self._coreset(recipe, seed, on_log)
            costs = cost.combined(costs, spent)
            for name, way in recipe.ways.items():
                how: dict[str, Any] = {
                    "inference": way.inference,
                    "setup": way.setup,
                    "published": way.published,
                    **way.options,
                }
                how |= {
                    "seeds": num_networks,
                    "first_seed": seed,
                    "severities": tuple(self.severities),
                    "device": self.device,
                }
                found[name].append(api.evaluate(coreset, problem.data, **how))
        evaluations = {name: _pooled(several) for name, several in found.items()}
        return {
            "evaluations": evaluations,
            "num_coresets": num_coresets,
            "num": self.seeds,
            "cost": cost.to_table(costs),
        }

    def _coreset(
        self, recipe: Recipe, seed: int, on_log: OnLog
    ) -> tuple[Coreset, Problem, cost.Costs]:
        reduction = Reduction.from_config({**recipe.table, "seed": seed})
        problem = self._problem(reduction.setup)
        if hasattr(reduction.method, "expert_epochs"):
            problem = replace(problem, experts=self._experts(reduction, problem, recipe.experts))
        settled = api.resolved(reduction, problem)
        name = _digest(
            {
                "config": settled.to_config(),
                "experts": recipe.experts,
                "data": problem.data.fingerprint,
            }
        )
        what = f"the coreset of {recipe.table['method']} that this cell needs"
        with (
            self._turn(name, what),
            Run.create(self.folder / "runs" / name, settled.to_config(), resume=True) as folder,
        ):
            if not folder.finished:
                outcome = api.run_reduction(settled, problem, folder, on_log=on_log)
                if outcome.status == "interrupted":
                    raise KeyboardInterrupt
                if outcome.status != "finished":
                    raise RunError(f"{recipe.table['method']} {outcome.status}: {outcome.reason}")
            return folder.coreset(), problem, cost.from_table(folder.manifest.get("cost") or {})

    @contextmanager
    def claim(self, cell: Cell) -> Iterator[bool]:
        """Whether this process has the cell to itself; not when another is at it."""
        try:
            lock = Lock(self._place(f"{cell.table}-{cell.name}"))
        except TakenError:
            yield False
            return
        with lock:
            yield True

    @contextmanager
    def _turn(self, name: str, what: str) -> Iterator[None]:
        """In which one process at a time makes what several need."""
        with Lock(self._place(name), on_wait=lambda: self.on_wait(what)):
            yield

    def _place(self, name: str) -> Path:
        """Of a lock."""
        place = self.folder / "turns" / name
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
        return place

    def _problem(self, setup: Setup) -> Problem:
        """Of this setup; the latest is kept, for the next cell is often like it, and its data for
        one that is not quite.
        """
        if setup not in self._problems:
            loaded = next(
                (
                    problem.data
                    for known, problem in self._problems.items()
                    if known.data == setup.data
                ),
                None,
            )
            self._problems.clear()
            self._problems[setup] = setups.build(setup, loaded, device=self.device)
        return self._problems[setup]

    def _experts(self, reduction: Reduction, problem: Problem, training: Mapping[str, Any]) -> Any:
        """From the buffer of this setup and loss, filled as far as the method needs."""
        method = reduction.method
        words = {
            name: value
            for name, value in config.to_dict(reduction.setup).items()
            if name in _OF_EXPERTS
        }
        words |= {**training, "loss": getattr(method, "expert_loss", "cross-entropy")}
        name = _digest({**words, "num": method.num_experts, "data": problem.data.fingerprint})
        path = self.folder / "experts" / name
        with self._turn(name, "the experts that this cell needs"):
            api.train_experts(
                problem.data,
                out=path,
                num=method.num_experts,
                epochs=method.expert_epochs,
                device=self.device,
                **words,
            )
        return ExpertFolder.open(path).mapped(problem)


def _pooled(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several evaluations that differ in their seeds, as one."""
    per_seed = [row for one in found for row in one["per_seed"]]
    costs: cost.Costs = {}
    for one in found:
        costs = cost.combined(costs, cost.from_table(one["cost"]))
    return {
        **{name: found[0][name] for name in _KEPT if name in found[0]},
        **{
            name: items
            for name in _GATHERED
            if (items := [item for one in found for item in one.get(name, ())])
        },
        **_by_corruption([one["corruptions"] for one in found if "corruptions" in one]),
        "metrics": spreads(
            [{name: value for name, value in row.items() if name != "seed"} for row in per_seed]
        ),
        "per_seed": per_seed,
        "cost": cost.to_table(costs),
    }


def _by_corruption(tables: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    """Mean accuracy by corruption and severity."""
    if not tables:
        return {}
    kinds = {
        kind: {severity: fmean(table[kind][severity] for table in tables) for severity in row}
        for kind, row in tables[0].items()
    }
    return {"corruptions": kinds}


def _digest(what: Mapping[str, Any]) -> str:
    return hashlib.blake2b(encode_json(what, sort_keys=True).encode(), digest_size=10).hexdigest()
