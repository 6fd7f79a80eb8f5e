"""What is loaded early: by a pass that works on any device, beside other work, and never in its
way.
"""

import threading

import pytest
import torch

from pseudocore.runtime import warmup as wake


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_pass_goes_through(device: str, reduced: bool) -> None:
    wake.pass_through(torch.device(device), reduced)


def test_a_cpu_needs_no_waking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "pass_through", lambda *_: pytest.fail("nothing to wake"))
    with wake.waking(torch.device("cpu")):
        pass


def test_it_runs_beside_what_is_inside_and_is_done_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside, done = threading.Event(), []

    def slow(device: torch.device, reduced: bool) -> None:
        assert inside.wait(10)  # or it was not beside
        done.append((device.type, reduced))

    monkeypatch.setattr(wake, "pass_through", slow)
    with wake.waking(torch.device("cuda"), reduced=True):
        inside.set()
    assert done == [("cuda", True)]


@pytest.mark.filterwarnings("error")
def test_a_gpu_without_memory_is_left_for_the_first_step_to_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(wake, "pass_through", full)
    with wake.waking(torch.device("cuda")):
        pass
