"""The convolutional networks: the published sizes, and every output against a module of torch's own
layers.
"""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.models.convnet import ConvNet, ConvNetWide
from pseudocore.models.flat import FlatModel

NORMS: list[Any] = ["instance", "batch", "none"]


@pytest.mark.parametrize(
    ("make", "shape", "num_features"),
    [
        (ConvNet(), (3, 32, 32), 2048),
        (ConvNet(), (1, 28, 28), 2048),
        (ConvNet(), (3, 64, 64), 2048),
        (ConvNet(), (3, 128, 128), 2048),
        (ConvNetWide(), (3, 32, 32), 8192),
        (ConvNetWide(), (1, 28, 28), 8192),
        (ConvNet(), (1, 8, 8), 512),
        (ConvNet(width=16, depth=1), (1, 8, 8), 256),
    ],
)
def test_number_of_features(make: Any, shape: tuple[int, ...], num_features: int) -> None:
    assert make.build(shape, 10).num_features == num_features


def test_the_familys_network_has_320010_parameters() -> None:
    model = ConvNet().build((3, 32, 32), 10)
    assert model.num_parameters == 320_010
    assert model.init(Rng(0)).shape == (320_010,)
    assert model.describe() == {
        "name": "convnet3",
        "width": 128,
        "depth": 3,
        "norm": "instance",
        "init": "torch",
        "num_parameters": 320_010,
    }


def test_batch_norm_has_as_many_parameters_and_none_has_fewer() -> None:
    sizes = {
        norm: ConvNet(norm=norm).build((3, 32, 32), 10).num_parameters
        for norm in ("instance", "batch", "none")
    }
    assert sizes == {"instance": 320_010, "batch": 320_010, "none": 320_010 - 3 * 2 * 128}


@pytest.mark.parametrize(
    ("side", "depth"),
    [(8, 2), (16, 2), (28, 3), (32, 3), (48, 3), (64, 4), (128, 5)],
    ids=lambda value: str(value),
)
def test_depth_follows_the_size_of_the_image(side: int, depth: int) -> None:
    assert ConvNet(width=2).build((3, side, side), 10).describe()["depth"] == depth


# --- against torch's layers
# -------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Convolution, norm, ReLU, pooling from torch.nn.functional, by the description in the papers."""

    def __init__(self, channels: int, width: int, norm: str, padding: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, width, 3, padding=padding)
        self.norm = nn.GroupNorm(width, width) if norm == "instance" else None
        self.batch_norm = nn.BatchNorm2d(width, momentum=1.0) if norm == "batch" else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolution(x)
        for norm in (self.norm, self.batch_norm):
            x = norm(x) if norm is not None else x
        return F.avg_pool2d(F.relu(x), 2)


def by_hand(widths: list[int], norm: str, shape: tuple[int, int, int], theta: Tensor) -> nn.Module:
    """A module of torch's layers with theta loaded in documented order: body, then the head's
    weight and bias.
    """
    channels, side, _ = shape
    padding = 3 if side == 28 else 1
    blocks = [
        Block(c, w, norm, padding if i == 0 else 1)
        for i, (c, w) in enumerate(zip([channels, *widths], widths, strict=False))
    ]
    side = (side + 2 * (padding - 1)) // 2 ** len(widths)
    module = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(widths[-1] * side * side, 10)).to(
        theta.dtype
    )
    assert sum(parameter.numel() for parameter in module.parameters()) == len(theta)
    nn.utils.vector_to_parameters(theta.clone(), module.parameters())
    return module


def random_theta(model: FlatModel, num: int | None = None) -> Tensor:
    """Everything off its initial value, the norms' scales and shifts too."""
    theta = model.init(Rng(1), num=num, dtype=torch.float64)
    return theta + 0.05 * Rng(2).normal(*theta.shape, dtype=torch.float64)


