"""training/pretrain.py against torch's own layers and optimisers, and a cache that counts."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pseudocore.core.errors import DataError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.data import DSA, digits
from pseudocore.data import preprocessing as whiten
from pseudocore.methods.select.adacore import AdaCore
from pseudocore.methods.select.lcmat_s import LCMatS
from pseudocore.models.convnet import ConvNetWide
from pseudocore.models.dense import MLP
from pseudocore.training.pretrain import (
    FeatureNetwork,
    Pretraining,
    extract_last_layer,
    feature_map,
    last_layer,
    last_layer_by_class,
    pretrain,
    pretrained,
)

MakeProblem = Callable[..., Problem]

WIDTH = 5
OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
    "sgd": lambda parameters: torch.optim.SGD(
        parameters, lr=0.05, momentum=0.8, weight_decay=0.02, nesterov=True
    ),
}
RECIPE = Pretraining(
    pretrain_epochs=6,
    pretrain_step_size=0.05,
    pretrain_momentum=0.8,
    pretrain_weight_decay=0.02,
    pretrain_batch_size=8,
)


@pytest.fixture
def problem(make_problem: MakeProblem) -> Problem:
    return make_problem(MLP(width=WIDTH, depth=1))


def module(theta: Tensor) -> nn.Sequential:
    """The same network built by hand, its parameters filled in theta's documented order."""
    network = nn.Sequential(nn.Linear(6, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3)).double()
    nn.utils.vector_to_parameters(theta.clone(), network.parameters())
    return network


def by_torch(
    problem: Problem, rng: Rng, name: str, augment: Callable[[Tensor, Rng], Tensor] = lambda x, _: x
) -> tuple[Tensor, list[list[bool]]]:
    """Parameters after the recipe, and whether each example was right at each of its visits."""
    network = module(problem.model.init(rng("theta"), dtype=torch.float64))
    optimiser, visits = (
        OPTIMISERS[name](network.parameters()),
        [list[bool]() for _ in range(problem.num_train)],
    )
    for epoch in range(RECIPE.pretrain_epochs):
        order = rng("epoch", epoch)("order").permutation(problem.num_train)
        for place, index in enumerate(torch.split(order, RECIPE.pretrain_batch_size)):
            x, y = problem.batch(index)
            optimiser.zero_grad()
            logits = network(augment(x, rng("epoch", epoch)("augment", place)))
            for example, right in zip(
                index.tolist(), (logits.argmax(1) == y).tolist(), strict=True
            ):
                visits[example].append(right)
            torch.autograd.backward(nn.functional.cross_entropy(logits, y))
            optimiser.step()
    return nn.utils.parameters_to_vector(network.parameters()).detach(), visits


@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_is_torchs(problem: Problem, name: Any) -> None:
    network = pretrain(problem, replace(RECIPE, pretrain_optimiser=name), Rng(1))
    expected, visits = by_torch(problem, Rng(1), name)
    torch.testing.assert_close(network.theta, expected, rtol=1e-9, atol=1e-10)
    forgotten = [
        sum(before and not now for before, now in pairwise(one))
        if any(one)
        else RECIPE.pretrain_epochs + 1
        for one in visits
    ]
    assert network.forgotten.tolist() == forgotten
    assert len(set(forgotten)) > 2  # there is something to tell apart


@pytest.mark.parametrize(("name", "step_size"), [("adam", 1e-3), ("sgd", 0.1)])
def test_usual_step_sizes(problem: Problem, name: Any, step_size: float) -> None:
    usual, told = (
        pretrain(
            problem, replace(RECIPE, pretrain_optimiser=name, pretrain_step_size=size), Rng(1)
        ).theta
        for size in (None, step_size)
    )
    assert torch.equal(usual, told)


def test_batches_are_augmented(problem: Problem) -> None:
    def shaken(x: Tensor, rng: Rng) -> Tensor:
        return x + rng.normal(*x.shape, dtype=x.dtype)

    network = pretrain(replace(problem, augment=shaken), RECIPE, Rng(1))
    torch.testing.assert_close(
        network.theta, by_torch(problem, Rng(1), "adam", shaken)[0], rtol=1e-9, atol=1e-10
    )


