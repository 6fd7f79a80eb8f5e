"""Temperature 1 with weights that stand for N points, beside the cold setting chosen for weights of 1 and
the published protocol.

    PYTHONPATH=src python benchmarks/temperatures.py coresets/*.safetensors --commit HASH --out results

A record for each coreset in OUT/temperatures.jsonl, a cell for each protocol: `posterior`, HMC as it
is by default; `cold`, on weights of 1, temperature and prior scale chosen on held-out training points;
`published`, the protocol of Kim et al. (2022). All metrics are the true ones, on the whole test set.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from cells import (
    Cell,
    add_arguments,
    coresets,
    diagnostics,
    fill,
    made_here,
    name_values,
    scores,
    test_points,
)
from cold_posterior import published_options

from pseudocore import api
from pseudocore.core.types import Coreset


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    arguments = parser.parse_args()
    for name, coreset in coresets(arguments):
        record = {
            "name": name,
            "method": coreset.provenance["method"],
            "points": len(coreset),
            **made_here(arguments.commit),
        }
        jobs = _jobs(coreset, arguments)
        fill(arguments.out / "temperatures.jsonl", record, jobs, arguments.seconds)


def _jobs(
    coreset: Coreset, arguments: argparse.Namespace
) -> Iterator[tuple[Cell, Callable[[], Cell]]]:
    ones = replace(coreset, weight=coreset.weight.new_ones(len(coreset)))
    protocols: dict[str, tuple[Coreset, dict[str, Any]]] = {
        "posterior": (coreset, {}),
        "cold": (ones, {"select": "cold"}),
        "published": (ones, published_options(len(coreset) / coreset.num_classes)),
    }
    for protocol, (weighted, options) in protocols.items():
        yield {"protocol": protocol}, partial(_cell, weighted, options, arguments)


def _cell(coreset: Coreset, options: dict[str, Any], arguments: argparse.Namespace) -> Cell:
    problem = api.build_problem(
        coreset, arguments.data, device=arguments.device, **name_values(arguments.setup)
    )
    predict = api.infer(coreset, "hmc", problem=problem, seed=arguments.seed, **options)
    chosen = dict(getattr(predict, "selected_settings", {}))
    test = scores(predict, test_points(problem, arguments.num_test), problem.num_classes)
    return {"options": options, "chosen": chosen, "test": test, **diagnostics(predict)}


if __name__ == "__main__":
    main()
