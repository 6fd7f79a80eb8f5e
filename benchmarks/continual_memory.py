"""Class-incremental learning from memory: accuracy per stage, for several methods.

    PYTHONPATH=src python benchmarks/continual_memory.py cifar100 --methods uniform herding --ipc 20
    --stages 5 --out results

One JSON a method: all stages of all seeds, mean and sd after each stage, and what they were run
with.
"""

import argparse
import time
from datetime import date
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from cells import name_values

from pseudocore import api
from pseudocore.data import load
from pseudocore.reproduce.continual import Stage, continual
from pseudocore.store.files import write_json
from pseudocore.store.folders import hardware, versions


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--methods", nargs="+", default=["uniform"])
    parser.add_argument("--ipc", type=int, default=20)
    parser.add_argument("--stages", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--inference", default="sgd")
    parser.add_argument("--setup", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help="of the inference"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
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
        print(
            method,
            *stage[:4],
            f"accuracy {stage.metrics['accuracy']:.3f} NLL {stage.metrics['nll']:.3f}",
            flush=True,
        )

    stages = continual(
        reduction, load(arguments.data), num_stages=arguments.stages, inference=arguments.inference, options=options,
        seeds=arguments.seeds, device=arguments.device, on_stage=say,
    )  # fmt: skip
    record: dict[str, Any] = {
        "config": reduction.to_config(), "inference": arguments.inference, "options": options, "per_stage": per_stage(stages),
        "stages": [stage._asdict() for stage in stages], "seconds": round(time.monotonic() - began, 1),
        "date": str(date.today()), "commit": arguments.commit, "hardware": hardware(), "versions": versions(),
    }  # fmt: skip
    write_json(
        arguments.out / f"continual-{arguments.data}-{method}-ipc{arguments.ipc}.json", record
    )


def per_stage(stages: list[Stage]) -> list[dict[str, Any]]:
    """Accuracy over seeds after each stage."""
    rows = []
    for number in sorted({stage.stage for stage in stages}):
        alike = [stage for stage in stages if stage.stage == number]
        values = [stage.metrics["accuracy"] for stage in alike]
        rows.append(
            {
                "classes": alike[0].num_classes,
                "mean": mean(values),
                "sd": stdev(values) if len(values) > 1 else None,
            }
        )
    return rows


if __name__ == "__main__":
    main()
