"""Every selector on one data set and network, evaluated alike: the rows of LCMat's Table 1.

    python benchmarks/selection_table.py --preset lcmat2023/cifar10-ipc50-lcmat-s --ipc 5 25 50 250
    --seeds 3 --commit HASH --out DIR

The preset's setup, pre-training and evaluation hold for all selectors; its budget and its LCMat
options for none but its own. The network they look through is trained once per seed. One JSON,
whole after every cell; cells that are there are not run again.
"""

import argparse
import json
import time
from dataclasses import replace
from datetime import date
from math import ceil
from pathlib import Path
from typing import Any

from pseudocore import api, presets
from pseudocore import assembly as setups
from pseudocore.core import config
from pseudocore.core.registry import methods
from pseudocore.store.folders import hardware, versions


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", required=True, help="name, or a .toml file")
    parser.add_argument("--ipc", type=int, nargs="+", required=True)
    parser.add_argument(
        "--methods",
        nargs="+",
        default=[
            entry.name for entry in methods if entry.kind == "select" and entry.name != "full"
        ],
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="selections, each with a network of its own"
    )
    parser.add_argument(
        "--networks", type=int, default=1, help="networks trained on each selection"
    )
    parser.add_argument(
        "--epochs",
        type=int,
        help="of evaluation, as steps by the size of the coreset; unless told, the preset's steps",
    )
    parser.add_argument(
        "--moments",
        type=int,
        help="of evaluation, of which the best is noted too; unless told, the preset's",
    )
    parser.add_argument(
        "--severity",
        type=int,
        action="append",
        default=[],
        help="also under all corruptions at this severity",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of every selector that has it",
    )
    parser.add_argument("--augment", help="in evaluation; the preset's is that of pre-training")
    parser.add_argument("--commit", required=True)
    parser.add_argument("--out", type=Path, required=True, help="file to write or to go on with")
    arguments = parser.parse_args()
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"cells": []}
    done = {(cell["method"], cell["ipc"], cell["seed"]) for cell in record["cells"]}
    for seed in range(arguments.seeds):
        for per_class in arguments.ipc:
            for name in arguments.methods:
                if (name, per_class, seed) not in done:
                    record["cells"].append(cell(name, per_class, seed, arguments))
                    keep(record, arguments)


def cell(name: str, per_class: int, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    table = presets.read(arguments.preset)
    changes = {
        key: json.loads(value) for key, _, value in (pair.partition("=") for pair in arguments.set)
    }
    wanted = {**table["options"], "features": "network", **changes, "per_class": per_class}
    fields = {option.name for option in config.options(methods[name].make)}
    own = {"rho", "num_dimensions"} if name != table["method"] else set()
    options = {key: value for key, value in wanted.items() if key in fields - own}
    reduction = api.Reduction.from_config(
        {**table, "method": name, "seed": seed, "options": options}
    )
    problem = setups.build(reduction.setup)
    way = dict(reduction.evaluate or {})
    if arguments.epochs is not None:
        way["num_steps"] = arguments.epochs * ceil(
            per_class * problem.num_classes / way.get("batch_size", 128)
        )
    if arguments.moments is not None:
        way["num_moments"] = arguments.moments
    began = time.monotonic()
    coreset = api.run_reduction(replace(reduction, evaluate=way), problem).coreset
    seconds = time.monotonic() - began
    setup = {"augment": arguments.augment} if arguments.augment else {}
    more: dict[str, Any] = {
        "severities": tuple(arguments.severity),
        "published": True,
        "setup": setup,
    }
    found = api.evaluate(
        coreset, problem.data, seeds=arguments.networks, first_seed=1000 * seed, **more
    )
    scores = {metric: [one[metric] for one in found["per_seed"]] for metric in found["metrics"]}
    print(
        name,
        per_class,
        seed,
        f"{seconds:.1f} s",
        {metric: found["metrics"][metric]["mean"] for metric in ("accuracy", "nll")},
        flush=True,
    )
    return {
        "method": name,
        "ipc": per_class,
        "seed": seed,
        "options": options,
        "evaluate": way,
        "seconds": round(seconds, 2),
        "scores": scores,
    }


def keep(record: dict[str, Any], arguments: argparse.Namespace) -> None:
    record |= {
        "preset": arguments.preset,
        "config": presets.read(arguments.preset),
        "augment": arguments.augment,
        "date": str(date.today()),
        "commit": arguments.commit,
        "hardware": hardware(),
        "versions": versions(),
        "command": "python benchmarks/selection_table.py "
        + " ".join(
            f"--{key.replace('_', '-')} {value}"
            for key, value in vars(arguments).items()
            if value not in (None, [])
        ),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
