"""Signs and scales on real digits: every trajectory method must make its images better teachers
than the real ones it starts from.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.data import digits
from pseudocore.data import preprocessing as whiten
from pseudocore.inference.sgd import SGD
from pseudocore.methods.bayes.bpc_cd import BPCContrastiveDivergence
from pseudocore.methods.bayes.bpc_fkl import BPCForwardKL
from pseudocore.methods.bayes.bpc_rkl import BPCReverseKL
from pseudocore.methods.bayes.bpc_w import BPCWasserstein
from pseudocore.models.convnet import ConvNet
from pseudocore.runtime.loop import run
from pseudocore.training.experts import Training, train

pytestmark = pytest.mark.slow

SHORT: dict[str, Any] = {"per_class": 1, "num_steps": 100, "max_start": 3, "num_inner_steps": 10}


@pytest.fixture(scope="module")
def problem() -> Problem:
    data = digits()
    model = ConvNet(width=16, depth=2).build(data.shape, data.num_classes)
    bare = Problem(data, model, whiten.make("standard", data))
    return replace(bare, experts=train(bare, Training(lr=0.05, batch_size=64), num=3, num_epochs=3))


def accuracy(problem: Problem, coreset: Coreset) -> float:
    """Of networks trained on the coreset, on the test images, mean of two."""
    right = []
    for seed in range(2):
        log_probs = SGD(num_steps=150, step_size=0.02).fit(problem, coreset, Rng(seed))(
            problem.data.test.x
        )
        right.append((log_probs.argmax(1) == problem.data.test.y).to(torch.float32).mean())
    return float(torch.stack(right).mean())


@pytest.mark.parametrize(
    ("method", "margin"),
    [
        (BPCForwardKL(**SHORT, num_draws=3, inner_lr=0.03, image_lr=10), 0.15),
        (
            BPCContrastiveDivergence(
                **SHORT, initial="real", langevin_step=0.06, noise_scale=0, image_lr=10
            ),
            0.15,
        ),
        (BPCWasserstein(**SHORT, horizon=1, inner_lr=0.03, inner_lr_lr=1e-3, image_lr=10), 0.15),
        (BPCReverseKL(**SHORT, num_draws=5, inner_lr=0.03, batch_size=128, image_lr=1000), 0.05),
    ],
    ids=["fkl", "cd", "w", "rkl"],
)
def test_the_images_learn(problem: Problem, method: Any, margin: float) -> None:
    outcome = run(method, problem, seed=0)
    assert outcome.status == "finished"
    start = method.coreset(problem, method.init(problem, Rng(0)("init")))
    before, after = accuracy(problem, start), accuracy(problem, outcome.coreset)
    assert after > before + margin, (before, after)
