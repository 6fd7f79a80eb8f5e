"""KIP, DD and LD on a CUDA device: captured whole with the numbers of the eager step, DD in the
memory of one inner step.
"""

from typing import Any

import pytest
import torch

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import preprocessing as whiten
from pseudocore.methods.condense.dd import DatasetDistillation
from pseudocore.methods.condense.kip import KIP
from pseudocore.methods.condense.ld import LabelDistillation, LabelDistillationRidge
from pseudocore.models.convnet import ConvNet
from pseudocore.runtime.loop import run

pytestmark = pytest.mark.gpu

SHORT: dict[str, Any] = {"per_class": 1, "num_steps": 8, "batch_size": 20}
METHODS = {
    "kip-features": KIP(**SHORT, num_networks=2),
    "kip-ntk": KIP(**SHORT, kernel="ntk"),
    "kip-nngp-formation": KIP(**SHORT, kernel="nngp", formation=2),
    "dd": DatasetDistillation(**SHORT, num_inner_steps=4),
    "dd-formation": DatasetDistillation(**SHORT, num_inner_steps=4, formation=2),
    "ld": LabelDistillation(**SHORT, num_inner_steps=4),
    "ld-rr": LabelDistillationRidge(**SHORT, pool_size=2, max_age=3),
}


def noise_images(width: int, dtype: torch.dtype = torch.float32) -> Problem:
    """Ten classes of noise the size of CIFAR-10, under convnet3."""
    rng, device = Rng(0), torch.device("cuda")
    x = (256 * rng("x").uniform(200, 3, 32, 32)).to(torch.uint8)
    y = torch.arange(200) % 10
    data = Dataset("noise", Examples(x, y), Examples(x[:10], y[:10]), 10)
    model, preprocess = (
        ConvNet(width=width).build(data.shape, 10),
        whiten.make("standard", data, device=device, dtype=dtype),
    )
    return Problem(data, model, preprocess, device=device, dtype=dtype)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_step_is_captured_and_draws_as_it_would_eagerly(method: Any) -> None:
    problem = noise_images(
        16, torch.float64
    )  # in float32 rounding alone moves `dd` by 3 % of what it moves
    captured, eager = (run(method, problem, seed=0, compile=how) for how in ("auto", "off"))
    assert (captured.status, captured.note) == ("finished", "")
    start = method.coreset(problem, method.init(problem, Rng(0)("init")))
    for name in ("x", "y"):
        ours, theirs, before = (
            getattr(coreset, name).double() for coreset in (captured.coreset, eager.coreset, start)
        )
        assert (ours - theirs).norm() <= 1e-4 * (theirs - before).norm()


def test_the_memory_of_dd_hardly_grows_with_its_inner_steps() -> None:
    problem = noise_images(128)

    def peak(num_inner_steps: int) -> int:
        method = DatasetDistillation(num_inner_steps=num_inner_steps)
        state = method.init(problem, Rng(0))
        method.step(problem, state, Rng(0)("step", 0))  # libraries take their workspaces
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        method.step(problem, state, Rng(0)("step", 1))
        return torch.cuda.max_memory_allocated() - before

    assert peak(40) <= 1.15 * peak(20)
