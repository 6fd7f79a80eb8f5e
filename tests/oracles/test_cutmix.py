"""CutMix: the box against a loop over pixels, its mean share against the integral, and training
against the mixture written out.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pseudocore import api
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.data import digits
from pseudocore.data import preprocessing as whiten
from pseudocore.inference.sgd import SGD
from pseudocore.models.dense import Linear
from pseudocore.training.cutmix import mixed
from pseudocore.training.optimisers import cosine

MakeProblem = Callable[..., Problem]


def test_a_box_is_its_partners_and_the_rest_its_own() -> None:
    x = Rng(0).normal(5, 2, 8, 6)
    found = mixed(x, 1.0, Rng(3))
    _, amount, row, column = Rng(3)("box").uniform(4).tolist()
    half, num = (1 - amount) ** 0.5 / 2, 0
    for i in range(8):
        for j in range(6):
            inside = abs(i + 0.5 - 8 * row) < 8 * half and abs(j + 0.5 - 6 * column) < 6 * half
            num += inside
            assert torch.equal(found.x[:, :, i, j], (x[found.partner] if inside else x)[:, :, i, j])
    assert 0 < num < 48
    assert float(found.share) == pytest.approx(num / 48)


def test_how_much_is_mixed_on_average() -> None:
    """A box of relative sides s lies in the image with s − s²/4 of each, on average over its
    centre, and s² is uniform.
    """
    x = torch.zeros(2, 1, 64, 64)
    shares = torch.stack([mixed(x, 0.5, Rng(0)(number)).share for number in range(4000)])
    expected = 1 / 2 - 1 / 5 + 1 / 48  # E[(s − s²/4)²] = E[s²] − E[s³]/2 + E[s⁴]/16
    assert float(shares.mean()) == pytest.approx(
        0.5 * expected, abs=4 * float(shares.std()) / 4000**0.5
    )
    assert float((shares == 0).float().mean()) == pytest.approx(0.5, abs=0.04)


def test_a_step_climbs_the_mixture_of_both_labels() -> None:
    data = digits()
    problem = Problem(
        data, Linear().build(data.shape, 10), whiten.make("standard", data), dtype=torch.float64
    )
    points = replace(
        problem.subset(torch.arange(20)), weight=torch.linspace(0.5, 1.5, 20, dtype=torch.float64)
    )
    fitted = SGD(num_steps=1, step_size=0.1, weight_decay=0, cutmix=1.0).fit(
        problem, points, Rng(0)
    )
    theta = problem.model.init(Rng(0)("theta"), dtype=torch.float64).requires_grad_()
    mix = mixed(problem.inputs(points.x), 1.0, Rng(0)("step", 0)("cutmix"))
    logits, y = problem.model.logits(theta, mix.x), points.y
    ours, theirs = (
        F.cross_entropy(logits, labels, reduction="none") for labels in (y, y[mix.partner])
    )
    weight = points.weight / points.weight.mean()
    loss = ((1 - mix.share) * weight * ours + mix.share * weight[mix.partner] * theirs).mean()
    (gradient,) = torch.autograd.grad(loss, theta)
    torch.testing.assert_close(
        fitted.draws[0], theta.detach() - 0.1 * gradient, rtol=1e-9, atol=1e-12
    )


def test_features_cannot_be_mixed(make_problem: MakeProblem) -> None:
    problem = make_problem()
    with pytest.raises(ConfigError, match="cutmix mixes images"):
        SGD(cutmix=0.5).fit(problem, problem.subset(torch.arange(9)), Rng(0))


@pytest.mark.parametrize(
    ("schedule", "shares"), [("steps", [1, 1, 1, 1, 0.2, 0.04]), ("cosine", None)]
)
def test_step_sizes(schedule: Any, shares: list[float] | None) -> None:
    way = SGD(num_steps=6, schedule=schedule)
    found = [float(way.share(torch.tensor(float(step)))) for step in range(6)]
    assert found == pytest.approx(
        shares or [float(cosine(torch.tensor(float(step)), 6)) for step in range(6)]
    )


def test_it_is_a_flag_of_evaluation() -> None:
    coreset = api.reduce("uniform", digits(), per_class=1, model="linear")
    found = [
        api.evaluate(coreset, digits(), inference="sgd", num_steps=5, seeds=1, cutmix=chance)
        for chance in (0.0, 0.5)
    ]
    assert found[0]["metrics"]["nll"]["mean"] != found[1]["metrics"]["nll"]["mean"]