def test_features_are_what_the_head_sees(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pseudocore.training.pretrain.BATCH", 4)  # ten points in three passes
    theta, index = (
        pretrain(problem, RECIPE, Rng(2)).theta,
        torch.tensor([40, 3, 3, 17, 0, 1, 2, 44, 8, 9]),
    )
    layer = last_layer(problem, theta, Rng(3), index)
    with torch.no_grad():
        x, y = problem.batch(index)
        torch.testing.assert_close(layer.features, module(theta)[:2](x))
        torch.testing.assert_close(layer.log_probs, module(theta)(x).log_softmax(1))
        assert torch.equal(layer.y, y)


def test_a_point_has_the_same_features_in_any_company_under_batch_norm() -> None:
    data = digits()
    model = ConvNetWide(width=4, norm="batch").build(data.shape, data.num_classes)
    recipe = Pretraining(pretrain_epochs=1, pretrain_batch_size=512)
    features = feature_map(
        Problem(data, model, whiten.make("standard", data)), "network", recipe, Rng(0)
    )
    torch.testing.assert_close(features(torch.arange(30))[:5], features(torch.arange(5)))


def test_one_class_at_a_time_batch_norm_sees_that_class_alone() -> None:
    data = digits()
    problem = Problem(
        data,
        ConvNetWide(width=4, norm="batch").build(data.shape, 10),
        whiten.make("standard", data),
    )
    theta = problem.model.init(Rng(0))
    layer = last_layer_by_class(problem, theta, 50)
    assert torch.equal(layer.y, data.train.y)
    members = (data.train.y == 3).nonzero().flatten()
    for batch in (members[:50], members[100:]):  # in the order of the data
        alone = problem.model.features(theta, problem.batch(batch)[0])
        torch.testing.assert_close(layer.features[batch], alone, rtol=1e-5, atol=1e-6)
    assert (layer.features - last_layer(problem, theta, Rng(0)).features).abs().max() > 0.1


def test_gradients_are_taken_as_told() -> None:
    data = digits()
    problem = Problem(
        data,
        ConvNetWide(width=4, norm="batch").build(data.shape, 10),
        whiten.make("standard", data),
    )
    recipe, rng = FeatureNetwork(pretrain_epochs=1, pretrain_batch_size=300), Rng(4)
    theta = pretrain(problem, recipe, rng("pretrain")).theta
    by_class, of_all = (
        last_layer_by_class(problem, theta, 300),
        last_layer(problem, theta, rng("statistics")),
    )
    assert torch.equal(extract_last_layer(problem, recipe, rng).log_probs, of_all.log_probs)
    assert torch.equal(
        extract_last_layer(problem, replace(recipe, batch_norm="class"), rng).log_probs,
        by_class.log_probs,
    )
    for make in (LCMatS, AdaCore):
        one, other = (
            make(per_class=5, pretrain_epochs=1, batch_norm=norm).select(problem, rng).x
            for norm in ("data", "class")
        )
        assert not torch.equal(one, other), make


def test_inputs_are_the_networks(problem: Problem) -> None:
    index = torch.tensor([7, 2])
    assert torch.equal(
        feature_map(problem, "inputs", RECIPE, Rng(0))(index), problem.batch(index)[0]
    )


# --- the cache


def test_it_is_trained_once(problem: Problem, cache: Any) -> None:
    with_shelf = replace(problem, cache=cache)
    first, second = (pretrained(with_shelf, RECIPE, Rng(1)) for _ in range(2))
    assert len(cache.kept) == 1
    assert first.theta is second.theta
    assert torch.equal(first.theta, pretrain(problem, RECIPE, Rng(1)).theta)


def test_anything_else_is_another_network(
    make_problem: MakeProblem, problem: Problem, cache: Any
) -> None:
    others = [
        (problem, RECIPE, Rng(1)),
        (problem, RECIPE, Rng(2)),
        (problem, RECIPE, Rng(1)("other")),
        (problem, replace(RECIPE, pretrain_epochs=1), Rng(1)),
        (problem, replace(RECIPE, pretrain_optimiser="sgd"), Rng(1)),
        (make_problem(MLP(width=6, depth=1)), RECIPE, Rng(1)),
        (make_problem(MLP(width=WIDTH, depth=1), num=42), RECIPE, Rng(1)),
        (
            replace(problem, preprocess=whiten.make("none", problem.data, dtype=torch.float64)),
            RECIPE,
            Rng(1),
        ),
    ]
    for number, (one, recipe, rng) in enumerate(others, 1):
        pretrained(replace(one, cache=cache), recipe, rng)
        assert len(cache.kept) == number


def test_augmentation_is_part_of_what_it_is(cache: Any) -> None:
    data = digits()
    problem = Problem(
        data, MLP(width=4).build(data.shape, 10), whiten.make("standard", data), cache=cache
    )
    recipe = Pretraining(pretrain_epochs=1, pretrain_batch_size=512)
    for number, augment in enumerate((None, DSA("crop"), DSA("crop", siamese=False)), 1):
        pretrained(replace(problem, augment=augment), recipe, Rng(0))
        assert len(cache.kept) == number


def test_it_need_not_be_augmented() -> None:
    data = digits()
    plain = Problem(data, MLP(width=4).build(data.shape, 10), whiten.make("standard", data))
    augmented, recipe = (
        replace(plain, augment=DSA("crop")),
        Pretraining(pretrain_epochs=1, pretrain_batch_size=512),
    )
    without = pretrain(augmented, replace(recipe, pretrain_augment=False), Rng(0)).theta
    assert torch.equal(without, pretrain(plain, recipe, Rng(0)).theta)
    assert not torch.equal(without, pretrain(augmented, recipe, Rng(0)).theta)


def test_what_may_change_under_its_name_is_not_kept(problem: Problem, cache: Any) -> None:
    pretrained(replace(problem, cache=cache, augment=lambda x, _: x), RECIPE, Rng(0))
    assert cache.kept == []


def test_a_diverged_network_is_refused_and_not_kept(problem: Problem, cache: Any) -> None:
    recipe = replace(RECIPE, pretrain_optimiser="sgd", pretrain_step_size=1e200)
    with pytest.raises(DataError, match="diverged in pre-training"):
        pretrained(replace(problem, cache=cache), recipe, Rng(0))
    assert cache.kept == []
