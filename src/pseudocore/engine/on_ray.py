"""Ray: a cluster of one's own, or `ray symmetric-run` under Slurm.

Ray itself tries an item again whose worker or node died; a node that joins is used.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from pseudocore.core.errors import ConfigError
from pseudocore.core.optional import optional_module
from pseudocore.engine.items import Call, Done, Item, died, result_of, serve
from pseudocore.engine.settings import Engine, Resources


def run_all(
    calls: Sequence[tuple[Item, Call]], engine: Engine, resources: Resources, retries: int
) -> Iterator[Done]:
    """Results as they finish."""
    ray = _ray()
    owned = not ray.is_initialized()
    if owned:
        _connect(ray, engine)
    try:
        yield from _results(ray, calls, engine, resources, retries)
    finally:
        if owned:
            ray.shutdown()


def _results(
    ray: Any,
    calls: Sequence[tuple[Item, Call]],
    engine: Engine,
    resources: Resources,
    retries: int,
) -> Iterator[Done]:
    needs: dict[str, Any] = {"num_cpus": resources.cores, "num_gpus": resources.gpus}
    if resources.memory_gib is not None:
        needs["memory"] = int(resources.memory_gib * 2**30)
    remote = ray.remote(serve).options(max_retries=retries, retry_exceptions=False, **needs)
    waiting, running = list(reversed(calls)), dict[Any, Item]()
    limit = engine.workers or len(calls)
    try:
        while waiting or running:
            while waiting and len(running) < limit:
                item, call = waiting.pop()
                running[remote.remote(call.to_json())] = item
            ready, _ = ray.wait(list(running), num_returns=1)
            for reference in ready:
                item = running.pop(reference)
                try:
                    text = ray.get(reference)
                except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
                    raise died(item, retries + 1, _first_line(error)) from error
                except ray.exceptions.RayError as error:
                    raise died(item, 1, _first_line(error)) from error
                yield result_of(text, item)
    finally:
        for reference in running:
            ray.cancel(reference)


def _ray() -> Any:
    # Read when Ray is loaded: nothing is reported to its makers, and GPUs are hidden from what asked
    # for none.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    return optional_module("ray", "Ray", "ray")


def _connect(ray: Any, engine: Engine) -> None:
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
    if engine.address is not None or os.environ.get("RAY_ADDRESS"):
        options = {"log_to_driver": False}
    try:
        _knock(engine.address)
        ray.init(address=engine.address, logging_level="error", **options)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {engine.address or 'this machine'} ({_first_line(error)});"
            " start one with ray start --head, or leave out the address",
            code="no-cluster",
            address=engine.address,
        ) from error


def _knock(address: str | None) -> None:
    """An `OSError` where nobody listens: Ray itself would wait for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=10).close()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
