"""The matching methods on a CUDA device: captured whole, with the numbers of the eager step, in the
memory of one class.
"""

from typing import Any

import pytest
import torch

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import DSA
from pseudocore.data import preprocessing as whiten
from pseudocore.methods.condense import cafe, dc, dm, lcmat_c
from pseudocore.models.convnet import ConvNet
from pseudocore.runtime.loop import run

pytestmark = pytest.mark.gpu

SHORT: dict[str, Any] = {"per_class": 2, "num_steps": 12, "batch_size": 16}
INNER: dict[str, Any] = {"max_age": 4, "num_inner_steps": 3}


def noise_images(
    width: int,
    augment: DSA | None = None,
    num_classes: int = 10,
    norm: Any = "instance",
    dtype: torch.dtype = torch.float32,
    side: int = 32,
) -> Problem:
    """Classes of noise, unless told the size of CIFAR-10, twenty images each."""
    device = torch.device("cuda")
    x = (256 * Rng(0)("x").uniform(20 * num_classes, 3, side, side)).to(torch.uint8)
    y = torch.arange(len(x)) % num_classes
    data = Dataset("noise", Examples(x, y), Examples(x[:num_classes], y[:num_classes]), num_classes)
    model = ConvNet(width=width, norm=norm).build(data.shape, num_classes)
    return Problem(
        data,
        model,
        whiten.make("standard", data, device=device, dtype=dtype),
        augment,
        device=device,
        dtype=dtype,
    )


@pytest.mark.parametrize("norm", ["instance", "batch"])
@pytest.mark.parametrize("augment", [None, DSA()], ids=["plain", "augmented"])
@pytest.mark.parametrize(
    "method",
    [
        dc.DC(**SHORT, **INNER),
        dc.DSA(**SHORT, **INNER),
        lcmat_c.LCMatC(**SHORT, **INNER, inner_momentum=0.9),
        dm.DM(**SHORT),
        cafe.CAFE(**SHORT, **INNER),
        dc.DC(**SHORT, **INNER, formation=2),
        cafe.CAFE(**SHORT, **INNER, formation=2),
    ],
    ids=["dc", "dsa", "lcmat-c", "dm", "cafe", "dc-formation", "cafe-formation"],
)
def test_a_step_is_captured_and_draws_as_it_would_eagerly(
    method: Any, augment: DSA | None, norm: Any
) -> None:
    problem = noise_images(
        16, augment, norm=norm, dtype=torch.float64
    )  # no ReLU for rounding to flip, which a run amplifies
    captured, eager = (run(method, problem, seed=0, compile=how) for how in ("auto", "off"))
    assert (captured.status, captured.note) == ("finished", "")
    start = method.coreset(problem, method.init(problem, Rng(0)("init"))).x
    moved = (eager.coreset.x - start).norm()
    assert (captured.coreset.x - eager.coreset.x).norm() < 1e-4 * moved


@pytest.mark.parametrize("side", [24, 64])
@pytest.mark.parametrize("make", [dc.DSA, lcmat_c.LCMatC], ids=["dsa", "lcmat-c"])
def test_kernels_in_some_blocks_alone_are_not_differentiated_twice(make: Any, side: int) -> None:
    """Sides that are no power of two, or too large, have a kernel for the first block and none, or
    some, for later ones.
    """
    problem, method = noise_images(16, side=side), make(**{**SHORT, **INNER, "num_steps": 5})
    assert not problem.model.has_kernels
    captured, eager = (run(method, problem, seed=0, compile=how) for how in ("auto", "off"))
    assert (captured.status, captured.note) == ("finished", "")
    start = method.coreset(problem, method.init(problem, Rng(0)("init"))).x
    assert (captured.coreset.x - eager.coreset.x).norm() < 0.02 * (
        eager.coreset.x - start
    ).norm()  # float32: ReLUs that rounding flips


@pytest.mark.parametrize(
    "method",
    [
        dc.DC(per_class=2, batch_size=16, max_age=1),
        lcmat_c.LCMatC(per_class=2, batch_size=16, max_age=1),
        dm.DM(per_class=2, batch_size=16),
    ],
    ids=["dc", "lcmat-c", "dm"],
)
def test_the_memory_of_matching_hardly_grows_with_the_classes(method: Any) -> None:
    """Wide enough that the activations of one class outweigh the images of all."""
    few, many = (peak(method, noise_images(256, num_classes=num)) for num in (5, 20))
    assert many <= 1.5 * few


def peak(method: Any, problem: Problem) -> int:
    """Bytes of one eager step beyond what was there before it."""
    state = method.init(problem, Rng(0))
    method.step(problem, state, Rng(0)("step", 0))  # libraries take their workspaces
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    method.step(problem, state, Rng(0)("step", 1))
    return torch.cuda.max_memory_allocated() - before
