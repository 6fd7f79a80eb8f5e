"""What an engine is, and what an item needs."""

import os
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

import torch

from pseudocore.core.config import Count, NonNegative, Range
from pseudocore.core.errors import ConfigError

Kind = Literal["local", "ray", "submitit"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one item needs."""

    cores: Count = 1
    """CPU cores, and threads of torch: results of other numbers of threads differ in last bits."""
    gpus: NonNegative = 0.0
    """GPUs; a fraction shares one. 0 hides them."""
    memory_gib: Annotated[float | None, Range(above=0)] = None
    """Memory that Ray and Slurm set aside. Defaults to theirs."""
    minutes: Count = 24 * 60
    """Time limit of a Slurm job; a job that meets it is requeued and resumes."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Where items run."""

    kind: Kind = "local"
    """local: processes of this machine; ray: a Ray cluster; submitit: Slurm."""
    address: str | None = None
    """ray: address of the cluster, such as auto or 10.0.0.1:6379. Defaults to RAY_ADDRESS, else one
    that runs on this machine, else a new one. submitit: slurm, slurm:PARTITION, or local. Defaults to slurm where there
    is one.
    """
    workers: int | None = None
    """Items at once. Defaults to all that fit: this machine's cores or GPUs, or the cluster's."""
    resources: Resources | None = None
    """What an item needs. Defaults to one core, and a GPU where the calling process computes on one."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(
                f"unknown engine {self.kind!r}; there are {', '.join(KINDS)}",
                code="unknown-engine",
                name=self.kind,
            )
        if self.workers is not None and self.workers < 1:
            raise ConfigError(
                f"workers = {self.workers} must be at least 1", code="option", option="workers"
            )
        if self.kind == "local" and self.address is not None:
            raise ConfigError(
                f"an engine on this machine has no address ({self.address!r}); leave it out, or"
                " take ray or submitit",
                code="unused-option",
                option="address",
            )

    def on(self, device: str) -> "Engine":
        """The same, with a GPU for each item where `device` is one and nothing else was said."""
        on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
        found = Resources(gpus=float(on_gpu))
        return self if self.resources is not None else replace(self, resources=found)

    def num_workers(self, resources: Resources, num_items: int) -> int:
        """Processes of this machine for that many items."""
        return max(1, min(num_items, self.workers or capacity(resources)))


def engine_of(engine: "Kind | Engine") -> Engine:
    """An engine from its name."""
    return engine if isinstance(engine, Engine) else Engine(kind=engine)


def capacity(resources: Resources) -> int:
    """Items that this machine's cores and GPUs hold at once."""
    num = num_cores() // resources.cores
    if resources.gpus:
        num = min(num, int(torch.cuda.device_count() / resources.gpus))
    if num < 1:
        raise ConfigError(
            f"this machine has {num_cores()} cores and {torch.cuda.device_count()} GPUs, and an item"
            f" asks for {resources.cores} and {resources.gpus:g}",
            code="too-many-resources",
        )
    return num


def num_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
