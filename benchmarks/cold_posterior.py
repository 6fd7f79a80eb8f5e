"""The cold-posterior study: MH-correct HMC on coresets over temperature × prior, and the published
protocol beside it.

    PYTHONPATH=src python benchmarks/cold_posterior.py a.safetensors b.safetensors --out results
    --seconds 240 PYTHONPATH=src python benchmarks/cold_posterior.py --uniform cifar10 --ipc 1 10
    --out results

For every coreset one JSON, written after every cell, and one SVG of the curve. A cell holds
accuracy, NLL and calibration on training points held out from the coreset (what settings are chosen
on) and on the test set, acceptance, and R-hat and ESS on predictions. Run again with more time, it
goes on where it stopped. `published` is the protocol behind the tables of Kim et al. (2022), by our
quirk options: its `published_nll` and `published_ece` are computed their way, all other numbers in
the true way.
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
"""The coarse grid first: a cell that no longer fits the time is one between others."""

PUBLISHED: dict[int, dict[str, float]] = {
    1: {
        "num_draws": 10,
        "num_burn": 10,
        "num_leapfrog": 20,
        "momentum_scale": 0.01,
        "step_size": 0.05,
        "prior_scale": 1.0,
    },
    10: {
        "num_draws": 50,
        "num_burn": 50,
        "num_leapfrog": 5,
        "momentum_scale": 0.1,
        "step_size": 0.01,
        "prior_scale": 3**-0.5,
    },
    50: {
        "num_draws": 50,
        "num_burn": 50,
        "num_leapfrog": 5,
        "momentum_scale": 0.01,
        "step_size": 0.02,
        "prior_scale": 5**0.5,
    },
}
"""By points per class from this many on; λ is written as `prior_scale` = 1/√(2λ)."""

QUIRKS: dict[str, Any] = {
    "prior": "unsquared", "mass": "equal", "init_scale": 0.1, "temperature": 1.0, "num_chains": 1, "target_accept": 0.0, "jitter": 0.0,
    "flip_kinetic": True, "mismatched_momentum": True,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES)
    parser.add_argument(
        "--fan-in",
        type=float,
        nargs="*",
        default=[2.0, 4.0, 8.0, 16.0],
        help="scales of the fan-in prior",
    )
    parser.add_argument(
        "--isotropic",
        type=float,
        nargs="*",
        default=[0.1, 0.3, 1.0],
        help="scales of the isotropic prior",
    )
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--burn", type=int, default=100)
    parser.add_argument("--leapfrog", type=int, default=20)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--step-size", type=float, default=0.02, help="first guess")
    parser.add_argument(
        "--target-accept",
        type=float,
        default=0.55,
        help="of burn-in; draws then accept some .2 more",
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, coreset in coresets(arguments):
        problem = api.build_problem(
            coreset, arguments.data, device=arguments.device, **name_values(arguments.setup)
        )
        path = arguments.out / f"cold-{name}.json"
        about = {
            "coreset": name,
            "points": len(coreset),
            "model": problem.model.describe(),
            "data": problem.data.name,
        }
        record = fill(
            path,
            {**about, "commit": arguments.commit},
            jobs(problem, coreset, arguments),
            arguments.seconds,
        )
        draw(record, path.with_suffix(".svg"))


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
    ours = {
        "num_draws": arguments.draws, "num_burn": arguments.burn, "num_leapfrog": arguments.leapfrog,
        "num_chains": arguments.chains, "step_size": arguments.step_size, "target_accept": arguments.target_accept,
    }  # fmt: skip
    priors = [("fan-in", scale) for scale in arguments.fan_in] + [
        ("isotropic", scale) for scale in arguments.isotropic
    ]
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
