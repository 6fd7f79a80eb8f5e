"""Flat vectors: their initial distribution, their order, dense networks, and what the registry says
of every network.
"""

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pseudocore.assembly import Setup, build
from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import Entry, models
from pseudocore.core.rng import Rng
from pseudocore.data import digits, moons
from pseudocore.models.convnet import ConvNet
from pseudocore.models.dense import MLP, Linear
from pseudocore.models.flat import BatchNorm, FlatModel

SPREADS = {"torch": 1.0, "lecun": math.sqrt(3), "he": math.sqrt(6), "flax": math.sqrt(3)}
VARIANCES = {"torch": 1 / 3, "lecun": 1.0, "he": 2.0, "flax": 1.0}


# --- initial values
# ---------------------------------------------------------------------------------------------------


def layers_of(theta: torch.Tensor, norm: bool) -> dict[str, torch.Tensor]:
    """Parts of ConvNet(width=8, depth=2) on (1, 8, 8) and 5 classes, in order."""
    names = ("conv1", 8 * 9), ("bias1", 8), *((("scale1", 8), ("shift1", 8)) if norm else ())
    names += ("conv2", 8 * 8 * 9), ("bias2", 8), *((("scale2", 8), ("shift2", 8)) if norm else ())
    names += ("head", 5 * 32), ("head_bias", 5)
    parts = torch.split(theta, [size for _, size in names], dim=-1)
    return {name: part for (name, _), part in zip(names, parts, strict=True)}


@pytest.mark.parametrize("initial", ["torch", "lecun", "he", "flax"])
@pytest.mark.parametrize("norm", ["instance", "batch", "none"])
def test_initial_weights_are_uniform_by_fan_in(initial: Any, norm: Any) -> None:
    model = ConvNet(width=8, norm=norm, init=initial).build((1, 8, 8), 5)
    parts = layers_of(model.init(Rng(0), num=200), norm != "none")
    fans = {"conv1": 9, "bias1": 9, "conv2": 72, "bias2": 72, "head": 32, "head_bias": 32}
    for name, fan_in in fans.items():
        if "bias" in name and initial == "flax":
            assert not parts[name].any()
            continue
        values, bound = parts[name].double(), SPREADS[initial] / math.sqrt(fan_in)
        n = values.numel()
        assert values.abs().max() <= bound * (1 + 1e-6)
        assert values.abs().max() > 0.98 * bound
        variance = VARIANCES[initial] / fan_in
        assert abs(values.mean()) < 4 * math.sqrt(variance / n)
        assert abs(values.square().mean() / variance - 1) < 4 * math.sqrt(
            0.8 / n
        )  # a uniform's square has relative variance 4/5
    if norm != "none":
        assert all(
            (parts[f"scale{block}"] == 1).all() and (parts[f"shift{block}"] == 0).all()
            for block in (1, 2)
        )


def test_torchs_spread_is_torchs_own() -> None:
    """nn.Conv2d's documented bound, 1 / sqrt(fan in), reached by a large sample of its own."""
    layer = nn.Conv2d(3, 500, 3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer.reset_parameters()
    model = ConvNet(width=500, depth=1).build((3, 8, 8), 2)
    ours = model.init(Rng(0))[: 500 * 27]
    assert float(layer.weight.detach().abs().max()) == pytest.approx(
        float(ours.abs().max()), rel=0.01
    )
    assert float(layer.weight.detach().std()) == pytest.approx(float(ours.std()), rel=0.03)


def test_initial_weights_are_a_function_of_the_stream() -> None:
    model = ConvNet(width=4).build((1, 8, 8), 5)
    assert torch.equal(model.init(Rng(0)("a"), num=2), model.init(Rng(0)("a"), num=2))
    assert not torch.equal(model.init(Rng(0)("a")), model.init(Rng(0)("b")))
    first, second = model.init(Rng(0), num=2)
    assert not torch.equal(first, second)
    assert torch.equal(model.init(Rng(0), num=1)[0], model.init(Rng(0)))
    double = model.init(Rng(0), dtype=torch.float64)
    assert double.dtype == torch.float64
    assert (
        len(torch.unique(double.float().double() - double)) > 1
    )  # drawn in float64, not rounded from float32


def test_the_global_generators_are_left_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    model = ConvNet(width=4, norm="batch").build((1, 8, 8), 5)
    theta = model.init(Rng(0), num=2)
    model.logits(theta, torch.zeros(2, 1, 8, 8))
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_a_layer_of_unknown_kind_starts_like_the_values_it_has() -> None:
    model = FlatModel(nn.Sequential(nn.Flatten(), nn.PReLU()), 4, 2)
    assert model.init(Rng(0))[0] == model.init(Rng(1))[0] == 0.25
    assert model.layer_scale()[0][0] == 0.25
    assert model.layer_scale()[1][0] == 1.0


class Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh())


