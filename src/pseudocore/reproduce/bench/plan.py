"""A whole benchmark: ceilings, a row for every method and part, and curves of cost against size,
within a given time.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import methods
from pseudocore.reproduce.bench import baseline as plain
from pseudocore.reproduce.bench import measure, tasks
from pseudocore.reproduce.bench.measure import Ceilings, Work
from pseudocore.reproduce.bench.requests import (
    Measured,
    NotMeasuredError,
    Request,
    Way,
    fulfil,
    runs_eagerly,
)
from pseudocore.reproduce.bench.subprocess_runner import apart
from pseudocore.reproduce.bench.workload import FULL, Workload, method_of
from pseudocore.runtime import Compile
from pseudocore.store.folders import hardware, now, versions

FIRST = ("vbpc", "frepo", "bpc-fkl", "bpc-rkl", "bpc-w", "bpc-cd", "dm", "dsa", "lcmat-c")
"""Methods that others are compared with: timed before the rest, for which time may not be left."""

GROWING = ("bpc-fkl", "vbpc")
"""Methods whose growth is measured unless told."""

KNOBS: dict[str, dict[str, tuple[int, ...]]] = {
    "small": {
        "per_class": (1, 10, 50),
        "num_inner_steps": (2, 5, 10, 20),
        "num_draws": (2, 5, 10, 20),
        "num_train": (1000, 4000, 16_000),
        "num_classes": (2, 10, 40),
    },
    "full": {
        "per_class": (1, 10, 50),
        "num_inner_steps": (10, 30, 60),
        "num_draws": (10, 30, 60),
        "num_train": (5000, 20_000, 50_000),
        "num_classes": (10, 50, 100),
    },
}
"""What is varied, one at a time, and how far."""


ROWS_SHARE = 0.7
"""Of the time that is given, as long as there are curves to measure in the rest."""


PATIENCE = {"row": 0.6, "point": 0.2}
"""Seconds to read the clock for, for a row or a point of a curve; slow steps take longer, as some
readings are always made.
"""


class Row(NamedTuple):
    """A method or part, run in every way there is."""

    name: str
    ours: Measured
    eager: Measured | None
    plain: Measured | None
    ceilings: Ceilings

    @property
    def work(self) -> Work:
        assert self.ours.work is not None  # it is asked for below
        return self.ours.work

    @property
    def faster(self) -> float | None:
        """How many times faster than the plain loop, or than the eager step where there is none."""
        other = self.plain or self.eager
        return None if other is None else other.timing.ms / self.ours.timing.ms

    def per_second(self, amount: int) -> float:
        return 1000 * amount / self.ours.timing.ms

    def to_json(self) -> dict[str, Any]:
        work = self.work
        return {
            "name": self.name,
            "kind": "part" if self.name in tasks.PARTS else "method",
            "ours": _table(self.ours),
            "eager": _table(self.eager),
            "plain": _table(self.plain),
            "faster": self.faster,
            "flop": work.flop,
            "bytes": work.bytes,
            "images": work.images,
            "images_per_second": self.per_second(work.images),
            "matmul_share": self.per_second(work.flop) / self.ceilings.matmul,
            "copy_share": self.per_second(work.bytes) / self.ceilings.copy,
            "least_ms": 1000 * work.flop / self.ceilings.matmul,
        }


class Curve(NamedTuple):
    """Cost of one method against one size, the others kept."""

    name: str
    knob: str
    values: list[int]
    ms: list[float]
    peak_mib: list[int]

    @property
    def exponent(self) -> float | None:
        """Of the cost's growth with the size, between the two largest: 0 is none, 1 in proportion."""
        pairs = list(pairwise(zip(self.values, self.ms, strict=True)))
        if not pairs:
            return None
        (smaller, before), (larger, after) = pairs[-1]
        return math.log(after / before) / math.log(larger / smaller)

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "exponent": self.exponent}