CASES = [
    pytest.param(
        make(width=width, norm=norm), widths, norm, shape, id=f"{make.__name__},{norm},{shape[1]}"
    )
    for make, width, widths, shape in (
        (ConvNet, 4, [4, 4], (1, 8, 8)),
        (ConvNetWide, 3, [3, 6], (1, 8, 8)),
        (ConvNet, 4, [4, 4, 4], (1, 28, 28)),
        (ConvNetWide, 2, [2, 4, 8], (3, 32, 32)),
    )
    for norm in NORMS
]


@pytest.mark.parametrize(("make", "widths", "norm", "shape"), CASES)
def test_logits_are_those_of_a_module_of_torchs_layers(
    make: Any, widths: list[int], norm: str, shape: tuple[int, int, int]
) -> None:
    model = make.build(shape, 10)
    theta, x = random_theta(model), Rng(3).normal(5, *shape, dtype=torch.float64)
    module = by_hand(widths, norm, shape, theta).train()
    assert torch.allclose(model.logits(theta, x), module(x), rtol=1e-10, atol=1e-12)
    assert torch.allclose(model.features(theta, x), module[:-1](x), rtol=1e-10, atol=1e-12)  # type: ignore[index]


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_are_those_of_a_module_of_torchs_layers(norm: Any) -> None:
    model = ConvNet(width=4, norm=norm).build((1, 8, 8), 10)
    theta, x = (
        random_theta(model).requires_grad_(),
        Rng(3).normal(5, 1, 8, 8, dtype=torch.float64).requires_grad_(),
    )
    module, pixels = (
        by_hand([4, 4], norm, (1, 8, 8), theta.detach()),
        x.detach().clone().requires_grad_(),
    )
    labels = torch.arange(5)
    ours = torch.autograd.grad(F.cross_entropy(model.logits(theta, x), labels), (theta, x))
    theirs = torch.autograd.grad(
        F.cross_entropy(module(pixels), labels), (*module.parameters(), pixels)
    )
    assert torch.allclose(
        ours[0], torch.cat([part.flatten() for part in theirs[:-1]]), rtol=1e-9, atol=1e-12
    )
    assert torch.allclose(ours[1], theirs[-1], rtol=1e-9, atol=1e-12)
    assert (ours[0] != 0).double().mean() > 0.9


@pytest.mark.parametrize("norm", NORMS)
def test_many_draws_at_once_are_each_alone(norm: Any) -> None:
    model = ConvNet(width=4, norm=norm).build((1, 8, 8), 10)
    thetas, x = random_theta(model, num=3), Rng(3).normal(5, 1, 8, 8, dtype=torch.float64)
    together = model.logits(thetas, x)  # (draws, n, classes)
    assert together.shape == (3, 5, 10)
    assert torch.allclose(
        together, torch.stack([model.logits(theta, x) for theta in thetas]), rtol=1e-10, atol=1e-12
    )
    assert model.features(thetas, x).shape == (3, 5, model.num_features)


# --- batch statistics
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def normed() -> FlatModel:
    return ConvNet(width=4, norm="batch").build((1, 8, 8), 10)


def test_a_batch_under_its_own_statistics_is_a_batch_in_training(normed: FlatModel) -> None:
    theta, x = random_theta(normed), Rng(3).normal(6, 1, 8, 8, dtype=torch.float64)
    fixed = normed.logits(theta, x, normed.statistics(theta, x))
    assert torch.allclose(fixed, normed.logits(theta, x), rtol=1e-12, atol=1e-13)


def test_other_batches_under_a_batchs_statistics_are_torchs_in_evaluation(
    normed: FlatModel,
) -> None:
    """With momentum 1 torch's running statistics are the last batch's; its running variance is n /
    (n − 1) of ours.
    """
    theta = random_theta(normed)
    first, second = (Rng(seed).normal(7, 1, 8, 8, dtype=torch.float64) for seed in (3, 4))
    module = by_hand([4, 4], "batch", (1, 8, 8), theta).train()
    module(first)
    for norm, count in zip(
        (module[0].batch_norm, module[1].batch_norm), (7 * 64, 7 * 16), strict=True
    ):  # type: ignore[index]
        norm.running_var *= (count - 1) / count
    statistics = normed.statistics(theta, first)
    assert torch.allclose(
        normed.logits(theta, second, statistics), module.eval()(second), rtol=1e-9, atol=1e-11
    )
    assert not torch.allclose(
        normed.logits(theta, second, statistics), normed.logits(theta, second), rtol=1e-2
    )


