"""Out of memory: what was being done, how much was asked for, which option helps."""

import errno
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from pseudocore.core.errors import OutOfMemoryError
from pseudocore.inference.hmc import HMC
from pseudocore.methods.bayes.vbpc import VBPC
from pseudocore.methods.select.craig import CRAIG
from pseudocore.runtime.profiling import recording, stage
from pseudocore.runtime.shortage import advising

HUGE = 2**60


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_a_stage_names_itself_and_the_size(library: str, is_recorded: bool) -> None:
    def ask() -> None:
        with recording() if is_recorded else nullcontext(), stage("reduce"), stage("pretrain"):
            torch.empty(HUGE) if library == "torch" else np.empty(HUGE, dtype=np.float32)

    with pytest.raises(OutOfMemoryError) as caught:
        ask()
    error = caught.value
    assert (error.code, error.fields["stage"]) == ("out-of-memory", "pretrain")
    assert error.fields["size"] == pytest.approx(4 * HUGE)
    assert "while training the network behind the selection" in str(error)
    assert "GiB more were asked for" in str(error)


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        (VBPC(per_class=1), "--batch-size, --pool-size, --ipc"),
        (HMC(), "--num-draws, --num-chains"),
        (CRAIG(exact=True), "leave out --exact"),
        (CRAIG(per_class=10), "--pretrain-batch-size, --ipc"),
    ],
)
def test_the_options_are_those_of_the_method(settings: object, option: str) -> None:
    with pytest.raises(OutOfMemoryError) as caught, advising(settings), stage("reduce"):
        raise MemoryError
    assert option in str(caught.value)


def test_the_data_have_advice_of_their_own() -> None:
    with pytest.raises(OutOfMemoryError, match="npy"), advising(VBPC(per_class=1)), stage("load"):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="went away"), stage("reduce"):
        raise RuntimeError("the machine went away")
