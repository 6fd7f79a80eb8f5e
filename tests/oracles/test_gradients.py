"""selection/last_layer_gradients.py against autograd, one example at a time, and against vectors
written out in full.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, jacrev

from pseudocore.core.errors import DataError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.models.dense import MLP
from pseudocore.selection import last_layer_gradients as gradients
from pseudocore.selection.last_layer_gradients import (
    GradientMetric,
    LastLayer,
    along,
    curvature,
    largest_variance,
    mean_curvature,
    mean_gradient,
    norms,
)
from pseudocore.training.pretrain import last_layer

N, H, CLASSES = 30, 5, 4

Head = tuple[Tensor, Tensor]


@pytest.fixture
def head() -> Head:
    rng = Rng(0)("head")
    return rng("weight").normal(CLASSES, H, dtype=torch.float64), rng("bias").normal(
        CLASSES, dtype=torch.float64
    )


@pytest.fixture
def layer(head: Head) -> LastLayer:
    features = Rng(1).normal(N, H, dtype=torch.float64)
    weight, bias = head
    return LastLayer(
        features, (features @ weight.T + bias).log_softmax(1), torch.arange(N) % CLASSES
    )


def loss(flat: Tensor, phi: Tensor, y: Tensor) -> Tensor:
    """Of the head as one vector: each class's weights with its bias behind them."""
    head = flat.view(CLASSES, H + 1)
    return nn.functional.cross_entropy(head[:, :-1] @ phi + head[:, -1], y)


def flat(head: Head) -> Tensor:
    return torch.cat([head[0], head[1].unsqueeze(1)], 1).flatten()


def by_autograd(head: Head, layer: LastLayer) -> tuple[Tensor, Tensor]:
    """g and λ of every example, (n, classes · (h + 1))."""
    each = list(zip(layer.features, layer.y, strict=True))
    return (
        torch.stack([grad(loss)(flat(head), phi, y) for phi, y in each]),
        torch.stack([jacrev(grad(loss))(flat(head), phi, y).diagonal() for phi, y in each]),
    )


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def test_gradients_are_autograds(head: Head, layer: LastLayer) -> None:
    g, _ = by_autograd(head, layer)
    close(norms(layer), g.norm(dim=1))
    close(mean_gradient(layer).flatten(), g.mean(0))
    direction = Rng(3).normal(CLASSES, H + 1, dtype=torch.float64)
    close(along(layer, direction), g @ direction.flatten())


def test_curvatures_are_autograds(head: Head, layer: LastLayer) -> None:
    _, curved = by_autograd(head, layer)
    everything = torch.arange(CLASSES * (H + 1))
    close(curvature(layer, everything), curved)
    close(curvature(layer, everything.flip(0)[:5]), curved.flip(1)[:, :5])
    close(mean_curvature(layer).flatten(), curved.mean(0))


def test_the_dimensions_of_largest_variance(
    head: Head, layer: LastLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "ROWS", 7)
    _, curved = by_autograd(head, layer)
    order = curved.var(0).argsort(descending=True)
    for num in (1, 7, CLASSES * (H + 1)):
        assert largest_variance(layer, num).tolist() == order[:num].tolist()
    assert len(largest_variance(layer, 1000)) == CLASSES * (H + 1)


def test_distances(head: Head, layer: LastLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "BLOCK", 40)
    g, curved = by_autograd(head, layer)
    i, j, dimensions = torch.arange(8), torch.arange(3, N), torch.tensor([0, 5, 7, 23])
    plain = torch.cdist(g[i], g[j], compute_mode="donot_use_mm_for_euclid_dist")
    torch.testing.assert_close(
        GradientMetric(layer)(i, j), plain, rtol=1e-8, atol=1e-7
    )  # a root of a difference near 0
    metric = GradientMetric(layer, curved=0.3 * curvature(layer, dimensions))
    whole = plain + 0.3 * torch.cdist(curved[i][:, dimensions], curved[j][:, dimensions], p=1)
    torch.testing.assert_close(metric(i, j), whole, rtol=1e-8, atol=1e-7)
    scale = Rng(5).uniform(CLASSES, H + 1, dtype=torch.float64)
    scaled = GradientMetric(layer, scale=scale)(i, j)
    u = g * scale.flatten()
    torch.testing.assert_close(
        scaled,
        torch.cdist(u[i], u[j], compute_mode="donot_use_mm_for_euclid_dist"),
        rtol=1e-8,
        atol=1e-7,
    )


def test_nothing_is_farther_than_the_farthest(layer: LastLayer) -> None:
    everyone = torch.arange(N)
    for metric in (
        GradientMetric(layer),
        GradientMetric(layer, curved=curvature(layer, torch.arange(24))),
    ):
        assert metric(everyone, everyone).max() <= metric.farthest


def test_an_example_is_its_own(make_problem: Callable[..., Problem]) -> None:
    """Through a problem's network: what the head sees and says, in whatever company."""
    problem = make_problem(MLP(width=5, depth=1))
    theta = problem.model.init(Rng(0), dtype=torch.float64)
    whole = last_layer(problem, theta, Rng(1))
    part = last_layer(problem, theta, Rng(1), torch.tensor([40, 3]))
    x, y = problem.batch(torch.tensor([40, 3]))
    close(part.features, whole.features[[40, 3]])
    close(part.features, problem.model.features(theta, x))
    close(part.log_probs, problem.model.logits(theta, x).log_softmax(1))
    assert part.y.tolist() == y.tolist()
    close(whole.at(torch.tensor([40, 3])).log_probs, part.log_probs)


def test_a_diverged_network_is_refused(layer: LastLayer) -> None:
    for bad in (
        layer._replace(features=layer.features * torch.inf),
        layer._replace(log_probs=layer.log_probs * torch.nan),
    ):
        with pytest.raises(
            DataError,
            match=r"diverged in pre-training; a smaller --pretrain-step-size usually helps",
        ):
            bad.checked()


@pytest.mark.gpu
def test_the_same_distances_on_the_gpu(layer: LastLayer) -> None:
    curved, everyone = curvature(layer, torch.arange(24)), torch.arange(N)
    there = GradientMetric(LastLayer(*(tensor.cuda() for tensor in layer)), curved=curved.cuda())
    torch.testing.assert_close(
        there(everyone.cuda(), everyone.cuda()).cpu(),
        GradientMetric(layer, curved=curved)(everyone, everyone),
        rtol=1e-8,
        atol=1e-7,
    )
