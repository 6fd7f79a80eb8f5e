"""How fast selection is, and how much memory it takes.

    python benchmarks/selection_speed.py libraries|lcmat|scale|parts --commit HASH --out DIR

libraries: greedy facility location beside apricot-select and submodlib-py, lazy greedy in all
three, on one similarity matrix, taking turns, each in a process of its own; what matters is the
ratio within a run. They are no dependency of ours: install them elsewhere and name the folder (`pip
install --target DIR apricot-select submodlib-py`, then `--path DIR`). Start-up and just-in-time
compilation are not counted. lcmat: `lcmat-s` on 50,000 × 512 features, random ones of CIFAR-10's
images, at 1 %, 10 % and 30 %; a linear network is trained on them first, its time given apart.
scale: `lcmat-s` at 1 % of n = 10⁴, 10⁵, 10⁶ synthetic points of 10 classes, each in a process of
its own for its peak memory. parts: what facility location loses where random parts of a group stand
for it, and where it looks at random candidates.
"""

import argparse
import itertools
import json
import math
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import made_here
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import load
from pseudocore.data import preprocessing as whiten
from pseudocore.methods.select.lcmat_s import LCMatS
from pseudocore.models.dense import Linear
from pseudocore.reproduce import records
from pseudocore.selection import facility
from pseudocore.selection.last_layer_gradients import (
    GradientMetric,
    LastLayer,
    curvature,
    largest_variance,
)
from pseudocore.store.cache import CacheFolder
from pseudocore.training.pretrain import last_layer, pretrained

