"""Carrying out a reduction: in memory, or in a run folder."""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pseudocore.assembly import Reduction, networks, resolve
from pseudocore.assembly.contracts import contract_of
from pseudocore.assembly.presets import read as read_preset
from pseudocore.assembly.trust import refuse_named_code
from pseudocore.core import config
from pseudocore.core.budget import PER_CLASS, Budget, with_budget
from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.likelihood import check_task
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, NeedsExperts, NeedsReference, Selector, ServesNetworks
from pseudocore.engine import Engine
from pseudocore.features.embed import nearest
from pseudocore.inference.last_layer_vi import calibrated
from pseudocore.runtime import profiling
from pseudocore.runtime.loop import Outcome, run
from pseudocore.runtime.shortage import advising
from pseudocore.runtime.stopping import shielded
from pseudocore.store.expert_folder import ExpertFolder
from pseudocore.store.folders import versions
from pseudocore.store.run_folder import Run
from pseudocore.workflows import shard_tasks, two_rounds
from pseudocore.workflows.experts import with_experts
from pseudocore.workflows.references import with_reference

OnLog = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True, eq=False)
class ReduceResult:
    """What `reduce` returns. It is accepted wherever a coreset is."""

    coreset: Coreset
    history: list[dict[str, float]]
    """The logged values of steps: `step`, and what the method reports."""
    status: str
    """finished, interrupted or diverged."""
    reason: str
    """Why it stopped; empty when finished."""
    seconds: float
    num_steps: int
    problem: Problem
    """Data, network and preprocessing, which `infer` and `evaluate` use again."""

    def __repr__(self) -> str:
        made = self.coreset.provenance
        return (
            f"ReduceResult({made['method']} on {self.problem.data.name}: {len(self.coreset)} points,"
            f" {self.status} after {self.num_steps} steps, {self.seconds:.1f} s)"
        )


def configuration(
    method: str,
    preset: str | None,
    setup: Mapping[str, Any],
    options: Mapping[str, Any],
    seed: int | None,
) -> dict[str, Any]:
    """The tables of a reduction: those of the preset, and what was given on top of them."""
    table = read_preset(preset) if preset is not None else {}
    if table.get("method", method) != method:
        raise ConfigError(
            f"preset {preset!r} is for method {table['method']!r}, not {method!r}",
            code="preset-of-other-method",
            preset=preset,
            method=table["method"],
        )
    table = {"setup": {}, "options": {}, **table, "method": method}
    source = f"preset {preset!r} names"
    refuse_named_code(table["setup"], table["options"], source, named={*setup, *options})
    if "data" in setup:
        table.pop("data", None)
    if seed is not None:
        table["seed"] = seed
    table["setup"] = {**table["setup"], **setup}
    table["options"] = with_budget(
        config.without_aliases(table["options"]), config.without_aliases(options)
    )
    return table


def resolved(reduction: Reduction, problem: Problem) -> Reduction:
    """The reduction with its budget and the defaults that depend on the data written out, as
    config.toml keeps it; its budget and its experts are checked.
    """
    method, setup = reduction.method, reduction.setup
    check_task(method, methods.name_of(method), problem.task)
    if problem.task == "regression":
        setup = replace(setup, task="regression", target_noise=problem.gaussian.noise)
    if isinstance(method, Budget):
        method.check(problem)
        if method.per_class is method.points is method.fraction is None:
            method = replace(method, per_class=PER_CLASS)
    if setup.experts is not None:
        _check_experts(reduction, problem)
    if reduction.shard_size is not None:
        two_rounds.check(method, reduction.shard_size)
    elif isinstance(method, Selector):
        two_rounds.check_fits(method, problem)
    return replace(reduction, method=method, setup=resolve(setup, problem.data))


def run_reduction(
    reduction: Reduction,
    problem: Problem,
    folder: Run | None = None,
    *,
    engine: Engine | None = None,
    on_log: OnLog = lambda step, values: None,
    **loop_options: Any,
) -> Outcome:
    """Carry out a reduction, and keep metrics, checkpoints, coreset and manifest in a run folder.

    A method that needs experts and has none trains them first and logs that as step 0; one that
    needs draws of the full-data posterior is given some (`workflows/references.py`).
    """
    config.check(reduction.method)
    reduction = resolved(reduction, problem)
    method, began = reduction.method, time.monotonic()
    if isinstance(method, Budget) and (sentence := method.shortfall(problem)):
        warnings.warn(sentence, stacklevel=2)
    check_engine(reduction, engine)
    if folder is not None:
        _begin(folder, problem)

    def log(step: int, values: dict[str, float]) -> None:
        if folder is not None:
            folder.log(step, values)
        on_log(step, values)

    with (
        advising(method),
        profiling.recording() as costs,
        profiling.stage("reduce", problem.device),
    ):
        if isinstance(method, NeedsExperts):
            problem = with_experts(
                problem,
                method,
                reduction.setup,
                seed=reduction.seed,
                run=folder,
                on_epoch=lambda done, numbers: on_log(0, numbers),
            )
        if isinstance(method, ServesNetworks) and method.also and not problem.also:
            made = networks(method.also, problem.dataset)
            also = tuple(replace(problem, model=each, reference=None) for each in made)
            problem = replace(problem, also=also)
        is_taught = isinstance(method, NeedsReference) and bool(method.needs_reference)
        if is_taught:
            problem = with_reference(problem, method)
        if isinstance(method, Selector):
            coreset = _selected(reduction, problem, folder, engine)
            outcome = Outcome(coreset, "finished", "", 0, time.monotonic() - began)
        else:
            outcome = run(
                method,
                problem,
                seed=reduction.seed,
                checkpoints=None if folder is None else folder.checkpoints,
                on_log=log,
                **loop_options,
            )
    coreset = calibrated(problem, outcome.coreset, Rng(reduction.seed)("last-layer"))
    coreset = coreset.with_provenance(
        **reduction.to_config(),
        num_steps=outcome.num_steps,
        status=outcome.status,
        data_fingerprint=problem.data.fingerprint,
        preprocess=problem.preprocess.describe(),
        versions=versions(),
    )
    if problem.dataset.embedded is not None and coreset.indices is None:
        coreset = coreset.with_provenance(nearest=nearest(problem, coreset).tolist())
    if encoding := problem.dataset.encoding:
        coreset = coreset.with_provenance(encoding=list(encoding))
    if is_taught and problem.reference is not None:
        coreset = coreset.with_provenance(learned_from=problem.reference.label)
    coreset = replace(coreset, contract=contract_of(reduction, problem, coreset))
    outcome = outcome._replace(coreset=coreset)
    if folder is not None:
        with shielded():
            _end(folder, outcome, costs)
    return outcome