def test_a_weight_in_two_layers_stays_one() -> None:
    model = FlatModel(Tied(), 4, 3)
    assert model.num_parameters == 16 + 4 + 4 + 15
    theta, x = model.init(Rng(0)).requires_grad_(), Rng(1).normal(5, 4)
    weight, first, second = theta[:16].view(4, 4), theta[16:20], theta[20:24]
    expected = (x @ weight.T + first).tanh() @ weight.T + second
    found = model.features(theta, x)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(out.square().sum(), theta)[0] for out in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_the_way_back_to_theta_fills_nothing_with_zeros() -> None:
    """A slice of theta would: each has a gradient of theta's size of its own, and all are added up."""
    model = FlatModel(nn.Sequential(nn.Linear(4, 5), nn.ReLU()), 5, 3)
    theta = model.init(Rng(0)).requires_grad_()
    graph, seen = [model.logits(theta, Rng(1).normal(6, 4)).sum().grad_fn], set()
    while graph:
        node = graph.pop()
        if node is not None:
            seen.add(type(node).__name__)
            graph += [before for before, _ in node.next_functions]
    assert "SplitWithSizesBackward0" in seen
    assert not any(name.startswith(("Slice", "Index", "Narrow")) for name in seen)


def test_a_body_handed_in_is_left_alone() -> None:
    body = nn.Sequential(nn.Conv2d(1, 2, 3), BatchNorm(2), nn.Flatten())
    before = {name: value.clone() for name, value in body.state_dict().items()}
    model = FlatModel(body, 2 * 36, 3)
    theta = model.init(Rng(0))
    model.logits(
        theta,
        torch.ones(2, 1, 8, 8),
        model.statistics(theta, torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))),
    )
    assert all(torch.equal(before[name], value) for name, value in body.state_dict().items())
    assert all(parameter.device.type == "cpu" for parameter in body.parameters())


# --- dense networks
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "sizes"), [(1, [12, 5, 3]), (3, [12, 5, 5, 5, 3])])
def test_mlp_is_a_module_of_torchs_layers(depth: int, sizes: list[int]) -> None:
    model = MLP(width=5, depth=depth).build((3, 2, 2), 3)
    theta, x = (
        model.init(Rng(0), dtype=torch.float64),
        Rng(1).normal(4, 3, 2, 2, dtype=torch.float64),
    )
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    module = nn.Sequential(*layers[:-1]).double()
    nn.utils.vector_to_parameters(theta, module.parameters())
    assert torch.allclose(model.logits(theta, x), module(x), rtol=1e-12, atol=1e-14)
    assert model.num_features == 5


def test_linear_features_are_the_inputs() -> None:
    model = Linear().build((3, 2), 4)
    theta, x = model.init(Rng(0)), Rng(1).normal(5, 3, 2)
    assert (model.num_features, model.num_parameters) == (6, 28)
    assert torch.equal(model.features(theta, x), x.flatten(1))
    weight, bias = model.head(theta)
    assert torch.allclose(model.logits(theta, x), x.flatten(1) @ weight.T + bias)
    assert torch.equal(torch.cat([weight.flatten(), bias]), theta)


