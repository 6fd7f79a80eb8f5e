"""The trajectory methods on a CUDA device: captured whole, with the numbers of the eager step, in
the memory of one inner step.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import DSA
from pseudocore.data import preprocessing as whiten
from pseudocore.methods.bayes.bpc_cd import BPCContrastiveDivergence
from pseudocore.methods.bayes.bpc_fkl import BPCForwardKL
from pseudocore.methods.bayes.bpc_rkl import BPCReverseKL
from pseudocore.methods.bayes.bpc_w import BPCWasserstein
from pseudocore.models.convnet import ConvNet
from pseudocore.runtime.loop import run
from pseudocore.training.experts import Resident

pytestmark = pytest.mark.gpu


SHORT: dict[str, Any] = {
    "per_class": 1,
    "num_steps": 8,
    "max_start": 2,
    "num_inner_steps": 4,
    "image_lr": 1.0,
}


def noise_images(
    width: int, augment: DSA | None = None, dtype: torch.dtype = torch.float32, side: int = 32
) -> Problem:
    """Ten classes of noise, unless told the size of CIFAR-10, under convnet3 with two made-up
    experts of four epochs.
    """
    rng, device = Rng(0), torch.device("cuda")
    x = (256 * rng("x").uniform(200, 3, side, side)).to(torch.uint8)
    y = torch.arange(200) % 10
    data = Dataset("noise", Examples(x, y), Examples(x[:10], y[:10]), 10)
    model = ConvNet(width=width).build(data.shape, 10)
    bare = Problem(
        data,
        model,
        whiten.make("standard", data, device=device, dtype=dtype),
        augment,
        device=device,
        dtype=dtype,
    )
    theta = model.init(rng("theta"), num=2, device=device, dtype=dtype)
    walk = 1e-3 * rng("walk").normal(2, 5, theta.shape[1], device=device, dtype=dtype).cumsum(1)
    return replace(bare, experts=Resident(theta[:, None] + walk))


@pytest.mark.parametrize("augment", [None, DSA()], ids=["plain", "augmented"])
@pytest.mark.parametrize(
    "method",
    [
        BPCForwardKL(**SHORT, num_draws=3),
        BPCReverseKL(**SHORT, num_draws=3, batch_size=20),
        BPCWasserstein(**SHORT),
        BPCWasserstein(**SHORT, covariance="diagonal"),
        BPCContrastiveDivergence(**SHORT),
    ],
    ids=["fkl", "rkl", "w", "w-diagonal", "cd"],
)
def test_a_step_is_captured_and_draws_as_it_would_eagerly(method: Any, augment: DSA | None) -> None:
    problem = noise_images(
        16, augment, torch.float64
    )  # the divergences' gradients are small differences, which ReLUs that rounding flips blur
    captured, eager = (run(method, problem, seed=0, compile=how) for how in ("auto", "off"))
    assert (captured.status, captured.note) == ("finished", "")
    start = method.coreset(problem, method.init(problem, Rng(0)("init"))).x
    moved = (eager.coreset.x - start).norm()
    assert (captured.coreset.x - eager.coreset.x).norm() < 1e-4 * moved


@pytest.mark.parametrize("side", [24, 64])
def test_kernels_in_some_blocks_alone_are_not_differentiated_twice(side: int) -> None:
    """Sides that are no power of two, or too large, have a kernel for the first block and none, or
    some, for later ones.
    """
    problem, method = noise_images(16, side=side), BPCWasserstein(**{**SHORT, "num_steps": 5})
    assert not problem.model.has_kernels
    captured, eager = (run(method, problem, seed=0, compile=how) for how in ("auto", "off"))
    assert (captured.status, captured.note) == ("finished", "")
    start = method.coreset(problem, method.init(problem, Rng(0)("init"))).x
    assert (captured.coreset.x - eager.coreset.x).norm() < 0.02 * (
        eager.coreset.x - start
    ).norm()  # float32: ReLUs that rounding flips


def peak(method: Any, problem: Problem) -> int:
    """Bytes of one eager step beyond what was there before it."""
    state = method.init(problem, Rng(0))
    method.step(problem, state, Rng(0)("step", 0))  # libraries take their workspaces
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    method.step(problem, state, Rng(0)("step", 1))
    return torch.cuda.max_memory_allocated() - before


def test_the_memory_of_bpc_w_hardly_grows_with_its_inner_steps() -> None:
    problem = noise_images(128)
    short, long = (
        peak(BPCWasserstein(max_start=2, num_inner_steps=num), problem) for num in (30, 60)
    )
    assert short <= 1.5 * 2**30
    assert long <= 1.1 * short


def test_the_memory_of_bpc_fkl_does_not_grow_with_its_draws() -> None:
    problem = noise_images(128)
    few, many = (
        peak(BPCForwardKL(max_start=2, num_inner_steps=2, num_draws=num), problem)
        for num in (3, 30)
    )
    assert many <= 1.02 * few
