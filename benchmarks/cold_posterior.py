"""The cold-posterior study: MH-correct HMC on coresets over temperature × prior, and the published
protocol next to it.

    PYTHONPATH=src python benchmarks/cold_posterior.py a.safetensors b.safetensors --out results
    PYTHONPATH=src python benchmarks/cold_posterior.py --uniform cifar10 --ipc 1 10 --out results

A record for every coreset in OUT/cold.jsonl, and an SVG of the curve. A cell holds accuracy, NLL
and calibration on training points held out from the coreset (what settings are chosen on) and on
the test set, acceptance, and R-hat and ESS on predictions. Run again with more time, it resumes.
`published` is the protocol behind the tables of Kim et al. (2022): its `published_nll` and
`published_ece` are computed their way, all other numbers in the true way.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cells import (
    Cell,
    add_arguments,
    coresets,
    diagnostics,
    fill,
    name_values,
    scores,
    test_points,
    training_points,
)

from pseudocore import api
from pseudocore.core.problem import Problem
from pseudocore.core.types import Coreset, Examples
from pseudocore.evaluation.metrics import in_batches
from pseudocore.evaluation.published_metrics import published_scores

TEMPERATURES = (1.0, 0.1, 0.01, 0.3, 0.03, 0.001)
"""The coarse grid first: the cells left out for want of time lie between others."""

_LONG, _SHORT = ({"num_draws": num, "num_burn": num} for num in (50, 10))
PUBLISHED: dict[int, dict[str, float]] = {
    1: _SHORT | {"num_leapfrog": 20, "momentum_scale": 0.01, "step_size": 0.05, "prior_scale": 1.0},
    10: _LONG
    | {"num_leapfrog": 5, "momentum_scale": 0.1, "step_size": 0.01, "prior_scale": 3**-0.5},
    50: _LONG
    | {"num_leapfrog": 5, "momentum_scale": 0.01, "step_size": 0.02, "prior_scale": 5**0.5},
}
"""By points per class from this many on; λ is written as `prior_scale` = 1/√(2λ)."""

QUIRKS: dict[str, Any] = {
    "prior": "unsquared",
    "mass": "equal",
    "init_scale": 0.1,
    "temperature": 1.0,
    "num_chains": 1,
    "target_accept": 0.0,
    "jitter": 0.0,
    "flip_kinetic": True,
    "mismatched_momentum": True,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    add = parser.add_argument
    add("--temperatures", type=float, nargs="+", default=TEMPERATURES)
    add("--fan-in", type=float, nargs="*", default=[2.0, 4.0, 8.0, 16.0], help="prior scales")
    add("--isotropic", type=float, nargs="*", default=[0.1, 0.3, 1.0], help="prior scales")
    add("--draws", type=int, default=100)
    add("--burn", type=int, default=100)
    add("--leapfrog", type=int, default=20)
    add("--chains", type=int, default=4)
    add("--step-size", type=float, default=0.02, help="first guess")
    add("--target-accept", type=float, default=0.55, help="of burn-in; draws accept some .2 more")
    arguments = parser.parse_args()
    for name, coreset in coresets(arguments):
        problem = api.build_problem(
            coreset, arguments.data, device=arguments.device, **name_values(arguments.setup)
        )
        record = {
            "name": name,
            "coreset": name,
            "points": len(coreset),
            "model": problem.model.describe(),
            "data": problem.data.name,
            "commit": arguments.commit,
        }
        found = jobs(problem, coreset, arguments)
        record = fill(arguments.out / "cold.jsonl", record, found, arguments.seconds)
        draw(record, arguments.out / f"cold-{name}.svg")


def jobs(
    problem: Problem, coreset: Coreset, arguments: argparse.Namespace
) -> Iterator[tuple[Cell, Callable[[], Cell]]]:
    """The published protocol, then the grid, one temperature after another."""
    held, test = training_points(problem, coreset), test_points(problem, arguments.num_test)

    def cell(options: dict[str, Any], *, published: bool = False) -> Callable[[], Cell]:
        return lambda: measured(
            problem, coreset, options, held, test, arguments.seed, published=published
        )

    yield (
        {"protocol": "published"},
        cell(published_options(len(coreset) / problem.num_classes), published=True),
    )
    names = ("draws", "burn", "leapfrog", "chains")
    ours = {f"num_{name}": getattr(arguments, name) for name in names}
    ours |= {"step_size": arguments.step_size, "target_accept": arguments.target_accept}
    priors = [("fan-in", scale) for scale in arguments.fan_in]
    priors += [("isotropic", scale) for scale in arguments.isotropic]
    for temperature in arguments.temperatures:
        for prior, scale in priors:
            key = {"prior": prior, "prior_scale": scale, "temperature": temperature}
            yield {"protocol": "mh-correct", **key}, cell({**ours, **key})


def published_options(per_class: float) -> dict[str, Any]:
    return {**QUIRKS, **PUBLISHED[max(least for least in PUBLISHED if least <= max(1, per_class))]}


def measured(
    problem: Problem,
    coreset: Coreset,
    options: dict[str, Any],
    held: Examples,
    test: Examples,
    seed: int,
    *,
    published: bool,
) -> Cell:
    predict = api.infer(coreset, "hmc", problem=problem, seed=seed, **options)
    found = {
        name: scores(predict, examples, problem.num_classes)
        for name, examples in {"held_out": held, "test": test}.items()
    }
    more = published_scores(predict, in_batches(test, 256)) if published else {}
    return {"options": options, **found, **more, **diagnostics(predict)}


def draw(record: dict[str, Any], path: Path) -> None:
    """NLL on held-out training points over temperature, a line a prior, the published protocol as a
    level.
    """
    from pseudocore.report.evaluation_figures import temperatures

    lines: dict[str, dict[float, tuple[float, None]]] = {}
    level = None
    for cell in record["cells"]:
        if "error" in cell:
            continue
        if cell["key"]["protocol"] == "published":
            level = ("published protocol, true NLL", cell["held_out"]["nll"])
        else:
            key = cell["key"]
            line = lines.setdefault(f"{key['prior']} {key['prior_scale']:g}", {})
            line[key["temperature"]] = cell["held_out"]["nll"], None
    if lines:
        path.write_bytes(temperatures("NLL on held-out training points", lines, level))


if __name__ == "__main__":
    main()