def test_under_fixed_statistics_points_do_not_meet(normed: FlatModel) -> None:
    theta, x = random_theta(normed), Rng(3).normal(6, 1, 8, 8, dtype=torch.float64)
    statistics = normed.statistics(theta, Rng(4).normal(9, 1, 8, 8, dtype=torch.float64))
    alone = torch.cat([normed.logits(theta, point[None], statistics) for point in x])
    assert torch.allclose(normed.logits(theta, x, statistics), alone, rtol=1e-10, atol=1e-12)


def test_statistics_of_many_draws(normed: FlatModel) -> None:
    thetas = random_theta(normed, num=3)
    first, second = (Rng(seed).normal(7, 1, 8, 8, dtype=torch.float64) for seed in (3, 4))
    together = normed.statistics(thetas, first)
    for draw, theta in enumerate(thetas):
        alone = normed.statistics(theta, first)
        assert together.keys() == alone.keys()
        assert all(
            torch.allclose(together[name][draw], alone[name], rtol=1e-10, atol=1e-12)
            for name in alone
        )
    expected = torch.stack(
        [normed.logits(theta, second, normed.statistics(theta, first)) for theta in thetas]
    )
    assert torch.allclose(normed.logits(thetas, second, together), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("norm", ["instance", "none"])
def test_other_norms_have_no_statistics(norm: Any) -> None:
    model = ConvNet(width=4, norm=norm).build((1, 8, 8), 10)
    assert model.statistics(model.init(Rng(0)), torch.zeros(2, 1, 8, 8)) == {}


# --- refusals
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [ConvNet(), ConvNetWide()])
@pytest.mark.parametrize("shape", [(64,), (8, 8)])
def test_features_are_refused(make: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ConfigError,
        match=r"needs images, but inputs have shape .*'mlp' and 'linear' take any shape",
    ):
        make.build(shape, 10)


def test_images_too_small_for_the_depth_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"depth 3 needs images of at least 8×8, not \(3, 4, 4\)"):
        ConvNet(depth=3).build((3, 4, 4), 10)
    with pytest.raises(ConfigError, match=r"depth 2 needs images of at least 4×4, not \(1, 8, 2\)"):
        ConvNet().build((1, 8, 2), 10)
    assert ConvNet(width=2, depth=2).build((3, 4, 4), 10).num_features == 2


def test_sides_that_are_no_power_of_two_lose_their_remainder() -> None:
    model = ConvNet(width=2, depth=2).build((1, 11, 9), 10)
    theta = model.init(Rng(0))
    assert model.features(theta, torch.zeros(3, 1, 11, 9)).shape == (3, model.num_features)
    assert model.num_features == 2 * math.floor(11 / 4) * math.floor(9 / 4)


@pytest.mark.parametrize(
    ("shape", "width", "norm", "expected"),
    [
        ((3, 32, 32), 128, "instance", True),
        ((1, 28, 28), 32, "instance", True),  # padded to 32×32
        ((3, 32, 32), 24, "instance", False),
        ((3, 64, 64), 32, "instance", False),
        ((3, 24, 24), 32, "instance", False),
        ((3, 32, 16), 32, "instance", False),
        ((3, 32, 32), 128, "none", False),
    ],
)
def test_which_networks_have_kernels_for_all_their_blocks(
    shape: tuple[int, ...], width: int, norm: Any, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pseudocore.models.norm_pool.find_spec", lambda name: name)
    assert ConvNet(width=width, norm=norm).build(shape, 10).has_kernels is expected
    monkeypatch.setattr("pseudocore.models.norm_pool.find_spec", lambda _: None)
    assert not ConvNet(width=width, norm=norm).build(shape, 10).has_kernels