CPU = torch.device("cpu")
Choose = Callable[[Tensor, int], list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("what", choices=["libraries", "lcmat", "scale", "parts", "one", "library"])
    add("--commit", default="unknown")
    add("--out", type=Path, default=Path(), help="folder of records")
    add("--path", help="folder that apricot-select and submodlib-py were installed into")
    add("--repeats", type=int, default=3)
    add("--largest", type=int, default=10**6, help="of the sizes n in scale")
    add("--n", type=int, default=10_000, help="the size in one")
    add("--library", default="pseudocore", help="in library")
    add("--matrix", type=Path, help="file of similarities in library")
    add("--device", default="cpu", help="in lcmat")
    arguments = parser.parse_args()
    if arguments.path:
        sys.path.append(arguments.path)
    if arguments.what == "library":
        similarity = torch.from_numpy(np.load(arguments.matrix))
        print("\n" + json.dumps(timed(arguments.library, similarity, arguments.n)))
        return
    if arguments.what == "one":
        print(json.dumps(one(synthetic(arguments.n), arguments.n // 1000)))
        return
    measure = {"libraries": libraries, "lcmat": lcmat, "scale": scale, "parts": parts}
    record = {
        "name": arguments.what,
        "what": arguments.what,
        **measure[arguments.what](arguments),
        "torch_threads": torch.get_num_threads(),
        **made_here(arguments.commit),
        "command": shlex.join(["python", *sys.argv]),
    }
    records.put(arguments.out / "selection.jsonl", record)


def apart(*words: object) -> Any:
    """What this script prints last, run in a process of its own."""
    command = [sys.executable, __file__, *map(str, words)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(said.splitlines()[-1])


# --- beside others


def libraries(arguments: argparse.Namespace) -> dict[str, Any]:
    """Facility location on the gradients of 5,000 points of one class."""
    n, rows = 5000, []
    layer = gradients(n)
    metric = GradientMetric(layer, curved=0.05 * curvature(layer, largest_variance(layer, 100)))
    similarity = facility.from_distance(metric, n, metric.farthest).take(torch.arange(n))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "similarity.npy"
        np.save(file, similarity.numpy())
        for num, repeat, name in itertools.product((50, 500), range(arguments.repeats), LIBRARIES):
            words = ("library", "--library", name, "--matrix", file, "--n", num)
            path = ("--path", arguments.path) if arguments.path else ()
            seconds, of_processor, chosen = apart(*words, *path)
            value = float(similarity.double()[chosen].max(0).values.sum())
            times = {"seconds": round(seconds, 4), "cpu_seconds": round(of_processor, 4)}
            rows.append(
                {"n": n, "num": num, "repeat": repeat, "library": name, **times, "objective": value}
            )
            print(rows[-1], flush=True)
    return {"rows": rows, "ratios": ratios(rows)}


def timed(name: str, similarity: Tensor, num: int) -> tuple[float, float, list[int]]:
    """Seconds by the clock and of the processor, and what was chosen."""
    LIBRARIES[name](similarity[:100, :100].contiguous(), 5)
    began, began_processor = time.perf_counter(), time.process_time()
    chosen = LIBRARIES[name](similarity, num)
    return time.perf_counter() - began, time.process_time() - began_processor, chosen


def ratios(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Best time of each library over ours, by either clock; relative difference of objectives."""
    table: dict[str, Any] = {}
    for num in sorted({row["num"] for row in rows}):
        of_num = [row for row in rows if row["num"] == num]
        table[str(num)] = {}
        for clock in ("seconds", "cpu_seconds"):
            best = {
                name: min(row[clock] for row in of_num if row["library"] == name)
                for name in LIBRARIES
            }
            table[str(num)][clock] = {
                name: round(seconds / best["pseudocore"], 1) for name, seconds in best.items()
            }
        values = [row["objective"] for row in of_num]
        table[str(num)]["relative difference of objectives"] = (max(values) - min(values)) / max(
            values
        )
    return table


def ours(similarity: Tensor, num: int) -> list[int]:
    return facility.facility_location(
        facility.from_matrix(similarity), len(similarity), num
    ).tolist()


def apricot(similarity: Tensor, num: int) -> list[int]:
    from apricot import FacilityLocationSelection  # type: ignore[import-not-found]

    chooser = FacilityLocationSelection(
        num, metric="precomputed", optimizer="lazy", n_jobs=torch.get_num_threads()
    )
    return [int(index) for index in chooser.fit(similarity.double().numpy()).ranking]


def submodlib(similarity: Tensor, num: int) -> list[int]:
    from submodlib.functions.facilityLocation import FacilityLocationFunction  # type: ignore[import-not-found]

    function = FacilityLocationFunction(
        n=len(similarity), mode="dense", sijs=similarity.numpy(), separate_rep=False
    )
    chosen = function.maximize(
        budget=num,
        optimizer="LazyGreedy",
        stopIfZeroGain=False,
        stopIfNegativeGain=False,
        show_progress=False,
    )
    return [int(index) for index, _ in chosen]


LIBRARIES: dict[str, Choose] = {
    "pseudocore": ours,
    "apricot-select": apricot,
    "submodlib-py": submodlib,
}


def gradients(n: int) -> LastLayer:
    features = Rng(0)("features").normal(n, 512).relu()
    logits = 3 * Rng(0)("logits").normal(n, 10)
    return LastLayer(features, logits.log_softmax(1), torch.zeros(n, dtype=torch.int64))


# --- LCMat-S whole


def lcmat(arguments: argparse.Namespace) -> dict[str, Any]:
    cifar = load("cifar10")
    x = cifar.train.x.flatten(1).float() / 255 - 0.5
    direction = Rng(0)("direction").normal(x.shape[1], 512) / math.sqrt(x.shape[1])
    features = (x @ direction).relu()
    data = Dataset(
        "cifar10-features",
        Examples(features, cifar.train.y),
        Examples(features[:100], cifar.train.y[:100]),
        10,
    )
    at = torch.device(arguments.device)
    if at.type == "cuda":
        one(data, 50, at)  # libraries make their handles
    return {
        "rows": [
            {"fraction": per_class / 5000, **one(data, per_class, at)}
            for per_class in (50, 500, 1500)
        ]
    }


def scale(arguments: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for n in (10**4, 10**5, 10**6):
        if n <= arguments.largest:
            rows.append(apart("one", "--n", n))
            print(rows[-1], flush=True)
    pairs = itertools.pairwise(rows)
    exponents = [
        math.log(b["selection_cpu_seconds"] / a["selection_cpu_seconds"])
        / math.log(b["n"] / a["n"])
        for a, b in pairs
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    plot(rows, arguments.out / "scale.png")
    return {"rows": rows, "growth_exponents": [round(one, 2) for one in exponents]}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 3), layout="constrained")
    axes = figure.subplots()
    axes.loglog([row["n"] for row in rows], [row["selection_cpu_seconds"] for row in rows], "o-")
    axes.set(xlabel="training points", ylabel="processor seconds", title="lcmat-s, 1 %, 10 classes")
    figure.savefig(path, dpi=120)


def synthetic(n: int) -> Dataset:
    """Ten classes of five overlapping clusters each, 64 features."""
    rng, y = Rng(0)("scale"), torch.arange(n) % 10
    cluster = y * 5 + rng("cluster").integers(5, n)
    x = 1.5 * rng("centres").normal(50, 64)[cluster] + rng("noise").normal(n, 64)
    return Dataset(f"synthetic-{n}", Examples(x, y), Examples(x[:100], y[:100]), 10)


def one(data: Dataset, per_class: int, device: torch.device = CPU) -> dict[str, Any]:
    """Seconds and peak memory of `lcmat-s` as it is, beyond pre-training and passing the data
    through the network.
    """
    method = LCMatS(per_class=per_class, pretrain_epochs=2, pretrain_batch_size=2048)
    with tempfile.TemporaryDirectory() as folder:
        cache = CacheFolder(Path(folder))
        problem = Problem(
            data,
            Linear().build(data.shape, 10),
            whiten.make("standard", data),
            device=device,
            cache=cache,
        )
        clocks = tuple(_waiting(clock, device) for clock in (time.perf_counter, time.process_time))
        began = [clock() for clock in clocks]
        theta = pretrained(problem, method, Rng(0)("pretrain")).theta
        trained = [clock() for clock in clocks]
        last_layer(problem, theta, Rng(0)("statistics"))
        seen = [clock() for clock in clocks]
        method.select(
            problem, Rng(0)
        )  # takes the network off the shelf, and looks once more, which is counted out
        selection = [
            clock() - now - (now - then)
            for clock, now, then in zip(clocks, seen, trained, strict=True)
        ]
    row = {
        "n": problem.num_train,
        "features": problem.model.num_features,
        "chosen": 10 * per_class,
        "pretrain_seconds": round(trained[0] - began[0], 2),
        "forward_seconds": round(seen[0] - trained[0], 2),
        "selection_seconds": round(selection[0], 2),
        "selection_cpu_seconds": round(selection[1], 2),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    if device.type == "cuda":
        row["peak_device_mib"] = torch.cuda.max_memory_allocated() >> 20
    print(row, file=sys.stderr, flush=True)
    return row


def _waiting(clock: Callable[[], float], device: torch.device) -> Callable[[], float]:
    """A clock that is read when the device is done."""

    def read() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return clock()

    return read


def parts(_: argparse.Namespace) -> dict[str, Any]:
    """F and the distance L of Eq. (10) for points chosen by a part of their class, beside those
    chosen by all of it.
    """
    n, rows = 10_000, []
    data = synthetic(10 * n)
    problem = Problem(data, Linear().build(data.shape, 10), whiten.make("standard", data))
    method = LCMatS(pretrain_epochs=2, pretrain_batch_size=2048)
    layer = last_layer(
        problem, pretrained(problem, method, Rng(0)("pretrain")).theta, Rng(0)("statistics")
    )
    part = layer.at(problem.class_indices[0])
    metric = GradientMetric(part, curved=0.05 * curvature(part, largest_variance(layer, 100)))
    exact = facility.from_distance(metric, n, metric.farthest)
    for num in (100, 1000):
        ways = {
            "exact": facility.facility_location(exact, n, num),
            "by chance": Rng(2).permutation(n)[:num],
        }
        ways["epsilon .01"] = facility.facility_location(exact, n, num, epsilon=0.01, rng=Rng(3))
        for candidates, covered in ((5180, 5180), (10_000, 2684), (2684, 2684)):
            some = Rng(1).permutation(n)[:candidates]
            matrix = exact.take(some)[:, some[:covered]].contiguous()
            ways[f"{candidates} candidates, {covered} to cover"] = some[
                facility.facility_location(facility.from_matrix(matrix), candidates, num)
            ]
        for name, chosen in ways.items():
            value = facility.objective(exact, chosen)
            rows.append(
                {
                    "n": n,
                    "num": num,
                    "way": name,
                    "objective": value,
                    "distance": n * metric.farthest - value,
                }
            )
            print(rows[-1], flush=True)
    return {"rows": rows}


if __name__ == "__main__":
    main()
