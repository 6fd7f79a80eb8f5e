"""Running one cell: its coresets, then every protocol. What several cells share is made once and
kept in the work folder.

A coreset is a RUN folder named by a digest of its configuration, so cells that use one coreset by
several protocols make it once. A cell that was killed resumes from its checkpoint. Expert folders
are shared by data set, network, preprocessing, augmentation and loss; pre-trained networks are in
the user's cache. A selector selects anew for every seed and one network is fitted to each
selection. Any other coreset is made once, with seed 0, and a network is fitted for every seed.

Several processes can fill one table from one work folder: each takes cells that no other is
running, and waits where another is making what it needs.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pseudocore import api, assembly
from pseudocore.assembly import Reduction, Setup
from pseudocore.core import config
from pseudocore.core.errors import PseudocoreError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.types import Coreset, NeedsExperts, Selector
from pseudocore.evaluation.metrics import spreads
from pseudocore.reproduce.cells import Cell
from pseudocore.reproduce.recipes import Recipe
from pseudocore.reproduce.results import FAILED, FINISHED, Result, settings
from pseudocore.runtime import profiling
from pseudocore.store.expert_folder import ExpertFolder
from pseudocore.store.files import encode_json, writing
from pseudocore.store.folders import Lock, TakenError
from pseudocore.store.run_folder import Run

_EXPERT_SETUP = (
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
"""Setup fields that decide what experts are."""

OnLog = Callable[[int, dict[str, float]], None]


@dataclass
class CellRunner:
    """Runs cells in a work folder."""

    folder: Path
    """Where coresets and experts are kept."""
    seeds: int = 3
    severities: Sequence[int] = ()
    device: str = "auto"
    commit: str | None = None
    on_wait: Callable[[str], None] = lambda what: None
    """Called with what another process is making, before waiting for it."""
    _problem: tuple[Setup, Problem] | None = field(default=None, init=False)

    def run(self, cell: Cell, recipe: Recipe, on_log: OnLog = lambda step, values: None) -> Result:
        """The result of a cell; a `PseudocoreError` becomes a failed result."""
        began = time.monotonic()
        try:
            found = {**self._measured(recipe, on_log), "status": FINISHED}
        except PseudocoreError as error:
            found = {"status": FAILED, "reason": str(error)}
        return Result(
            table=cell.table,
            cell=cell.name,
            preset=recipe.preset,
            settings=settings(recipe, self.seeds, self.severities),
            changes=dict(recipe.changes),
            commit=self.commit,
            seconds=round(time.monotonic() - began, 3),
            **found,
        )

    @contextmanager
    def claim(self, cell: Cell) -> Iterator[bool]:
        """Whether this process has the cell to itself; False while another runs it."""
        try:
            lock = Lock(self._lock_folder(f"{cell.table}-{cell.name}"))
        except TakenError:
            yield False
            return
        with lock:
            yield True

    def _measured(self, recipe: Recipe, on_log: OnLog) -> dict[str, Any]:
        selects = isinstance(Reduction.from_config(recipe.tables).method, Selector)
        num_coresets, num_networks = (self.seeds, 1) if selects else (1, self.seeds)
        found: dict[str, list[Mapping[str, Any]]] = {name: [] for name in recipe.protocols}
        costs: profiling.Costs = {}
        kept: list[Path] = []
        for seed in range(num_coresets):
            coreset, problem, spent = self._coreset(recipe, seed, on_log)
            costs = profiling.combined(costs, spent)
            for name, protocol in recipe.protocols.items():
                of = {**recipe.tables, "protocol": name, "seed": seed, "num": num_networks}
                kept.append(self.folder / "seeds" / f"{_digest(of)}.json")
                scores = api.evaluate(
                    coreset,
                    problem.dataset,
                    inference=protocol.inference,
                    setup=protocol.setup,
                    published=protocol.published,
                    seeds=num_networks,
                    first_seed=seed,
                    severities=tuple(self.severities),
                    device=self.device,
                    resume=kept[-1],
                    **protocol.options,
                )
                found[name].append(scores)
        for path in kept:
            path.unlink(missing_ok=True)
        return {
            "evaluations": {name: pooled(several) for name, several in found.items()},
            "num_coresets": num_coresets,
            "num": self.seeds,
            "cost": profiling.to_table(costs),
        }

    def _coreset(
        self, recipe: Recipe, seed: int, on_log: OnLog
    ) -> tuple[Coreset, Problem, profiling.Costs]:
        reduction = Reduction.from_config({**recipe.tables, "seed": seed})
        problem = self._problem_of(reduction.setup)
        if isinstance(reduction.method, NeedsExperts):
            problem = replace(problem, experts=self._experts(reduction, problem, recipe.experts))
        resolved = api.resolved(reduction, problem)
        made_of = {
            "config": resolved.to_config(),
            "experts": recipe.experts,
            "data": problem.data.fingerprint,
        }
        name, method = _digest(made_of), recipe.tables["method"]
        with (
            self._lock(name, f"the coreset of {method} that this cell needs"),
            Run.create(self.folder / "runs" / name, resolved.to_config(), resume=True) as folder,
        ):
            if not folder.finished:
                outcome = api.run_reduction(resolved, problem, folder, on_log=on_log)
                if outcome.status == "interrupted":
                    raise KeyboardInterrupt
                if outcome.status != "finished":
                    raise RunError(
                        f"{method} {outcome.status}: {outcome.reason}", code=outcome.status
                    )
            costs = profiling.from_table(folder.manifest.get("cost") or {})
            return folder.coreset(), problem, costs

    def _experts(self, reduction: Reduction, problem: Problem, training: Mapping[str, Any]) -> Any:
        """From the folder of this setup and loss, filled as far as the method needs."""
        method = reduction.method
        setup = config.to_dict(reduction.setup)
        given = {
            **{name: value for name, value in setup.items() if name in _EXPERT_SETUP},
            **training,
            "loss": method.expert_loss,
        }
        name = _digest({**given, "num": method.num_experts, "data": problem.data.fingerprint})
        path = self.folder / "experts" / name
        with self._lock(name, "the experts that this cell needs"):
            api.train_experts(
                problem.dataset,
                out=path,
                num=method.num_experts,
                epochs=method.expert_epochs,
                device=self.device,
                **given,
            )
        return ExpertFolder.open(path).mapped(problem)

    def _problem_of(self, setup: Setup) -> Problem:
        """The latest problem is kept for the next cell, or only its data."""
        known, problem = self._problem or (None, None)
        if known != setup or problem is None:
            same_data = problem is not None and known is not None and known.data == setup.data
            data = problem.data if same_data and problem is not None else None
            problem = assembly.build(setup, data, device=self.device)
            self._problem = (setup, problem)
        return problem

    @contextmanager
    def _lock(self, name: str, what: str) -> Iterator[None]:
        """One process at a time makes what several need; the others wait."""
        with Lock(self._lock_folder(name), on_wait=lambda: self.on_wait(what)):
            yield

    def _lock_folder(self, name: str) -> Path:
        folder = self.folder / "turns" / name
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder


def pooled(several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several evaluations that differ in their seeds, as one."""
    first = several[0]
    per_seed = [row for one in several for row in one["per_seed"]]
    scores = [{name: value for name, value in row.items() if name != "seed"} for row in per_seed]
    costs: profiling.Costs = {}
    for one in several:
        costs = profiling.combined(costs, profiling.from_table(one["cost"]))
    found = {
        name: first[name] for name in ("inference", "options", "model", "data") if name in first
    }
    for name in ("warnings", "chosen"):
        if items := [item for one in several for item in one.get(name, ())]:
            found[name] = items
    if "corruptions" in first:
        found["corruptions"] = _mean_by_corruption([one["corruptions"] for one in several])
    return {
        **found,
        "metrics": spreads(scores),
        "per_seed": per_seed,
        "cost": profiling.to_table(costs),
    }


def _mean_by_corruption(tables: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    return {
        kind: {severity: fmean(table[kind][severity] for table in tables) for severity in row}
        for kind, row in tables[0].items()
    }


def _digest(what: Mapping[str, Any]) -> str:
    text = encode_json(what, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
