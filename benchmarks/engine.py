"""Engines: what 1,000 trivial tasks cost, what a second worker gains, and what survives killed nodes.

    python benchmarks/engine.py overhead --engine local --workers 2
    python benchmarks/engine.py experts --workers 2
    python benchmarks/engine.py kills --nodes 2 --kills 10

`kills` needs the extra `ray`: while experts are trained, seeds evaluated and shards selected from by
a cluster on this machine, a node is killed at random moments, and another joins. Everything is
compared with this process, bit for bit.
"""

import argparse
import hashlib
import importlib
import json
import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pseudocore as pc
from pseudocore import engine
from pseudocore.engine import Engine, Item

EXPERTS: dict[str, Any] = {"model": "mlp", "width": 128}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["overhead", "experts", "kills"])
    parser.add_argument("--engine", choices=["local", "ray", "submitit"], default="local")
    parser.add_argument("--address")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--num", type=int, default=20, help="experts")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure = {"overhead": overhead, "experts": experts, "kills": kills}[given.what]
        found = measure(given, Path(folder))
    line = json.dumps({"what": given.what, **found})
    print(line)
    if given.out is not None:
        with given.out.open("a") as file:
            file.write(line + "\n")


def square(config: Mapping[str, Any], seed: int, folder: Path) -> int:
    """The trivial task; workers know it as `engine:square`."""
    return seed * seed


def overhead(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    task = importlib.import_module("engine").square  # of this file, which workers can import

    chosen = Engine(kind=given.engine, address=given.address, workers=given.workers)
    began = first = time.monotonic()
    items = [Item(seed=seed) for seed in range(given.tasks)]
    found = []
    for done in engine.map(task, items, folder=folder, engine=chosen):
        first = first if found else time.monotonic()
        found.append(done.result)
    assert sorted(found) == [seed * seed for seed in range(given.tasks)]
    end = time.monotonic()
    return {
        "engine": given.engine,
        "workers": given.workers,
        "tasks": given.tasks,
        "start_seconds": round(first - began, 2),
        "ms_per_task": round(1000 * (end - first) / (given.tasks - 1), 2),
    }


def experts(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    seconds = {}
    for name, workers in (("one", 1), ("several", given.workers)):
        chosen = Engine(kind=given.engine, address=given.address, workers=workers)
        began = time.monotonic()
        _experts(given, folder / name, chosen)
        seconds[name] = time.monotonic() - began
    same = _digests(folder / "one") == _digests(folder / "several")
    return {
        "engine": given.engine,
        "workers": given.workers,
        "experts": given.num,
        "seconds": {name: round(one, 1) for name, one in seconds.items()},
        "speed_up": round(seconds["one"] / seconds["several"], 2),
        "same_bits": same,
    }


def kills(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from ray.cluster_utils import Cluster

    expected = _job(given, folder / "here", None, lambda *_: None)
    small: Any = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
    cluster = Cluster(
        initialize_head=True, head_node_args={**small, "num_cpus": 0, "_system_config": quick}
    )
    nodes = [cluster.add_node(**small) for _ in range(given.nodes)]
    moments, killed, due = random.Random(0), [], time.monotonic()

    def maybe_kill(*_: Any) -> None:
        nonlocal due
        if len(killed) < given.kills and time.monotonic() >= due:
            time.sleep(moments.random())
            node = nodes.pop(moments.randrange(len(nodes)))
            cluster.remove_node(node, allow_graceful=False)
            nodes.append(cluster.add_node(**small))
            killed.append(time.monotonic())
            due = time.monotonic() + 4 * moments.random()

    chosen = Engine(kind="ray", address=cluster.address)
    began = time.monotonic()
    found = _job(given, folder / "there", chosen, maybe_kill)
    seconds = time.monotonic() - began
    begun = [engine.status(path.parent) for path in (folder / "there").rglob("engine.json")]
    cluster.shutdown()
    return {
        "nodes": given.nodes,
        "killed": len(killed),
        "seconds": round(seconds, 1),
        "items": sum(one.done for one in begun),
        "begun_again": sum(one.restarted for one in begun),
        "same_bits": found == expected,
    }


def _job(given: argparse.Namespace, folder: Path, chosen: Engine | None, on: Any) -> Any:
    """Experts, a selection from shards, and an evaluation of it."""
    _experts(given, folder / "experts", chosen, on)
    made = pc.reduce(
        "craig", given.data, model="linear", shard_size=100, out=folder / "run", engine=chosen
    )
    scores = pc.evaluate(
        folder / "run", inference="hmc", num_draws=20, seeds=6, engine=chosen, on_seed=on
    )
    index = made.coreset.indices
    assert index is not None
    return _digests(folder / "experts"), index.tolist(), scores["per_seed"]


def _experts(
    given: argparse.Namespace, out: Path, chosen: Engine | None, on: Any = lambda *_: None
) -> None:
    options: dict[str, Any] = {"num": given.num, "epochs": given.epochs, "on_epoch": on}
    options |= {"device": "cpu", "group": 1}
    pc.train_experts(given.data, out=out, engine=chosen, **options, **EXPERTS)


def _digests(folder: Path) -> list[str]:
    files = sorted(folder.glob("*.safetensors"))
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


if __name__ == "__main__":
    main()