def test_many_draws_of_dense_networks_are_each_alone() -> None:
    for make in (MLP(width=5, depth=2), Linear()):
        model = make.build((6,), 3)
        thetas, x = (
            model.init(Rng(0), num=4, dtype=torch.float64),
            Rng(1).normal(5, 6, dtype=torch.float64),
        )
        each = torch.stack([model.logits(theta, x) for theta in thetas])
        assert torch.allclose(model.logits(thetas, x), each, rtol=1e-12, atol=1e-14)
        assert model.features(thetas, x).shape == (4, 5, model.num_features)


# --- every registered network
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [*models], ids=lambda entry: entry.name)
def test_every_network_runs_and_describes_itself(entry: Entry) -> None:
    model = entry.make().build((1, 28, 28), 3)
    theta = model.init(Rng(0))
    assert theta.shape == (model.num_parameters,)
    assert model.features(theta, torch.zeros(2, 1, 28, 28)).shape == (2, model.num_features)
    assert model.logits(theta, torch.zeros(2, 1, 28, 28)).shape == (2, 3)
    assert model.describe()["name"] == entry.name
    assert model.describe()["num_parameters"] == model.num_parameters
    assert entry.kind in ("images", "any")
    assert entry.summary


@pytest.mark.parametrize("entry", [*models], ids=lambda entry: entry.name)
def test_every_option_of_every_network_has_a_help(entry: Entry) -> None:
    assert [option.name for option in config.options(entry.make) if not option.help] == []


# --- through the setup
# ------------------------------------------------------------------------------------------------


def test_a_setup_chooses_the_network_by_the_data() -> None:
    assert build(Setup(), digits(), device="cpu").model.describe()["name"] == "convnet3"
    assert build(Setup(), moons(), device="cpu").model.describe()["name"] == "mlp"


def test_words_reach_the_network() -> None:
    words = {"width": 6, "depth": 1, "norm": "batch", "init": "he"}
    described = build(Setup(model="convnet3", **words), digits(), device="cpu").model.describe()  # type: ignore[arg-type]
    assert {name: described[name] for name in words} == words


def test_options_a_network_lacks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model 'mlp' has no norm; it has depth, width"):
        build(Setup(model="mlp", norm="batch"), digits())
    with pytest.raises(
        ConfigError, match=r"model 'linear' has no depth or width; it has no options"
    ):
        build(Setup(model="linear", width=3, depth=2), digits())


def test_a_network_for_images_refuses_features() -> None:
    with pytest.raises(
        ConfigError, match=r"model 'convnet3' needs images, but inputs have shape \(2,\)"
    ):
        build(Setup(model="convnet3"), moons())


def test_an_unknown_network_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown model 'convnet'; did you mean 'convnet"):
        build(Setup(model="convnet"), digits())


def test_several_draws_take_images_of_any_layout() -> None:
    model = ConvNet(width=4).build((1, 8, 8), 3)
    theta, x = model.init(Rng(0), num=2), Rng(1).normal(5, 1, 8, 8)
    channel_last = x.as_strided(
        x.shape, (64, 1, 8, 1)
    )  # the same numbers: with one channel its stride means nothing
    assert torch.equal(model.logits(theta, channel_last), model.logits(theta, x))


@pytest.mark.parametrize(
    ("num", "with_gradient", "batched"),
    [(10, True, True), (200, True, False), (10, False, False)],
    ids=["few", "many", "no gradient"],
)
def test_several_networks_are_one_batch_where_that_is_faster(
    num: int, with_gradient: bool, batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ConvNet(width=2, depth=2).build((1, 8, 8), 3)
    thetas, x = (
        model.init(Rng(0), num=2, dtype=torch.float64),
        Rng(1).normal(num, 1, 8, 8, dtype=torch.float64),
    )
    alone = torch.stack([model.logits(theta, x) for theta in thetas])
    calls = []
    monkeypatch.setattr(
        "pseudocore.models.flat.vmap",
        lambda *args, **options: calls.append(1) or torch.func.vmap(*args, **options),
    )
    with torch.set_grad_enabled(with_gradient):
        together = model.logits(thetas, x)
    assert bool(calls) == batched
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