def _selected(
    reduction: Reduction, problem: Problem, folder: Run | None, engine: Engine | None
) -> Coreset:
    """A selection, in two rounds where the reduction says so."""
    method, rng, size = reduction.method, Rng(reduction.seed), reduction.shard_size
    if size is None:
        coreset: Coreset = method.select(problem, rng)
        return coreset
    first = None
    if engine is not None and folder is not None:
        first = shard_tasks.first_round(engine, reduction, problem, folder.path)
    return two_rounds.select(method, problem, rng, size, first)


def check_engine(reduction: Reduction, engine: Engine | None) -> None:
    """Refuse an engine where there is nothing for it to do."""
    if engine is not None and reduction.shard_size is None:
        raise ConfigError(
            "an engine carries out the first of two rounds of a selection; give the examples of a"
            " shard too (--shard-size)",
            code="conflicting-options",
            options=("engine", "shard_size"),
        )


def _check_experts(reduction: Reduction, problem: Problem) -> None:
    """Refuse experts that the method cannot use, or that were trained for too few epochs."""
    name, path = methods.name_of(reduction.method), str(reduction.setup.experts)
    if not isinstance(reduction.method, NeedsExperts):
        raise ConfigError(
            f"method {name!r} learns from no experts; leave out --experts {path}",
            code="needs-no-experts",
            method=name,
        )
    needed = reduction.method.expert_epochs
    if problem.experts is not None and problem.experts.num_epochs < needed:
        command = ExpertFolder.open(path).command(needed)
        raise ConfigError(
            f"the experts in {path} were trained for {problem.experts.num_epochs} epochs, but"
            f" {name} with these options needs {needed}: run `{command}`",
            code="too-few-epochs",
            num_epochs=problem.experts.num_epochs,
            needed=needed,
        )


def _begin(folder: Run, problem: Problem) -> None:
    data = problem.data
    if folder.manifest.get("data_fingerprint") not in (None, data.fingerprint):  # it is resumed
        raise RunError(
            f"{folder.path} was begun on another {data.name!r} than the one found here (their"
            " fingerprints differ); bring that data back, or pass --overwrite to start again",
            code="other-data",
            data=data.name,
        )
    saved = folder.checkpoints.load()
    folder.truncate_metrics(saved[0] if saved else 0)
    _count_killed(folder)
    folder.update_manifest(
        data_fingerprint=data.fingerprint,
        class_names=list(data.class_names),
        device=str(problem.device),
    )


def _count_killed(folder: Run) -> None:
    """Add the time of a call that was killed before it could record it."""
    known = folder.manifest.get("seconds") or 0.0
    if (missing := folder.checkpoints.seconds - known) > 0:
        killed = {"reduce": profiling.Cost(missing, 0)}
        folder.update_manifest(seconds=round(known + missing, 3), cost=_total_cost(folder, killed))


def _end(folder: Run, outcome: Outcome, costs: Mapping[str, profiling.Cost]) -> None:
    seconds = outcome.seconds + (folder.manifest.get("seconds") or 0.0)
    total = _total_cost(folder, costs)
    if outcome.status != "interrupted":
        folder.save_coreset(outcome.coreset)
    folder.finish(
        outcome.status,
        outcome.reason,
        seconds=round(seconds, 3),
        num_steps=outcome.num_steps,
        points=len(outcome.coreset),
        peak_memory_mib=max(one["peak_mib"] for one in total.values()),
        cost=total,
        note=outcome.note,
    )


def _total_cost(folder: Run, costs: Mapping[str, profiling.Cost]) -> dict[str, dict[str, Any]]:
    """The cost of earlier calls and of this one."""
    earlier = profiling.from_table(folder.manifest.get("cost") or {})
    return profiling.to_table(profiling.combined(earlier, costs))
