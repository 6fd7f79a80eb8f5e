"""submitit: jobs of a Slurm array, or processes that stand for them.

A job that is preempted or meets its time limit is requeued and resumes from its checkpoints; one
that died is submitted again.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pseudocore.core.errors import ConfigError
from pseudocore.core.optional import optional_module
from pseudocore.engine.items import TASKS, Call, Done, Item, died, result_of, serve
from pseudocore.engine.settings import Engine, Resources

FOLDER = "submitit"
POLL = 0.2
"""Seconds between two looks at the jobs on this machine; Slurm is asked a tenth as often."""


class Requeued:
    """A call that submitit submits again where Slurm ends it."""

    def __call__(self, text: str) -> str:
        return serve(text)

    def checkpoint(self, text: str) -> Any:
        """Asked for by submitit before a job is ended: the same call again."""
        return optional_module("submitit", "submitit", "submitit").helpers.DelayedSubmission(
            self, text
        )


def run_all(
    calls: Sequence[tuple[Item, Call]], engine: Engine, resources: Resources, retries: int
) -> Iterator[Done]:
    """Results as they finish."""
    submitit = optional_module("submitit", "submitit", "submitit")
    folder = Path(calls[0][1].folder)
    while folder.name != TASKS:
        folder = folder.parent
    executor, is_local = _executor(submitit, engine, resources, folder.parent / FOLDER)
    limit = engine.num_workers(resources, len(calls)) if is_local else len(calls)
    waiting = [(item, call, 0) for item, call in reversed(calls)]
    running: list[tuple[Any, Item, Call, int]] = []
    try:
        while waiting or running:
            if waiting and len(running) < limit:
                started = [waiting.pop() for _ in range(min(len(waiting), limit - len(running)))]
                with executor.batch():
                    jobs = [executor.submit(Requeued(), call.to_json()) for _, call, _ in started]
                running += [(job, *one) for job, one in zip(jobs, started, strict=True)]
            ended = [one for one in running if one[0].done()]
            if not ended:
                time.sleep(POLL if is_local else 10 * POLL)
            for one in ended:
                running.remove(one)
                job, item, call, deaths = one
                if (text := _answer(submitit, job)) is not None:
                    yield result_of(text, item)
                elif deaths >= retries:
                    raise died(item, deaths + 1, f"job {job.job_id}, see {job.paths.stderr}")
                else:
                    waiting.append((item, call, deaths + 1))
    finally:
        for job, *_ in running:
            job.cancel()


def _answer(submitit: Any, job: Any) -> str | None:
    """What a job that ended returned; None if it died."""
    try:
        return str(job.result())
    except (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError):
        return None


def _executor(
    submitit: Any, engine: Engine, resources: Resources, folder: Path
) -> tuple[Any, bool]:
    cluster, _, partition = (engine.address or "").partition(":")
    if cluster not in ("", "local", "slurm") or (partition and cluster != "slurm"):
        raise ConfigError(
            f"submitit has no address {engine.address!r}; there are slurm, slurm:PARTITION and local",
            code="unknown-address",
            address=engine.address,
        )
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster or None)
    except RuntimeError as error:
        raise ConfigError(
            f"submitit finds no Slurm here ({error}); submit from a login node, or take the address"
            " local",
            code="no-cluster",
            address=engine.address,
        ) from error
    options: dict[str, Any] = {
        "name": "pseudocore",
        "timeout_min": resources.minutes,
        "cpus_per_task": resources.cores,
        "gpus_per_node": round(resources.gpus),
    }
    if resources.memory_gib is not None:
        options["mem_gb"] = resources.memory_gib
    if partition:
        options["slurm_partition"] = partition
    if executor.cluster == "slurm" and engine.workers is not None:
        options["slurm_array_parallelism"] = engine.workers
    executor.update_parameters(**options)
    return executor, executor.cluster != "slurm"
