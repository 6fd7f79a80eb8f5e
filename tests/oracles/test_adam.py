"""training/optimisers.py against torch's own Adam, and its schedule at the places where it is
known.
"""

import math

import pytest
import torch

from pseudocore.core.rng import Rng
from pseudocore.training.optimisers import Moments, adam, cosine, start

NUM_STEPS = 20


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9)])
@pytest.mark.parametrize("scale", [1.0, 1e-8])
def test_twenty_steps_are_torchs(betas: tuple[float, float], scale: float) -> None:
    """At gradients of the size of eps as well, where it matters on which side of the root eps is
    added.
    """
    rng = Rng(0)
    ours = rng("start").normal(3, 4, dtype=torch.float64)
    theirs = torch.nn.Parameter(ours.clone())
    optimiser = torch.optim.Adam([theirs], lr=0.01, betas=betas)
    moments = start(ours)
    for step in range(NUM_STEPS):
        gradient = scale * rng(step).normal(3, 4, dtype=torch.float64)
        theirs.grad = gradient.clone()
        optimiser.step()
        change, moments = adam(gradient, moments, 0.01, betas=betas)
        ours = ours - change
        assert (ours - theirs.detach()).abs().max() < 1e-12


def test_the_step_size_may_change_from_step_to_step() -> None:
    ours = torch.ones(5, dtype=torch.float64)
    theirs = torch.nn.Parameter(ours.clone())
    optimiser, moments = torch.optim.Adam([theirs], lr=0.1), start(ours)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, NUM_STEPS)
    for step in range(NUM_STEPS):
        gradient = Rng(1)(step).normal(5, dtype=torch.float64)
        theirs.grad = gradient.clone()
        optimiser.step()
        schedule.step()
        change, moments = adam(
            gradient, moments, 0.1 * cosine(torch.tensor(step, dtype=torch.float64), NUM_STEPS)
        )
        ours = ours - change
    assert (ours - theirs.detach()).abs().max() < 1e-12


def test_rows_may_be_at_different_steps() -> None:
    """A pool's networks are: each row must move as it would alone."""
    gradient = Rng(2).normal(2, 4, dtype=torch.float64)
    young, old = (start(row) for row in gradient)
    for step in range(5):
        _, old = adam(Rng(3)(step).normal(4, dtype=torch.float64), old, 0.1)
    steps = torch.stack([young.steps, old.steps])[:, None]
    together = Moments(
        torch.stack([young.first, old.first]), torch.stack([young.second, old.second]), steps
    )
    change, after = adam(gradient, together, 0.1)
    for row, alone in enumerate((young, old)):
        expected, moments = adam(gradient[row], alone, 0.1)
        assert torch.equal(change[row], expected)
        assert torch.equal(after.second[row], moments.second)
    assert after.steps.flatten().tolist() == [1.0, 6.0]


def test_nothing_given_is_changed() -> None:
    gradient, moments = torch.ones(3), start(torch.ones(3))
    adam(gradient, moments, 0.1)
    assert gradient.tolist() == [1.0, 1.0, 1.0]
    assert all(part.abs().sum() == 0 for part in moments)


def test_moments_share_no_memory() -> None:
    moments = start(torch.ones(3))
    assert moments.first.data_ptr() != moments.second.data_ptr()


@pytest.mark.parametrize(
    ("step", "floor", "value"),
    [
        (0, 0.0, 1.0),
        (50, 0.0, 0.5),
        (100, 0.0, 0.0),
        (25, 0.0, (2 + math.sqrt(2)) / 4),
        (100, 0.2, 0.2),
        (50, 0.2, 0.6),
    ],
)
def test_cosine(step: int, floor: float, value: float) -> None:
    assert float(
        cosine(torch.tensor(step, dtype=torch.float64), 100, floor=floor)
    ) == pytest.approx(value, abs=1e-15)


def test_cosine_only_falls() -> None:
    values = cosine(torch.arange(101, dtype=torch.float64), 100)
    assert (values.diff() < 0).all()
