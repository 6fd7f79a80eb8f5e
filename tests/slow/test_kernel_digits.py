"""On real digits, KIP, DD and LD must each beat a uniform draw, namely the very images they start
from: test accuracy, mean of five seeds.

The settings are short, and were chosen on training images.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Inference
from pseudocore.data import digits
from pseudocore.data import preprocessing as whiten
from pseudocore.inference.last_layer_vi import LastLayerVI
from pseudocore.inference.sgd import SGD
from pseudocore.methods.condense.dd import DatasetDistillation
from pseudocore.methods.condense.kip import KIP
from pseudocore.methods.condense.ld import LabelDistillation, LabelDistillationRidge
from pseudocore.models.convnet import ConvNet
from pseudocore.models.dense import MLP
from pseudocore.objectives.initial import balanced_indices
from pseudocore.runtime.loop import run

pytestmark = pytest.mark.slow

SEEDS = range(5)
NETWORKS: dict[str, ConvNet | MLP] = {
    "convnet": ConvNet(width=16, depth=2),
    "mlp": MLP(width=64, depth=1),
}
WAYS: dict[str, Inference] = {
    "sgd": SGD(num_steps=150, step_size=0.02),
    "last-layer-vi": LastLayerVI(num_steps=150),
}
CASES = {
    "kip-ntk": (
        KIP(num_steps=100, batch_size=128, kernel="ntk", image_lr=0.05, label_lr=0.02),
        "mlp",
        "sgd",
        0.2,
        0.02,
    ),
    "kip-features": (
        KIP(num_steps=60, batch_size=128, num_networks=2, image_lr=0.05, label_lr=0.02),
        "convnet",
        "last-layer-vi",
        0.15,
        0.005,
    ),
    "dd": (
        DatasetDistillation(
            num_steps=50, batch_size=128, num_inner_steps=10, inner_lr=0.3, image_lr=0.1
        ),
        "mlp",
        "sgd",
        0.2,
        0.01,
    ),
    "ld": (
        LabelDistillation(
            num_steps=40, batch_size=256, num_inner_steps=15, inner_lr=0.5, label_lr=0.3
        ),
        "mlp",
        "sgd",
        0.05,
        0.005,
    ),
    "ld-rr": (
        LabelDistillationRidge(num_steps=100, batch_size=256, label_lr=0.05),
        "convnet",
        "last-layer-vi",
        0.08,
        0.005,
    ),
}


def accuracy(way: Inference, problem: Problem, coreset: Coreset, seed: int) -> float:
    log_probs = way.fit(problem, coreset, Rng(seed))(problem.data.test.x)
    return float((log_probs.argmax(1) == problem.data.test.y).to(torch.float32).mean())


@pytest.mark.parametrize("per_class", [1, 10])
@pytest.mark.parametrize(
    ("method", "network", "inference", "at_one", "at_ten"), CASES.values(), ids=CASES
)
def test_it_beats_uniform(
    method: Any, network: str, inference: str, at_one: float, at_ten: float, per_class: int
) -> None:
    data = digits()
    problem = Problem(
        data, NETWORKS[network].build(data.shape, data.num_classes), whiten.make("standard", data)
    )
    gains = []
    for seed in SEEDS:
        outcome = run(replace(method, per_class=per_class), problem, seed=seed)
        assert outcome.status == "finished"
        uniform = problem.subset(balanced_indices(problem, per_class, Rng(seed)("init")("images")))
        after, before = (
            accuracy(WAYS[inference], problem, coreset, seed)
            for coreset in (outcome.coreset, uniform)
        )
        gains.append(after - before)
    assert sum(gains) / len(gains) > (at_one if per_class == 1 else at_ten), gains
