"""Coresets of the features of a frozen network: time and distance from full-data inference.

`python benchmarks/frozen_features.py fashion-mnist.npz --commit HASH --out benchmarks/results`

The first 20,000 training images go once through a ResNet-18 with random weights (7×7 stem, 512
features; every call of the network is counted). On the features a linear network is reduced at 1, 5
and 20 points per class and inferred by last-layer-vi, on coreset and all data alike. psvi factors
the covariance of all parameters and takes 3,000 at most, so that it runs on two classes: upper-body
clothes against the rest. The methods' own defaults but for `STEPS`; nothing is tuned.
"""

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import made_here
from torch import Tensor, nn

import pseudocore as pc
from pseudocore.core.errors import PseudocoreError
from pseudocore.evaluation.metrics import spreads
from pseudocore.reproduce import records

NUM_TRAIN, NUM_TEST = 20_000, 2_000
UPPER_BODY = (0, 2, 3, 4, 6)
STEPS = {"vbpc": 500, "psvi": 100}
SCORES = ("accuracy", "nll", "fidelity_kl", "fidelity_tv", "fidelity_agreement")


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.skip(x)).relu()


class ResNet18(nn.Module):
    """Without its last layer; counts the images it sees."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths, inputs = (64, 128, 256, 512), 64
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        blocks = []
        for place, width in enumerate(widths):
            blocks += [Block(inputs, width, 1 if place == 0 else 2), Block(width, width, 1)]
            inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.num_seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_seen += len(x)
        out: Tensor = self.blocks(self.stem(x)).mean((2, 3))
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("data", type=Path)
    add("--out", type=Path, required=True, help="folder of records")
    add("--commit", required=True)
    add("--seeds", type=int, default=2)
    add("--per-class", type=int, nargs="+", default=[1, 5, 20])
    arguments = parser.parse_args()
    path = arguments.out / "frozen_features.jsonl"
    with np.load(arguments.data) as arrays:
        x, y = arrays["train_x"][:NUM_TRAIN], arrays["train_y"][:NUM_TRAIN].astype(np.int64)
        xt, yt = arrays["test_x"][:NUM_TEST], arrays["test_y"][:NUM_TEST].astype(np.int64)
    network = ResNet18(1)
    tasks = {
        "10 classes": (y, yt, ("uniform", "vbpc", "psvi")),
        "2 classes": (
            np.isin(y, UPPER_BODY) * 1,
            np.isin(yt, UPPER_BODY) * 1,
            ("uniform", "vbpc", "psvi"),
        ),
    }
    for task, (labels, test_labels, methods) in tasks.items():
        data = pc.dataset(x, labels, test=(xt, test_labels), name=f"fashion, {task}")
        for per_class in arguments.per_class:
            for method in methods:
                row = measured(data, network, method, per_class, arguments.seeds)
                row = {"name": f"{task}/{method}/{per_class}", **row, "seen": network.num_seen}
                row |= {**made_here(arguments.commit), "command": shlex.join(sys.argv)}
                print(row["name"], row.get("metrics", row.get("refused")), flush=True)
                records.put(path, row)


def measured(
    data: pc.Dataset, network: nn.Module, method: str, per_class: int, seeds: int
) -> dict[str, Any]:
    """Scores of coresets by several seeds, or why there are none."""
    found, seconds = [], []
    options = {"num_steps": STEPS[method]} if method in STEPS else {}
    for seed in range(seeds):
        began = time.monotonic()
        try:
            run = pc.reduce(
                method, data, features=network, model="linear", per_class=per_class, seed=seed,
                **options,
            )  # fmt: skip
        except PseudocoreError as error:
            return {"method": method, "per_class": per_class, "refused": str(error)}
        seconds.append(round(time.monotonic() - began, 2))
        scores = pc.evaluate(
            run, inference="last-layer-vi", seeds=1, first_seed=seed, fidelity=True
        )
        found.append({name: scores.metrics[name]["mean"] for name in SCORES})
    return {
        "method": method,
        "per_class": per_class,
        "num_train": len(data.train.y),
        "seeds": seeds,
        "steps": STEPS.get(method),
        "seconds": seconds,
        "metrics": spreads(found),
    }


if __name__ == "__main__":
    main()
