"""`pseudocore demo`: the whole path on built-in data, ending with a table and a report page."""

import itertools
import shlex
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from pseudocore import api
from pseudocore.assembly import Reduction, Setup, build
from pseudocore.cli.console import comparison_table, hint, out, progress
from pseudocore.core.problem import Problem
from pseudocore.evaluation.tables import comparison
from pseudocore.inference.full_posterior import FullPosterior
from pseudocore.store.run_folder import Run
from pseudocore.workflows import references
from pseudocore.workflows.reduction import run_reduction

SETUP: dict[str, Any] = {"data": "digits", "model": "convnet-wide", "width": 32}
LEARNED: dict[str, Any] = {"num_steps": 400, "batch_size": 128}
EVALUATE: dict[str, Any] = {"inference": "last-layer-vi", "num_steps": 200}
SEEDS = 3


def demo(
    *,
    folder: Annotated[Path, Parameter(name="--out")] = Path("demo"),
) -> int:
    """Make, evaluate and compare coresets of the digits.

    Args:
        folder: Folder for the runs and the report.
    """
    began = time.monotonic()
    jobs = [
        (method, {"per_class": ipc}) for ipc in (1, 5) for method in ("uniform", "frepo", "vbpc")
    ]
    jobs.append(("full", {}))
    runs: list[Run] = []
    problem = build(Setup(**SETUP))
    full = references.reference(problem, **EVALUATE)
    with progress("demo", len(jobs) * SEEDS) as advance:
        for (method, budget), seed in itertools.product(jobs, range(SEEDS)):
            runs.append(_run(method, budget, seed, problem, full, folder))
            advance(len(runs), {})
    out.print(
        comparison_table(
            comparison([(run.config, one) for run in runs for one in run.evaluations().values()])
        )
    )
    if find_spec("jinja2") and find_spec("matplotlib"):
        from pseudocore.report.page import render

        hint(f"report page: {render(runs, folder / 'report.html')}")
    else:
        hint('for the report page: pip install "pseudocore[report]"')
    hint(
        f"{len(runs)} coresets made and evaluated in {time.monotonic() - began:.0f} s; "
        f"they are in {folder}/"
    )
    return 0


def _run(
    method: str,
    budget: dict[str, int],
    seed: int,
    problem: Problem,
    full: FullPosterior,
    folder: Path,
) -> Run:
    """What `pseudocore reduce` and `pseudocore evaluate` would do, in their RUN folder."""
    options = {**budget, **(LEARNED if method in ("frepo", "vbpc") else {})}
    table = {
        "method": method,
        "seed": seed,
        "setup": SETUP,
        "options": options,
        "evaluate": EVALUATE,
    }
    reduction = Reduction.from_config(table)
    path = folder / "-".join([method, *(f"ipc{n}" for n in budget.values()), f"seed{seed}"])
    flags = {**SETUP, **options, "seed": seed, "out": path}
    command = _command("reduce", method, flags.pop("data"), **flags)
    with Run.create(path, reduction.to_config(), overwrite=True, command=command) as run:
        outcome = run_reduction(reduction, problem, run)
    if outcome.status == "interrupted":
        raise KeyboardInterrupt
    result = api.evaluate(outcome.coreset, problem.dataset, seeds=1, first_seed=seed, fidelity=full)
    command = _command("evaluate", str(path), **EVALUATE, seeds=1, first_seed=seed)
    command += " --fidelity"
    run.save_evaluation("last-layer-vi", {**result, "command": command})
    return run


def _command(*words: str, **flags: Any) -> str:
    """The command line that would do the same."""
    typed = [(f"--{name.replace('_', '-')}", str(value)) for name, value in flags.items()]
    return shlex.join(["pseudocore", *words, *itertools.chain.from_iterable(typed)])
