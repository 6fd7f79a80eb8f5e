"""Class-incremental learning from memory: accuracy per stage, for several methods.

    PYTHONPATH=src python benchmarks/continual_memory.py cifar100 --methods uniform herding --ipc 20
    --stages 5 --out results

A record for every method in OUT/continual.jsonl: all stages of all seeds, mean and sd after each
stage, and the settings.
"""

import argparse
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from cells import made_here, name_values

from pseudocore import api
from pseudocore.data import load
from pseudocore.reproduce import records
from pseudocore.reproduce.continual import Stage, continual


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("data")
    add("--methods", nargs="+", default=["uniform"])
    add("--ipc", type=int, default=20)
    add("--stages", type=int, default=5)
    add("--seeds", type=int, default=3)
    add("--inference", default="sgd")
    add("--setup", action="append", default=[], metavar="NAME=VALUE")
    add("--set", action="append", default=[], metavar="OPTION=VALUE", help="of the inference")
    add("--device", default="auto")
    add("--commit", default="unknown")
    add("--out", type=Path, required=True, help="folder of records")
    arguments = parser.parse_args()
    for method in arguments.methods:
        run(method, arguments)


def run(method: str, arguments: argparse.Namespace) -> None:
    table = {
        "method": method,
        "data": arguments.data,
        "setup": name_values(arguments.setup),
        "options": {"per_class": arguments.ipc},
    }
    reduction, options = api.Reduction.from_config(table), name_values(arguments.set)
    began = time.monotonic()

    def say(stage: Stage) -> None:
        numbers = {name: round(stage.metrics[name], 3) for name in ("accuracy", "nll")}
        print(method, *stage[:4], numbers, flush=True)

    stages = continual(
        reduction,
        load(arguments.data),
        num_stages=arguments.stages,
        inference=arguments.inference,
        options=options,
        seeds=arguments.seeds,
        device=arguments.device,
        on_stage=say,
    )
    record = {
        "name": f"{arguments.data}-{method}-ipc{arguments.ipc}",
        "config": reduction.to_config(),
        "inference": arguments.inference,
        "options": options,
        "per_stage": per_stage(stages),
        "stages": [stage._asdict() for stage in stages],
        "seconds": round(time.monotonic() - began, 1),
        **made_here(arguments.commit),
    }
    records.put(arguments.out / "continual.jsonl", record)


def per_stage(stages: list[Stage]) -> list[dict[str, Any]]:
    """Accuracy over seeds after each stage."""
    rows = []
    for number in sorted({stage.stage for stage in stages}):
        alike = [stage for stage in stages if stage.stage == number]
        values = [stage.metrics["accuracy"] for stage in alike]
        sd = stdev(values) if len(values) > 1 else None
        rows.append({"classes": alike[0].num_classes, "mean": mean(values), "sd": sd})
    return rows


if __name__ == "__main__":
    main()
