"""pseudocore demo: the main job on built-in data, ending with a table and a report page."""

import itertools
import shlex
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from pseudocore import api
from pseudocore import assembly as setups
from pseudocore.cli.console import comparison_table, err, out, progress
from pseudocore.core.problem import Problem
from pseudocore.evaluation.tables import comparison
from pseudocore.store.run_folder import Run

SETUP: dict[str, Any] = {"data": "digits", "model": "convnet-wide", "width": 32}
LEARNED: dict[str, Any] = {"num_steps": 400, "batch_size": 128}
EVALUATE = {"inference": "last-layer-vi", "num_steps": 200}
SEEDS = 3


def demo(
    *,
    out_folder: Annotated[
        Path, Parameter(name="--out", help="Folder for the runs and the report.")
    ] = Path("demo"),
) -> int:
    """Reduce the 1,437 training digits to 1 and 5 a class, by chance, by FRePo and by VBPC; compare
    them with the full set.
    """
    began = time.monotonic()
    jobs: list[tuple[str, dict[str, int]]] = [
        (method, {"per_class": ipc}) for ipc in (1, 5) for method in ("uniform", "frepo", "vbpc")
    ]
    jobs.append(("full", {}))
    runs = []
    problem = setups.build(setups.Setup(**SETUP))
    with progress("demo", len(jobs) * SEEDS) as advance:
        for method, budget in jobs:
            for seed in range(SEEDS):
                runs.append(_one(method, budget, seed, problem, out_folder))
                advance(len(runs), {})
    records = [
        (run.config, evaluation) for run in runs for evaluation in run.evaluations().values()
    ]
    out.print(comparison_table(comparison(records)))
    _report(runs, out_folder)
    err.print(
        f"{len(runs)} coresets made and evaluated in {time.monotonic() - began:.0f} s; they are in {out_folder}/"
    )
    return 0


def _one(method: str, budget: dict[str, int], seed: int, problem: Problem, folder: Path) -> Run:
    """What `pseudocore reduce` and `pseudocore evaluate` would do, in their RUN folder."""
    learned = LEARNED if method in ("frepo", "vbpc") else {}
    table = {
        "method": method,
        "seed": seed,
        "setup": SETUP,
        "options": {**budget, **learned},
        "evaluate": EVALUATE,
    }
    reduction = api.Reduction.from_config(table)
    path = folder / "-".join([method, *(f"ipc{n}" for n in budget.values()), f"seed{seed}"])
    command = _command(
        "reduce",
        method,
        SETUP["data"],
        **{**SETUP, "data": None},
        ipc=budget.get("per_class"),
        **learned,
        seed=seed,
        out=path,
    )
    with Run.create(path, reduction.to_config(), overwrite=True, command=command) as run:
        outcome = api.run_reduction(reduction, problem, run)
    if outcome.status == "interrupted":
        raise KeyboardInterrupt
    result = api.evaluate(outcome.coreset, problem.data, seeds=1, first_seed=seed)
    command = _command("evaluate", str(path), **EVALUATE, seeds=1, first_seed=seed)
    run.save_evaluation("last-layer-vi", {**result, "command": command})
    return run


def _command(*words: str, **flags: Any) -> str:
    """The command line that would do the same."""
    given = [
        (f"--{name.replace('_', '-')}", str(value))
        for name, value in flags.items()
        if value is not None
    ]
    return shlex.join(["pseudocore", *words, *itertools.chain.from_iterable(given)])


def _report(runs: list[Run], folder: Path) -> None:
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError:
        err.print('for the report page: pip install "pseudocore[report]"')
        return
    from pseudocore.report.page import render

    err.print(f"report page: {render(runs, folder / 'report.html')}")