def usual_methods() -> list[str]:
    """What is timed unless told: every method with steps."""
    stepping = [entry.name for entry in methods if hasattr(entry.make, "step")]
    return sorted(stepping, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def run(
    workload: Workload,
    *,
    names: Sequence[str],
    growing: Sequence[str] = GROWING,
    device: str = "cpu",
    compile: Compile = "auto",
    seconds: float = 90.0,
    commit: str = "",
    on_ceilings: Callable[[Ceilings], None] = lambda ceilings: None,
    on_row: Callable[[Row], None] = lambda row: None,
    on_curve: Callable[[Curve], None] = lambda curve: None,
) -> dict[str, Any]:
    """Everything as one JSON document, and each piece when it is there; after `seconds` nothing new
    is begun.
    """
    tasks.check_names([*names, *growing])
    if only_parts := [name for name in growing if name in tasks.PARTS]:
        raise ConfigError(f"growth is measured for methods, and {only_parts[0]!r} is a part of one")
    began = time.monotonic()
    ceilings = measure.ceilings(torch.device(device), workload.precision)
    on_ceilings(ceilings)
    with nullcontext(fulfil) if device == "cuda" else apart() as ask:
        session = _Session(
            workload, device, compile, ask, end=began + (ROWS_SHARE if growing else 1) * seconds
        )
        rows = _told(on_row, (session.row(name, ceilings) for name in names))
        session.end = began + seconds
        curves = _told(
            on_curve,
            (session.curve(name, knob) for name in growing for knob in _knobs(name, workload)),
        )
    return {
        "workload": config.to_dict(workload),
        "device": device,
        "compile": compile,
        "torch_threads": torch.get_num_threads(),
        "ceilings": {
            "matmul_flop_per_second": ceilings.matmul,
            "copy_bytes_per_second": ceilings.copy,
        },
        "peak_mib_is": MEMORY[device],
        "rows": [row.to_json() for row in rows],
        "growth": [curve.to_json() for curve in curves],
        "failed": session.failed,
        "not_reached": session.not_reached,
        "seconds": round(time.monotonic() - began, 1),
        "date": now(),
        "commit": commit,
        "hardware": hardware(),
        "versions": versions(),
    }


MEMORY = {
    "cuda": "torch.cuda.max_memory_allocated less what was held before the first step, data included",
    "cpu": "ru_maxrss of a process of its own, less what it was before the first step; with compilation, if that was asked for",
}


@dataclass
class _Session:
    """Measures until the time is up, and notes what it could not."""

    workload: Workload
    device: str
    compile: Compile
    ask: Callable[[Request], Measured]
    end: float
    failed: dict[str, str] = field(default_factory=dict)
    not_reached: list[str] = field(default_factory=list)

    def row(self, name: str, ceilings: Ceilings) -> Row | None:
        if (ours := self._ask(name, "ours", name)) is None:
            return None
        eager = ours if runs_eagerly(self.device, self.compile) else self._ask(name, "eager", name)
        beside = self._ask(name, "plain", name) if plain.exists(name, self.workload) else None
        return Row(name, ours, eager, beside, ceilings)

    def curve(self, name: str, knob: str) -> Curve | None:
        curve = Curve(name, knob, [], [], [])
        for value in _knobs(name, self.workload)[knob]:
            found = self._ask(f"{name} at {knob} {value}", "ours", name, **{knob: value})
            if found is not None:
                curve.values.append(value)
                curve.ms.append(found.timing.ms)
                curve.peak_mib.append(found.peak_mib)
        return curve if curve.values else None

    def _ask(self, title: str, way: Way, name: str, **changes: int) -> Measured | None:
        title = title if way == "ours" else f"{title}, {way}"
        if time.monotonic() > self.end:
            self.not_reached.append(title)
            return None
        counting, patience = way == "ours" and not changes, PATIENCE["point" if changes else "row"]
        request = Request(
            name, way, _sized(self.workload, changes), self.device, self.compile, patience, counting
        )
        try:
            return self.ask(request)
        except NotMeasuredError as error:
            self.failed[title] = str(error)
            return None


def _table(one: Measured | None) -> dict[str, Any] | None:
    return (
        None
        if one is None
        else {**one.timing._asdict(), "peak_mib": one.peak_mib, "note": one.note}
    )


def _told(tell: Callable[[Any], None], found: Any) -> list[Any]:
    """What was found, each told of when it is there."""
    kept = []
    for one in found:
        if one is not None:
            tell(one)
            kept.append(one)
    return kept


def _knobs(name: str, workload: Workload) -> dict[str, tuple[int, ...]]:
    """What can be varied for a method."""
    own = {option.name for option in config.options(type(method_of(name, workload)))} | {
        "num_train",
        "num_classes",
    }
    size = "full" if workload.shape == FULL.shape else "small"
    return {knob: values for knob, values in KNOBS[size].items() if knob in own}


def _sized(workload: Workload, changes: dict[str, int]) -> Workload:
    """The workload with some sizes changed, and as many training images as these need."""
    sizes = {**config.to_dict(workload), **changes}
    return replace(
        workload,
        **{
            **changes,
            "num_train": max(sizes["num_train"], sizes["num_classes"] * sizes["per_class"]),
        },
    )
