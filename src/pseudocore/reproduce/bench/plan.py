"""A whole benchmark: ceilings, a row for every method and part, and curves of cost against size,
within a given time.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import methods
from pseudocore.reproduce.bench import baseline, measure, tasks
from pseudocore.reproduce.bench.measure import Ceilings, Work
from pseudocore.reproduce.bench.requests import (
    Measured,
    NotMeasuredError,
    Request,
    Variant,
    fulfil,
    runs_eagerly,
)
from pseudocore.reproduce.bench.subprocess_runner import subprocess_runner
from pseudocore.reproduce.bench.workload import SIZES, Workload, method_of
from pseudocore.runtime import Compile
from pseudocore.store.folders import hardware, now, versions

TIMED_FIRST = ("vbpc", "frepo", "bpc-fkl", "bpc-rkl", "bpc-w", "bpc-cd", "dm", "dsa", "lcmat-c")
"""Methods that others are compared with; time may not suffice for the rest."""

GROWTH_METHODS = ("bpc-fkl", "vbpc")
"""Methods whose growth is measured by default."""

GROWTH_SIZES: dict[str, dict[str, tuple[int, ...]]] = {
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
"""What is varied, one at a time."""

ROWS_SHARE = 0.7
"""Share of the time for rows, if there are curves to measure in the rest."""

READING_SECONDS = {"row": 0.6, "point": 0.2}
"""Seconds to take readings for, for a row or a point of a curve; slow steps take longer."""

MEMORY = {
    "cuda": "torch.cuda.max_memory_allocated less what was held before the first step, "
    "data included",
    "cpu": "ru_maxrss of a process of its own, less what it was before the first step; "
    "with compilation, if that was asked for",
}


class Row(NamedTuple):
    """A method or part in every variant there is."""

    name: str
    ours: Measured
    eager: Measured | None
    plain: Measured | None
    ceilings: Ceilings

    @property
    def work(self) -> Work:
        assert self.ours.work is not None  # rows ask for it
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
            **{name: _table(getattr(self, name)) for name in ("ours", "eager", "plain")},
            "faster": self.faster,
            **work._asdict(),
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
        """Of the growth between the two largest sizes: 0 is none, 1 in proportion."""
        if len(self.values) < 2:
            return None
        (smaller, larger), (before, after) = self.values[-2:], self.ms[-2:]
        return math.log(after / before) / math.log(larger / smaller)

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "exponent": self.exponent}


def default_methods() -> list[str]:
    """Every method with steps, in the order they are timed."""
    stepping = [entry.name for entry in methods if entry.kind != "select"]
    order = {name: place for place, name in enumerate(TIMED_FIRST)}
    return sorted(stepping, key=lambda name: order.get(name, len(order)))


def run(
    workload: Workload,
    *,
    names: Sequence[str],
    growing: Sequence[str] = GROWTH_METHODS,
    device: str = "cpu",
    compile: Compile = "auto",
    seconds: float = 90.0,
    commit: str = "",
    on_ceilings: Callable[[Ceilings], None] = lambda ceilings: None,
    on_row: Callable[[Row], None] = lambda row: None,
    on_curve: Callable[[Curve], None] = lambda curve: None,
) -> dict[str, Any]:
    """Everything as one JSON document, and each piece as soon as it is measured; after `seconds`
    nothing new is started.
    """
    tasks.check_names([*names, *growing])
    for name in growing:
        if name in tasks.PARTS:
            raise ConfigError(
                f"growth is measured for methods, and {name!r} is a part of one",
                code="growth-of-a-part",
                name=name,
            )
    began = time.monotonic()
    ceilings = measure.ceilings(torch.device(device), workload.precision)
    on_ceilings(ceilings)
    rows_end = began + (ROWS_SHARE if growing else 1) * seconds
    with nullcontext(fulfil) if device == "cuda" else subprocess_runner() as ask:
        session = _Session(workload, device, compile, ask, rows_end)
        rows = [session.row(name, ceilings, on_row) for name in names]
        session.end = began + seconds
        curves = [
            session.curve(name, knob, on_curve)
            for name in growing
            for knob in _growth_sizes(name, workload)
        ]
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
        "rows": [row.to_json() for row in rows if row],
        "growth": [curve.to_json() for curve in curves if curve],
        "failed": session.failed,
        "not_reached": session.not_reached,
        "seconds": round(time.monotonic() - began, 1),
        "date": now(),
        "commit": commit,
        "hardware": hardware(),
        "versions": versions(),
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

    def row(self, name: str, ceilings: Ceilings, on_row: Callable[[Row], None]) -> Row | None:
        if (ours := self._measure(name, "ours", name)) is None:
            return None
        eager = (
            ours if runs_eagerly(self.device, self.compile) else self._measure(name, "eager", name)
        )
        has_plain = baseline.exists(name, self.workload)
        plain = self._measure(name, "plain", name) if has_plain else None
        row = Row(name, ours, eager, plain, ceilings)
        on_row(row)
        return row

    def curve(self, name: str, knob: str, on_curve: Callable[[Curve], None]) -> Curve | None:
        curve = Curve(name, knob, [], [], [])
        for value in _growth_sizes(name, self.workload)[knob]:
            found = self._measure(f"{name} at {knob} {value}", "ours", name, **{knob: value})
            if found is not None:
                curve.values.append(value)
                curve.ms.append(found.timing.ms)
                curve.peak_mib.append(found.peak_mib)
        if not curve.values:
            return None
        on_curve(curve)
        return curve

    def _measure(self, title: str, variant: Variant, name: str, **changes: int) -> Measured | None:
        title = title if variant == "ours" else f"{title}, {variant}"
        if time.monotonic() > self.end:
            self.not_reached.append(title)
            return None
        request = Request(
            name,
            variant,
            resized(self.workload, changes),
            self.device,
            self.compile,
            READING_SECONDS["point" if changes else "row"],
            counting=variant == "ours" and not changes,
        )
        try:
            return self.ask(request)
        except NotMeasuredError as error:
            self.failed[title] = str(error)
            return None


def resized(workload: Workload, changes: dict[str, int]) -> Workload:
    """The workload with some sizes changed, and as many training images as these need."""
    sizes = {**config.to_dict(workload), **changes}
    num_train = max(sizes["num_train"], sizes["num_classes"] * sizes["per_class"])
    return replace(workload, **{**changes, "num_train": num_train})


def _table(one: Measured | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {**one.timing._asdict(), "peak_mib": one.peak_mib, "note": one.note}


def _growth_sizes(name: str, workload: Workload) -> dict[str, tuple[int, ...]]:
    """What can be varied for a method."""
    known = {option.name for option in config.options(type(method_of(name, workload)))}
    size = "full" if workload.shape == SIZES["full"].shape else "small"
    return {
        knob: values
        for knob, values in GROWTH_SIZES[size].items()
        if knob in known or knob in ("num_train", "num_classes")
    }
