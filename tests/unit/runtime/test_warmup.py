"""A pass that works on any device, runs beside other work, and never fails it."""

import threading

import pytest
import torch

from pseudocore.runtime import warmup


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_pass_goes_through(device: str, reduced: bool) -> None:
    warmup.pass_through(torch.device(device), reduced)


def test_a_cpu_needs_no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "pass_through", lambda *_: pytest.fail("nothing to warm up"))
    with warmup.warming_up(torch.device("cpu")):
        pass


def test_it_runs_beside_what_is_inside_and_is_done_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside, done = threading.Event(), []

    def slow(device: torch.device, reduced: bool) -> None:
        assert inside.wait(10)  # or it was not beside
        done.append((device.type, reduced))

    monkeypatch.setattr(warmup, "pass_through", slow)
    with warmup.warming_up(torch.device("cuda"), reduced=True):
        inside.set()
    assert done == [("cuda", True)]


@pytest.mark.filterwarnings("error")
def test_a_gpu_without_memory_is_left_for_the_first_step_to_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(warmup, "pass_through", full)
    with warmup.warming_up(torch.device("cuda")):
        pass
