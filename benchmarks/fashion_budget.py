"""Fashion-MNIST at ten per class with the same processor time for every method, on one core.

    python benchmarks/fashion_budget.py SET.npz --seconds 300 --methods dm ncfm vbpc --out DIR

Each method gets as many steps as SECONDS of processor time allow, the training of its experts
included: two short runs say what a step costs. Step sizes are ours, untuned. `convnet3` of width
32, the first 10,000 training images, all test images, three networks. One record a method in
DIR/fashion.jsonl; run again, it resumes.
"""

import argparse
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from cells import made_here

import pseudocore as pc
from pseudocore.reproduce import records

SETUP: dict[str, Any] = {"model": "convnet3", "width": 32, "device": "cpu"}
EXPERTS = {"num_experts": 3, "max_start": 4}
PATH = {**EXPERTS, "horizon": 1, "num_inner_steps": 10, "inner_lr": 0.03, "inner_lr_lr": 1e-4}
METHODS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "dm": {"batch_size": 128},
    "ncfm": {**EXPERTS, "batch_size": 128, "num_frequencies": 512, "image_lr": 0.02},
    "vbpc": {},
    "frepo": {},
    "mtt": {**PATH, "image_lr": 100.0},
    "datm": {**PATH, "image_lr": 100.0},
    "rcig": {"image_lr": 0.02, "label_lr": 0.02, "num_inner_steps": 10, "batch_size": 256},
}
EVALUATE = {"sgd": {"num_steps": 500, "step_size": 0.02}, "last-layer-vi": {"num_steps": 300}}
SHORT, LONGER = 3, 9
"""Steps of the runs that say what a step costs."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("data", type=Path, help="train_x, train_y, test_x and test_y")
    add("--seconds", type=float, default=300, help="of processor time for each method")
    add("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    add("--num-train", type=int, default=10_000)
    add("--num-test", type=int, default=10_000)
    add("--commit", default="unknown")
    add("--out", type=Path, required=True, help="folder of records")
    arguments = parser.parse_args()
    path, data = arguments.out / "fashion.jsonl", read(arguments)
    for name in arguments.methods:
        if name not in records.read(path):
            found = measured(name, data, arguments.seconds)
            about = {"num_train": arguments.num_train, "num_test": arguments.num_test}
            command = {"command": shlex.join(["python", *sys.argv])}
            records.put(
                path, {"name": name, **about, **made_here(arguments.commit), **command, **found}
            )


def read(arguments: argparse.Namespace) -> Any:
    with np.load(arguments.data) as parts:
        sides = []
        for side, num in (("train", arguments.num_train), ("test", arguments.num_test)):
            x = parts[f"{side}_x"][:num]
            x = x[:, None] if x.ndim == 3 else x
            sides.append((x, parts[f"{side}_y"][:num].astype("int64")))
    return pc.dataset(*sides[0], test=sides[1])


def measured(name: str, data: Any, seconds: float) -> dict[str, Any]:
    options, spent = dict(METHODS[name]), 0.0
    given: dict[str, Any] = {**SETUP, "per_class": 10}
    with tempfile.TemporaryDirectory() as folder:
        if "num_experts" in options:
            began, experts = time.process_time(), Path(folder) / "experts"
            training = {"num": options["num_experts"], "epochs": options["max_start"]}
            pc.train_experts(data, out=experts, lr=0.05, batch_size=64, **training, **SETUP)
            spent, given["experts"] = time.process_time() - began, str(experts)
        if name != "uniform":
            costs = []
            for num_steps in (SHORT, LONGER):
                began = time.process_time()
                pc.reduce(name, data, num_steps=num_steps, **options, **given)
                costs.append(time.process_time() - began)
            step = max(1e-4, (costs[1] - costs[0]) / (LONGER - SHORT))
            options["num_steps"] = max(1, int((seconds - spent) / step))
        began = time.process_time()
        coreset = pc.reduce(name, data, **options, **given).coreset
        spent += time.process_time() - began
    rows = {}
    for inference, settings in EVALUATE.items():
        scores = pc.evaluate(coreset, data, inference=inference, seeds=3, device="cpu", **settings)
        rows[inference] = {key: scores["metrics"][key] for key in ("accuracy", "nll", "ece")}
    return {"options": options, "seconds": round(spent, 1), "evaluations": rows}


if __name__ == "__main__":
    main()
