"""Ray and submitit: the results of this process, though nodes and jobs are killed on the way.

Skipped where the extras are missing; `make test-engine` installs and runs them.
"""

import os
import random
import signal
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pseudocore import engine
from pseudocore.core.errors import ConfigError, DataError
from pseudocore.engine import Engine, Item

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the extras


def expected(tasks: ModuleType, folder: Path, num: int) -> dict[int, Any]:
    """What a plain loop gives."""
    found = {}
    for seed in range(num):
        (folder / str(seed)).mkdir(parents=True)
        config = {"log": str(folder / "log")}
        found[seed] = tasks.count(config, seed, folder / str(seed))
    return found


def ended(log: Path) -> Counter[str]:
    """How often each item was run to its end."""
    return Counter(line.split(":")[0] for line in log.read_text().split() if line.endswith(":10"))


def test_a_node_of_ray_is_killed(tasks: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    from ray.cluster_utils import Cluster

    small: Any = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
    head = {**small, "num_cpus": 0, "_system_config": quick}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        nodes = [cluster.add_node(**small) for _ in range(2)]
        log, moments = tmp_path / "log", random.Random(0)
        items = [Item({"log": str(log), "seconds": 0.1}, seed=seed) for seed in range(6)]
        chosen = Engine(kind="ray", address=cluster.address)
        found: dict[int, Any] = {}
        killed_at = moments.randrange(1, 4)
        for done in engine.map(tasks.count, items, folder=tmp_path / "work", engine=chosen):
            found[done.item.seed] = done.result
            if len(found) == killed_at:  # while another item runs there, or is about to
                cluster.remove_node(nodes[0], allow_graceful=False)
                cluster.add_node(**small)
        assert found == expected(tasks, tmp_path / "plain", 6)
        assert ended(log) == Counter(map(str, range(6)))
        with pytest.raises(DataError, match="no such thing"):
            list(
                engine.map(
                    tasks.refuse,
                    [Item({"log": str(tmp_path / "errors")})],
                    folder=tmp_path / "work",
                    engine=chosen,
                )
            )
        assert (tmp_path / "errors").read_text() == "called\n"
    finally:
        cluster.shutdown()


def test_a_job_of_submitit_is_killed(tasks: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="the extra submitit is not installed")
    log = tmp_path / "log"
    items = [
        Item({"log": str(log), "kill_at": 4 if seed == 1 else None}, seed=seed) for seed in range(3)
    ]
    chosen = Engine(kind="submitit", address="local", workers=2)
    folder = tmp_path / "work"
    done = list(engine.map(tasks.count, items, folder=folder, engine=chosen))
    assert {one.item.seed: one.result for one in done} == expected(tasks, tmp_path / "plain", 3)
    assert ended(log) == Counter(map(str, range(3)))
    assert engine.status(folder).restarted == 1


def test_addresses_that_submitit_does_not_have(tasks: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="the extra submitit is not installed")
    for address, what in (("pbs", "has no address"), ("slurm:gpu", "finds no Slurm")):
        chosen = Engine(kind="submitit", address=address)
        with pytest.raises(ConfigError, match=what):
            list(engine.map(tasks.trivial, [Item()], folder=tmp_path, engine=chosen))


def test_a_cluster_that_does_not_answer(tasks: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    chosen = Engine(kind="ray", address="127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"no Ray cluster answers at 127\.0\.0\.1:1"):
        list(engine.map(tasks.trivial, [Item()], folder=tmp_path, engine=chosen))


def test_stopping_ends_the_workers(tasks: ModuleType, tmp_path: Path) -> None:
    results = engine.map(
        tasks.pid, [Item(seed=seed) for seed in range(3)], folder=tmp_path, engine=Engine(workers=1)
    )
    number = next(results).result
    results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(number, signal.SIG_DFL)
