"""Every selector on one data set and network, evaluated alike: the rows of LCMat's Table 1.

    python benchmarks/selection_table.py --preset lcmat2023/cifar10-ipc50-lcmat-s --ipc 5 25 50 250
    --seeds 3 --commit HASH --out DIR --name NAME

The preset's setup, pre-training and evaluation hold for all selectors; its budget and its LCMat
options for none but its own. The network they look through is trained once per seed. One record in
DIR/selection.jsonl, written after every cell; run again, it resumes.
"""

import argparse
import shlex
import sys
import time
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from cells import made_here, name_values

from pseudocore import api, assembly
from pseudocore.assembly import presets
from pseudocore.core import config
from pseudocore.core.registry import methods
from pseudocore.reproduce import records


def main() -> None:
    selectors = [entry.name for entry in methods if entry.kind == "select"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--preset", required=True, help="name, or a .toml file")
    add("--ipc", type=int, nargs="+", required=True)
    add("--methods", nargs="+", default=[name for name in selectors if name != "full"])
    add("--seeds", type=int, default=3, help="selections, each with a network of its own")
    add("--networks", type=int, default=1, help="networks trained on each selection")
    add("--epochs", type=int, help="of evaluation, instead of the preset's steps")
    add("--moments", type=int, help="of evaluation, of which the best is noted too")
    add("--severity", type=int, action="append", default=[], help="also score all corruptions")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="options of selectors")
    add("--augment", help="in evaluation; the preset's is that of pre-training")
    add("--commit", required=True)
    add("--name", required=True, help="of the record")
    add("--out", type=Path, required=True, help="folder of records")
    arguments = parser.parse_args()
    path = arguments.out / "selection.jsonl"
    about = {
        "name": arguments.name,
        "preset": arguments.preset,
        "config": presets.read(arguments.preset),
        "augment": arguments.augment,
        **made_here(arguments.commit),
        "command": shlex.join(["python", *sys.argv]),
    }
    cells = records.read(path).get(arguments.name, {}).get("cells", [])
    done = {(cell["method"], cell["ipc"], cell["seed"]) for cell in cells}
    for seed in range(arguments.seeds):
        for per_class in arguments.ipc:
            for name in arguments.methods:
                if (name, per_class, seed) not in done:
                    cells.append(cell(name, per_class, seed, arguments))
                    records.put(path, {**about, "cells": cells})


def cell(name: str, per_class: int, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    table, changes = presets.read(arguments.preset), name_values(arguments.set)
    wanted = {**table["options"], "space": "network", **changes, "per_class": per_class}
    fields = {option.name for option in config.options(methods[name].make)}
    if name != table["method"]:
        fields -= {"rho", "num_dimensions"}
    options = {key: value for key, value in wanted.items() if key in fields}
    reduction = api.Reduction.from_config(
        {**table, "method": name, "seed": seed, "options": options}
    )
    problem = assembly.build(reduction.setup)
    evaluate = dict(reduction.evaluate or {})
    if arguments.epochs is not None:
        per_epoch = ceil(per_class * problem.num_classes / evaluate.get("batch_size", 128))
        evaluate["num_steps"] = arguments.epochs * per_epoch
    if arguments.moments is not None:
        evaluate["num_moments"] = arguments.moments
    began = time.monotonic()
    coreset = api.run_reduction(replace(reduction, evaluate=evaluate), problem).coreset
    seconds = round(time.monotonic() - began, 2)
    found = api.evaluate(
        coreset,
        problem.data,
        seeds=arguments.networks,
        first_seed=1000 * seed,
        severities=tuple(arguments.severity),
        published=True,
        setup={"augment": arguments.augment} if arguments.augment else {},
    )
    scores = {metric: [one[metric] for one in found["per_seed"]] for metric in found["metrics"]}
    print(name, per_class, seed, f"{seconds} s", scores["accuracy"], scores["nll"], flush=True)
    return {
        "method": name,
        "ipc": per_class,
        "seed": seed,
        "options": options,
        "evaluate": evaluate,
        "seconds": seconds,
        "scores": scores,
    }


if __name__ == "__main__":
    main()
