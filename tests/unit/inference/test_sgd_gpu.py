"""Plain training on a CUDA device: in bfloat16 where the problem says so, to predictions near those
of float32.
"""

from dataclasses import replace

import pytest
import torch

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.data import digits
from pseudocore.data import preprocessing as whiten
from pseudocore.inference.sgd import SGD
from pseudocore.models.convnet import ConvNet

pytestmark = pytest.mark.gpu


def test_a_network_is_trained_in_the_precision_of_its_problem() -> None:
    data, device = digits(), torch.device("cuda")
    model = ConvNet(width=16).build(data.shape, data.num_classes)
    exact = Problem(data, model, whiten.make("standard", data, device=device), device=device)
    coreset, sgd = exact.subset(torch.arange(100)), SGD(num_steps=200, step_size=0.05)
    thetas, accuracies = [], []
    for problem in (exact, replace(exact, precision="bf16")):
        predictive = sgd.fit(problem, coreset, Rng(0))
        thetas.append(predictive.draws[0].flatten())
        accuracies.append(
            (predictive.log_probs(data.test.x).argmax(1).cpu() == data.test.y)
            .double()
            .mean()
            .item()
        )
    assert thetas[1].dtype == torch.float32
    assert not torch.equal(*thetas)
    assert accuracies[0] > 0.6  # learned
    assert abs(accuracies[0] - accuracies[1]) < 0.05
