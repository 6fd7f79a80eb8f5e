"""Where draws go as a chain makes them: a protocol, an implementation in memory, and the traces
that a file keeps of them.

A draw is theta (chains, parameters) and a few numbers a chain (log-density, acceptance).
`store.draws.DrawsFolder` is the same on disk, for networks whose draws outgrow memory.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, RunError

TRACE_NAMES = (
    "log_density", "accept", "step_size", "energy_error", "kinetic", "gradient_norm",
)  # fmt: skip
"""Numbers that samplers report of a draw; each sampler some of them."""

Traces = dict[str, list[list[float | None]]]
"""By name, chain and kept draw; None where a value was not finite."""


class Draws(Protocol):
    """An ordered, growing collection of draws. Iterating yields thetas (chains, parameters) one at
    a time.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Tensor: ...
    def reserve(self, num_draws: int, num_bytes: int) -> None:
        """Called before the first draw with how many will come and how large each is; refuses what
        cannot be held.
        """

    def append(self, theta: Tensor, traces: Mapping[str, Tensor]) -> None:
        """Keep a copy of a draw and of the numbers (chains,) that go with it."""

    def truncate(self, num_draws: int) -> None:
        """Drop what a resumed chain will make again; it is an error if there are fewer."""

    def trace(self, name: str) -> Tensor:
        """One number of all draws so far, (draws, chains); KeyError for one that is not there."""


class MemoryDraws:
    """Draws in memory, on the device they were made on, up to a limit."""

    def __init__(self, limit_mib: float = 4096) -> None:
        self._limit = limit_mib
        self._thetas: list[Tensor] = []
        self._traces: list[dict[str, Tensor]] = []

    def __len__(self) -> int:
        return len(self._thetas)

    def __getitem__(self, index: int, /) -> Tensor:
        return self._thetas[index]

    def reserve(self, num_draws: int, num_bytes: int) -> None:
        needed = num_draws * num_bytes / 2**20
        if needed > self._limit:
            raise ConfigError(
                f"{num_draws} draws of {num_bytes / 2**20:.1f} MiB take {needed:.0f} MiB, and "
                f"{self._limit:.0f} MiB are kept in memory; keep fewer (num_draws, num_chains) or "
                "send them to a folder",
                code="too-many-draws",
                needed_mib=needed,
                limit_mib=self._limit,
            )

    def append(self, theta: Tensor, traces: Mapping[str, Tensor]) -> None:
        self._thetas.append(theta.clone())
        self._traces.append({name: value.clone() for name, value in traces.items()})

    def truncate(self, num_draws: int) -> None:
        if num_draws > len(self):
            raise RunError(
                f"the chain had made {num_draws} draws at its checkpoint, but only {len(self)} are "
                "here; start it again",
                code="draws-missing",
                expected=num_draws,
                found=len(self),
            )
        del self._thetas[num_draws:], self._traces[num_draws:]

    def trace(self, name: str) -> Tensor:
        return torch.stack([traces[name] for traces in self._traces]).cpu()


def all_traces(draws: Draws) -> dict[str, Tensor]:
    """Every trace there is, (draws, chains) by name."""
    found = {}
    for name in TRACE_NAMES:
        with suppress(KeyError):
            found[name] = draws.trace(name)
    return found


def traces(draws: Draws, limit: int = 200) -> Traces:
    """Every trace there is, at most `limit` evenly spaced draws a chain, to six digits."""
    stride = math.ceil(len(draws) / limit) or 1
    return {
        name: [
            [float(f"{value:.6g}") if math.isfinite(value) else None for value in chain]
            for chain in values[::stride].T.double().tolist()
        ]
        for name, values in all_traces(draws).items()
    }
