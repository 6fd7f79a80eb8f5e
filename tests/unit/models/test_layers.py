"""What a flat model says of its inside: parameters in their shapes, and what every layer is given."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from pseudocore.core.rng import Rng
from pseudocore.models.convnet import ConvNet
from pseudocore.models.dense import MLP, Linear
from pseudocore.models.flat import FlatModel
from pseudocore.models.resnet import ResNet10


def test_parameters_come_in_their_shapes_and_in_order() -> None:
    model = ConvNet(width=8, depth=2).build((3, 8, 8), 5)
    theta = model.init(Rng(0))
    tensors = model.tensors(theta)
    block = [(8,), (8,), (8,)]
    assert [tuple(tensor.shape) for tensor in tensors] == [
        (8, 3, 3, 3),
        *block,
        (8, 8, 3, 3),
        *block,
        (5, 32),
        (5,),
    ]
    assert torch.equal(torch.cat([tensor.flatten() for tensor in tensors]), theta)


@pytest.mark.parametrize("norm", ["instance", "batch", "none"])
def test_layers_of_a_convnet_are_the_outputs_of_its_blocks(norm: Any) -> None:
    model = ConvNet(width=4, depth=3, norm=norm).build((1, 8, 8), 3)
    theta, x = model.init(Rng(0)), Rng(1).normal(5, 1, 8, 8)
    statistics = model.statistics(theta, Rng(2).normal(9, 1, 8, 8)) or None
    body = model._training if statistics is None else model._fixed
    assert isinstance(body, nn.Sequential)
    size = len(body) // 3
    expected, names = (
        [],
        {**dict(zip(model._names, model.tensors(theta), strict=False)), **(statistics or {})},
    )
    for block in range(1, 4):
        part = nn.Sequential(*list(body)[: block * size])
        own = {
            name: value
            for name, value in names.items()
            if int(name.partition(".")[0]) < block * size
        }
        expected.append(functional_call(part, own, (x,)).flatten(1))
    layers = model.layers(theta, x, statistics)
    assert [tuple(layer.shape) for layer in layers] == [(5, 4 * 16), (5, 4 * 4), (5, 4)]
    assert all(torch.equal(one, other) for one, other in zip(layers, expected, strict=True))
    assert torch.equal(layers[-1], model.features(theta, x, statistics))


def test_layers_of_dense_networks() -> None:
    x = Rng(1).normal(5, 6)
    model = MLP(width=7, depth=2).build((6,), 3)
    theta = model.init(Rng(0))
    w1, b1, w2, b2, *_ = model.tensors(theta)
    first = (x @ w1.T + b1).relu()
    for layer, expected in zip(
        model.layers(theta, x), [first, (first @ w2.T + b2).relu()], strict=True
    ):
        torch.testing.assert_close(layer, expected)
    linear = Linear().build((6,), 3)
    assert [torch.equal(layer, x) for layer in linear.layers(linear.init(Rng(0)), x)] == [True]


def test_what_two_layers_are_given_counts_once() -> None:
    """The branch and the shortcut of a residual block begin with the same."""
    model = ResNet10().build((3, 32, 32), 4)
    theta, x = model.init(Rng(0)), Rng(1).normal(2, 3, 32, 32)
    layers = model.layers(theta, x)
    convolutions = [part for part in model._training.modules() if isinstance(part, nn.Conv2d)]
    shortcuts = sum(part.kernel_size == (1, 1) for part in convolutions)
    assert shortcuts == 3
    assert len(layers) == len(convolutions) - 1 - shortcuts + 1
    assert len({tuple(layer[0, :50].tolist()) for layer in layers}) == len(layers)


def test_layers_can_be_differentiated_and_leave_no_hook_behind() -> None:
    model: FlatModel = ConvNet(width=4, depth=2).build((1, 8, 8), 3)
    theta, x = model.init(Rng(0)), Rng(1).normal(2, 1, 8, 8)

    def first(x: Tensor) -> Tensor:
        return model.layers(theta, x)[0].square().sum()

    assert grad(first)(x).abs().max() > 0
    assert not any(part._forward_pre_hooks for part in model._training.modules())
