"""Stages: their seconds add up, nested or not; recordings join; nothing is measured for nobody."""

import time
from typing import Any

import pytest
import torch

from pseudocore.runtime import profiling as cost
from pseudocore.runtime.profiling import (
    Cost,
    combined,
    from_table,
    peak_mib,
    recording,
    stage,
    to_table,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that moves when told."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_stages_of_one_name_add_up(clock: list[float]) -> None:
    with recording() as costs:
        for seconds in (1.0, 2.5):
            with stage("infer"):
                clock[0] += seconds
    assert costs["infer"].seconds == 3.5
    assert 0 < costs["infer"].peak_mib <= peak_mib()


def test_what_is_inside_is_counted_once(clock: list[float]) -> None:
    with recording() as costs, stage("reduce"):
        clock[0] += 1
        with stage("pretrain"):
            clock[0] += 10
            with stage("load"):
                clock[0] += 100
        clock[0] += 2
    assert {name: one.seconds for name, one in costs.items()} == {
        "load": 100,
        "pretrain": 10,
        "reduce": 3,
    }


def test_a_recording_within_another_joins_it(clock: list[float]) -> None:
    with recording() as outer:
        with stage("load"):
            clock[0] += 1
        with recording() as inner, stage("reduce"):
            clock[0] += 2
    assert inner is outer
    assert set(outer) == {"load", "reduce"}
    with recording() as later:
        pass
    assert later == {}


def test_outside_a_recording_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise AssertionError("nobody wants to know")

    monkeypatch.setattr(cost, "peak_mib", fail)
    with stage("load"):
        pass


def test_a_stage_that_fails_has_cost_what_it_has_cost(clock: list[float]) -> None:
    def fail() -> None:
        clock[0] += 4
        raise ValueError("no")

    with recording() as costs, pytest.raises(ValueError), stage("infer"):
        fail()
    assert costs["infer"].seconds == 4


def test_memory_of_a_gpu_is_that_of_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peaks as the device would give them: since the last time it was asked."""
    peaks = iter(
        [900, 50, 70, 30]
    )  # before anything, in reduce before pretrain, in pretrain, in reduce after it

    def since_last() -> int:
        return next(peaks)

    monkeypatch.setattr(cost, "_gpu_peak", since_last)
    with recording() as costs, stage("reduce", "cuda"), stage("pretrain", torch.device("cuda")):
        pass
    assert costs["pretrain"].peak_mib == 70
    assert costs["reduce"].peak_mib == 70


def test_tables_and_sums() -> None:
    one: dict[str, Any] = {"load": Cost(1.25, 10), "reduce": Cost(2.0, 30)}
    assert from_table(to_table(one)) == one
    assert combined(one, {"reduce": Cost(3.0, 20), "infer": Cost(1.0, 5)}) == {
        "load": Cost(1.25, 10),
        "reduce": Cost(5.0, 30),
        "infer": Cost(1.0, 5),
    }
