"""The CIFAR networks: published sizes, every output against a plain functional network, batched
thetas, image sizes.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from pseudocore import assembly as setups
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import models
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.models.flat import FlatModel

CIFAR = (3, 32, 32)
TINY = {
    "resnet10": 2,
    "resnet18": 2,
    "vgg11": 2,
    "vgg16": 2,
    "alexnet": 4,
    "wrn-16-8": 1,
    "densenet121": 2,
    "inception-v3": 4,
}
NORMS = ["batch", "instance", "none"]
every_network = pytest.mark.parametrize("name", TINY)
every_norm = pytest.mark.parametrize("norm", NORMS)


def network(
    name: str, shape: tuple[int, ...] = CIFAR, num_classes: int = 10, **options: Any
) -> FlatModel:
    model: FlatModel = models[name].make(**options).build(shape, num_classes)
    return model


def tiny(
    name: str, shape: tuple[int, ...] = CIFAR, num_classes: int = 5, **options: Any
) -> FlatModel:
    return network(name, shape, num_classes, width=TINY[name], **options)


def perturbed(model: FlatModel, rng: Rng, num: int | None = None) -> Tensor:
    """Thetas whose norms and biases are no longer at 1 and 0, in float64."""
    theta = model.init(rng("init"), num=num, dtype=torch.float64)
    return theta + 0.1 * rng("change").normal(*theta.shape, dtype=torch.float64)


# --- sizes
# ------------------------------------------------------------------------------------------------------------

PUBLISHED = {
    "resnet18": 11_173_962,  # kuangliu/pytorch-cifar
    "vgg11": 9_231_114,  # the same
    "vgg16": 14_728_266,  # the same
    "densenet121": 6_956_298,  # the same
    "wrn-16-8": 10_961_370,  # 11.0 million in Table 4 of Zagoruyko & Komodakis (2016)
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_number_of_parameters_is_the_published_one(name: str) -> None:
    model = network(name)
    assert model.num_parameters == PUBLISHED[name]
    assert model.describe()["num_parameters"] == PUBLISHED[name]


def conv(channels: int, width: int, size: int = 9) -> int:
    """Weights of a convolution (by kernel area) and gain and shift of its norm."""
    return channels * width * size + 2 * width


def test_resnet10_by_hand() -> None:
    stages = conv(64, 64) * 2 + sum(
        conv(c, 2 * c) + conv(2 * c, 2 * c) + conv(c, 2 * c, 1) for c in (64, 128, 256)
    )
    assert network("resnet10").num_parameters == conv(3, 64) + stages + 513 * 10


def test_alexnet_by_hand() -> None:
    layers = [(3, 128, 25), (128, 192, 25), (192, 256, 9), (256, 192, 9), (192, 192, 9)]
    assert (
        network("alexnet").num_parameters
        == sum(c * w * size + w for c, w, size in layers) + (192 * 16 + 1) * 10
    )


def test_inception_is_the_imagenet_network_with_another_stem_and_head() -> None:
    """torchvision publishes 27,161,264 for the whole; what is not in the mixed blocks is counted
    off by hand.
    """
    auxiliary = conv(768, 128, 1) + conv(128, 768, 25) + 769 * 1000
    stem = conv(3, 32) + conv(32, 32) + conv(32, 64) + conv(64, 80, 1) + conv(80, 192)
    mixed = 27_161_264 - auxiliary - stem - 2049 * 1000
    assert network("inception-v3").num_parameters == conv(3, 192) + mixed + 2049 * 10


@pytest.mark.parametrize("name", [name for name in TINY if name != "alexnet"])
def test_without_norms_every_convolution_has_a_bias(name: str) -> None:
    """As the norms' gains go and their shifts become biases, where there were none before; the
    pre-activation networks lose more.
    """
    sizes = {norm: tiny(name, norm=norm).num_parameters for norm in NORMS}
    assert sizes["batch"] == sizes["instance"] > sizes["none"]
    body = tiny(name, norm="none")._training
    assert all(
        layer.bias is not None for layer in body.modules() if isinstance(layer, torch.nn.Conv2d)
    )


# --- against plain functions
# ------------------------------------------------------------------------------------------


class Plain:
    """Functional layers that take their parameters from theta one after the other."""

    def __init__(self, theta: Tensor, norm: str, bias: bool) -> None:
        self.theta, self.norm_kind, self.bias = theta, norm, bias or norm == "none"

    def take(self, *shape: int) -> Tensor:
        size = torch.Size(shape).numel()
        piece, self.theta = self.theta[:size].view(shape), self.theta[size:]
        return piece

    def conv(self, x: Tensor, width: int, size: int, stride: int = 1) -> Tensor:
        weight = self.take(width, x.shape[1], size, size)
        return F.conv2d(x, weight, self.take(width) if self.bias else None, stride, size // 2)

    def norm(self, x: Tensor) -> Tensor:
        if self.norm_kind == "none":
            return x
        weight, bias = self.take(x.shape[1]), self.take(x.shape[1])
        if self.norm_kind == "batch":
            return F.batch_norm(x, None, None, weight, bias, training=True)
        return F.instance_norm(x, weight=weight, bias=bias)

    def head(self, features: Tensor) -> Tensor:
        weight = self.take(5, features.shape[1])
        logits = F.linear(features, weight, self.take(5))
        assert len(self.theta) == 0
        return logits


def plain_resnet(p: Plain, x: Tensor, blocks: int) -> Tensor:
    x = F.relu(p.norm(p.conv(x, 2, 3)))
    for stage in range(4):
        for block in range(blocks):
            width, stride = 2 * 2**stage, 2 if stage and not block else 1
            y = F.relu(p.norm(p.conv(x, width, 3, stride)))
            y = p.norm(p.conv(y, width, 3))
            x = F.relu(y + (x if x.shape == y.shape else p.norm(p.conv(x, width, 1, stride))))
    return p.head(x.mean((2, 3)))


def plain_vgg(p: Plain, x: Tensor, words: str) -> Tensor:
    for word in words.split():
        x = F.max_pool2d(x, 2) if word == "M" else F.relu(p.norm(p.conv(x, 2 * int(word) // 64, 3)))
    return p.head(x.flatten(1))


def plain_alexnet(p: Plain, x: Tensor) -> Tensor:
    x = F.max_pool2d(F.relu(p.norm(p.conv(x, 4, 5))), 2)
    x = F.max_pool2d(F.relu(p.norm(p.conv(x, 6, 5))), 2)
    x = F.relu(p.norm(p.conv(x, 8, 3)))
    x = F.relu(p.norm(p.conv(x, 6, 3)))
    return p.head(F.max_pool2d(F.relu(p.norm(p.conv(x, 6, 3))), 2).flatten(1))


def plain_wrn(p: Plain, x: Tensor) -> Tensor:
    x = p.conv(x, 16, 3)
    for stage, width in enumerate((16, 32, 64)):
        stride = 2 if stage else 1
        active = F.relu(p.norm(x))
        y = p.conv(F.relu(p.norm(p.conv(active, width, 3, stride))), width, 3)
        x = y + p.conv(active, width, 1, stride)
        y = p.conv(F.relu(p.norm(x)), width, 3)
        x = x + p.conv(F.relu(p.norm(y)), width, 3)
    return p.head(F.relu(p.norm(x)).mean((2, 3)))


def plain_densenet(p: Plain, x: Tensor) -> Tensor:
    x = p.conv(x, 4, 3)
    for block, layers in enumerate((6, 12, 24, 16)):
        if block:
            x = F.avg_pool2d(p.conv(F.relu(p.norm(x)), x.shape[1] // 2, 1), 2)
        for _ in range(layers):
            bottleneck = p.conv(F.relu(p.norm(x)), 8, 1)
            x = torch.cat([p.conv(F.relu(p.norm(bottleneck)), 2, 3), x], 1)
    return p.head(F.relu(p.norm(x)).mean((2, 3)))


PLAIN: dict[str, Callable[[Plain, Tensor], Tensor]] = {
    "resnet10": lambda p, x: plain_resnet(p, x, 1),
    "resnet18": lambda p, x: plain_resnet(p, x, 2),
    "vgg11": lambda p, x: plain_vgg(p, x, "64 M 128 M 256 256 M 512 512 M 512 512 M"),
    "vgg16": lambda p, x: plain_vgg(
        p, x, "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M"
    ),
    "alexnet": plain_alexnet,
    "wrn-16-8": plain_wrn,
    "densenet121": plain_densenet,
}


@every_norm
@pytest.mark.parametrize("name", PLAIN)
def test_outputs_equal_those_of_plain_functions(name: str, norm: str) -> None:
    if norm == "instance" and name.startswith("vgg"):
        tolerance = 1e-6  # the last maps are 2×2: dividing by their small deviations costs digits
    else:
        tolerance = 1e-10
    model = tiny(name, norm=norm)
    theta, x = perturbed(model, Rng(0)(name)), Rng(1).normal(4, *CIFAR, dtype=torch.float64)
    expected = PLAIN[name](Plain(theta, norm, bias=name.startswith(("vgg", "alexnet"))), x)
    torch.testing.assert_close(model.logits(theta, x), expected, rtol=tolerance, atol=tolerance)


def test_the_grids_of_inception() -> None:
    """32, 15 and 7 wide, with the paper's 288, 768 and 2048 channels at their ends, here a
    sixteenth of them.
    """
    body = tiny("inception-v3")._training
    shapes, x = [], torch.empty(2, *CIFAR, device="meta")
    for layer in body.children():
        x = layer(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes[3:14] == [
        (16, 32, 32), (18, 32, 32), (18, 32, 32), (48, 15, 15), (48, 15, 15), (48, 15, 15), (48, 15, 15), (48, 15, 15),
        (80, 7, 7), (128, 7, 7), (128, 7, 7),
    ]  # fmt: skip


# --- as functions of theta
# --------------------------------------------------------------------------------------------


@every_norm
@every_network
def test_a_batch_of_thetas_gives_what_each_gives(name: str, norm: str) -> None:
    model = tiny(name, norm=norm)
    thetas, x = perturbed(model, Rng(2)(name), num=2), Rng(3).normal(3, *CIFAR, dtype=torch.float64)
    together = model.logits(thetas, x)
    assert together.shape == (2, 3, 5)
    torch.testing.assert_close(
        together, torch.stack([model.logits(theta, x) for theta in thetas]), rtol=1e-6, atol=1e-6
    )


@every_network
def test_batch_statistics_are_values(name: str) -> None:
    """Handed in, a batch's own statistics change nothing; other points then no longer depend on
    their neighbours.
    """
    model = tiny(name, norm="batch")
    theta, x = perturbed(model, Rng(4)(name)), Rng(5).normal(6, *CIFAR, dtype=torch.float64)
    statistics = model.statistics(theta, x)
    torch.testing.assert_close(
        model.logits(theta, x, statistics), model.logits(theta, x), rtol=1e-8, atol=1e-8
    )
    other = 2 * Rng(6).normal(4, *CIFAR, dtype=torch.float64) + 1
    fixed = model.logits(theta, other, statistics)
    torch.testing.assert_close(
        model.logits(theta, other[:1], statistics), fixed[:1], rtol=1e-8, atol=1e-8
    )
    assert (model.logits(theta, other) - fixed).abs().max() > 1e-3


@every_network
def test_every_parameter_matters(name: str) -> None:
    """Without norms no direction of theta is idle by design: every layer has a gradient, and all
    are finite.
    """
    model = tiny(name, norm="none", init="he")
    theta, x, y = (
        perturbed(model, Rng(7)(name)),
        Rng(8).normal(8, *CIFAR, dtype=torch.float64),
        Rng(9).integers(5, 8),
    )
    slope = grad(lambda theta: F.cross_entropy(model.logits(theta, x), y))(theta)
    assert torch.isfinite(slope).all()
    assert all(piece.abs().max() > 0 for piece in model.tensors(slope))


@every_network
def test_building_draws_nothing_from_the_global_stream(name: str) -> None:
    before = torch.get_rng_state()
    tiny(name)
    assert torch.equal(torch.get_rng_state(), before)


# --- inputs
# -----------------------------------------------------------------------------------------------------------


@every_network
def test_28_is_32_with_a_frame_of_zeros(name: str) -> None:
    small, large = tiny(name, (1, 28, 28)), tiny(name, (1, 32, 32))
    theta, x = perturbed(large, Rng(10)(name)), Rng(11).normal(3, 1, 28, 28, dtype=torch.float64)
    assert small.num_parameters == large.num_parameters
    torch.testing.assert_close(
        small.logits(theta, x), large.logits(theta, F.pad(x, (2, 2, 2, 2))), rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 64, 64), (3, 32, 28), (20,)], ids=str)
@every_network
def test_other_inputs_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=rf"{name}' takes images of 32×32 or 28×28.*'mlp'"):
        tiny(name, shape)


def test_inception_refuses_a_width_that_splits_channels() -> None:
    with pytest.raises(ConfigError, match="multiple of 4, not 6"):
        network("inception-v3", width=6)


@pytest.fixture
def pictures() -> Dataset:
    part = Examples(Rng(0).integers(256, 8, 1, 28, 28).to(torch.uint8), torch.arange(8) % 2)
    return Dataset("pictures", part, part, 2)


def test_a_setup_builds_them_by_name(pictures: Dataset) -> None:
    problem = setups.build(
        setups.Setup(model="resnet18", width=2, norm="instance", init="he"), pictures, device="cpu"
    )
    words = {"name": "resnet18", "width": 2, "norm": "instance", "init": "he"}
    assert words.items() <= problem.model.describe().items()
    with pytest.raises(ConfigError, match=r"'resnet18' has no depth; it has init, norm, width"):
        setups.build(setups.Setup(model="resnet18", depth=3), pictures, device="cpu")
    with pytest.raises(ConfigError, match="did you mean 'resnet18'"):
        setups.build(setups.Setup(model="resnet-18"), pictures, device="cpu")
