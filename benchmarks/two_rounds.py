"""Selection in two rounds against one: objective, time and memory, from 10^4 to 10^7 examples.

    python benchmarks/two_rounds.py --num 1000000 --shard-size 20000 --out results.jsonl

The data are 64 features in half precision, 10 classes of 20 clusters each, in sizes that differ, with
heavy tails; they are written once to --data and memory-mapped. The objective is facility location
over last-layer gradients on all examples, as CRAIG states it, at the network of the selection. Last
lines are JSON.
"""

import argparse
import json
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pseudocore as pc
from pseudocore.assembly import Setup, build
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.engine import Engine
from pseudocore.selection.last_layer_gradients import GradientMetric, LastLayer
from pseudocore.training.pretrain import last_layer, pretrained

NUM_CLASSES, NUM_CLUSTERS, WIDTH, NUM_TEST = 10, 20, 64, 2000
BLOCK = 100_000


def write(folder: Path, num: int) -> None:
    """The data set of that size, whole or not at all."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent))
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(NUM_CLASSES, NUM_CLUSTERS, WIDTH)) * 0.6
    shares = rng.dirichlet(np.full(NUM_CLUSTERS, 0.5), size=NUM_CLASSES)
    for half, size in (("train", num), ("test", NUM_TEST)):
        x = np.lib.format.open_memmap(
            partial / f"{half}_x.npy", mode="w+", dtype=np.float16, shape=(size, WIDTH)
        )
        y = rng.permutation(np.arange(size) % NUM_CLASSES)
        np.save(partial / f"{half}_y.npy", y)
        for start in range(0, size, BLOCK):
            label = y[start : start + BLOCK]
            pick = rng.random((len(label), 1))
            cluster = (shares[label].cumsum(1) < pick).sum(1).clip(max=NUM_CLUSTERS - 1)
            noise = rng.standard_t(4, size=(len(label), WIDTH))
            x[start : start + BLOCK] = centres[label, cluster] + noise
        x.flush()
    partial.rename(folder)


def layers(problem: Problem, theta: torch.Tensor, chosen: torch.Tensor, label: int) -> Any:
    """Last layers of the examples of a class, a block at a time, each beside that of the points."""
    index = problem.class_indices[label]
    own = chosen[problem.data.train.y[chosen] == label]
    points = last_layer(problem, theta, Rng(0), own)
    for part in torch.split(index, BLOCK // 10):
        block = last_layer(problem, theta, Rng(0), part)
        both = [torch.cat(pair) for pair in zip(points[:3], block[:3], strict=True)]
        yield LastLayer(*both), len(own)


def covered(problem: Problem, theta: torch.Tensor, chosen: torch.Tensor) -> dict[str, float]:
    """F of some points with C the largest distance bound of each class, and the mean distance of an
    example to the nearest point.
    """
    total = distance = 0.0
    for label in range(problem.num_classes):
        farthest, parts = 0.0, []
        for both, num in layers(problem, theta, chosen, label):
            metric = GradientMetric(both)
            farthest = max(farthest, metric.farthest)
            at = torch.arange(num, len(both.y))
            parts.append(metric(torch.arange(num), at).min(0).values.double().sum())
        near = float(sum(parts))
        distance += near
        total += farthest * len(problem.class_indices[label]) - near
    return {"objective": total, "mean_distance": distance / problem.num_train}


def run(given: argparse.Namespace) -> dict[str, Any]:
    folder = Path(given.data) / str(given.num)
    began = time.monotonic()
    write(folder, given.num)
    written = time.monotonic() - began
    options: dict[str, Any] = {"fraction": given.fraction, "seed": given.seed}
    options |= {"pretrain_epochs": 1, "pretrain_batch_size": 1024, "model": "linear"}
    if given.exact:
        options["exact"] = True
    if given.shard_size:
        options["shard_size"] = given.shard_size
    if given.method in ("uniform", "k-center"):
        options = {name: of for name, of in options.items() if not name.startswith("pretrain")}
    out = Path(tempfile.mkdtemp())
    engine = None
    if given.engine:
        engine = Engine(kind=given.engine, workers=given.workers)
    began = time.monotonic()
    made = pc.reduce(given.method, folder, out=out / "run", engine=engine, device="cpu", **options)
    seconds = time.monotonic() - began
    shutil.rmtree(out)
    usage = [resource.getrusage(who).ru_maxrss / 2**20 for who in (0, resource.RUSAGE_CHILDREN)]
    problem = build(Setup(data=str(folder), model="linear"), device="cpu")
    recipe = pc.methods.CRAIG(pretrain_epochs=1, pretrain_batch_size=1024)
    theta = pretrained(problem, recipe, Rng(given.seed)("pretrain")).theta
    chosen = made.coreset.indices
    assert chosen is not None
    return {
        "num": given.num,
        "method": given.method,
        "fraction": given.fraction,
        "seed": given.seed,
        "exact": given.exact,
        "shard_size": given.shard_size,
        "engine": given.engine,
        "workers": given.workers,
        "points": len(chosen),
        "seconds": round(seconds, 1),
        "write_seconds": round(written, 1),
        "peak_gib": round(usage[0], 2),
        "worker_peak_gib": round(usage[1], 2),
        "threads": torch.get_num_threads(),
        **(covered(problem, theta, chosen) if not given.no_objective else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, required=True)
    parser.add_argument("--method", default="craig")
    parser.add_argument("--fraction", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard-size", type=int)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--engine", choices=["local", "ray"])
    parser.add_argument("--workers", type=int)
    parser.add_argument("--no-objective", action="store_true")
    parser.add_argument("--data", default="/tmp/two-rounds")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    line = json.dumps(run(given))
    print(line)
    if given.out is not None:
        with given.out.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
