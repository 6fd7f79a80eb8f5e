"""The kernels of a block, a first convolution and norm with ReLU and pooling, against torch's own
layers, both ways; and where they must
not be used."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, jvp, vmap

from pseudocore.core.rng import Rng
from pseudocore.models.convnet import ConvNet
from pseudocore.runtime import autodiff

pytestmark = pytest.mark.gpu

FLIPS = 5e-3
"""A share 1e-6 of ReLUs that rounding opens or closes is a share 1e-3 of a gradient's norm."""


def layers(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.avg_pool2d(F.relu(F.group_norm(x, x.shape[1], weight, bias)), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("side", "channels"), [(32, 128), (32, 48), (16, 64), (16, 16), (8, 128), (4, 32), (2, 16)]
)
def test_it_is_torchs_layers_and_their_gradient(
    side: int, channels: int, dtype: torch.dtype
) -> None:
    from pseudocore.models._triton.norm_pool import norm_pool

    rng, at = Rng(0), {"device": "cuda"}
    x = (3 * rng("x").normal(5, channels, side, side, **at) + 1).to(dtype)
    weight, bias, slope = (
        rng("w").normal(channels, **at),
        rng("b").normal(channels, **at),
        rng("s").normal(5, channels, side // 2, side // 2, **at),
    )
    exact = [one.double().requires_grad_() for one in (x, weight, bias)]
    found = [one.clone().requires_grad_() for one in (x, weight, bias)]
    pairs = []
    for inputs, value in ((exact, layers(*exact)), (found, norm_pool(*found, 1e-5))):
        gradients = torch.autograd.grad(value, inputs, slope.to(value.dtype))
        pairs.append([value, *gradients])
    for theirs, ours in zip(*pairs, strict=True):
        assert (ours - theirs).norm() < (1e-5 if dtype == torch.float32 else 1e-2) * theirs.norm()


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize(
    ("shape", "padding", "channels"),
    [((3, 32, 32), 1, 128), ((1, 28, 28), 3, 48), ((2, 16, 16), 1, 16), ((3, 10, 8), 1, 32)],
)
def test_a_first_block_is_torchs_layers_and_their_gradients(
    shape: tuple[int, int, int],
    padding: int,
    channels: int,
    precision: str,
    request: pytest.FixtureRequest,
) -> None:
    from pseudocore.models._triton.first_block import first_block

    matmul = torch.backends.cuda.matmul  # whose attributes cannot be deleted, as monkeypatch would
    request.addfinalizer(partial(setattr, matmul, "allow_tf32", matmul.allow_tf32))
    matmul.allow_tf32 = precision == "tf32"
    rng, at = Rng(0), {"device": "cuda"}
    inputs = [
        rng("x").normal(5, *shape, **at) + 0.7,
        rng("k").normal(channels, shape[0], 3, 3, **at) / 3,
        rng("w").normal(channels, **at),
        rng("b").normal(channels, **at),
    ]
    exact = [one.double().requires_grad_() for one in inputs]
    found = [one.clone().requires_grad_() for one in inputs]
    theirs = layers(F.conv2d(*exact[:2], padding=padding), *exact[2:])
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
        ours = first_block(*found, padding, 1e-5)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    slope = rng("s").normal(*theirs.shape, **at)
    gradients = zip(
        torch.autograd.grad(theirs, exact, slope.double()),
        torch.autograd.grad(ours, found, slope.to(ours.dtype)),
        strict=True,
    )
    assert (ours - theirs).norm() < {"float32": 1e-6, "tf32": 1e-3, "bf16": 1e-2}[
        precision
    ] * theirs.norm()
    for one, other in gradients:  # of the rounded ones, a ReLU in some thousands opens or closes
        assert (other - one).norm() < {"float32": 1e-5, "tf32": 3e-2, "bf16": 1e-1}[
            precision
        ] * one.norm()


@pytest.mark.parametrize("argnums", [0, 1])
def test_a_network_uses_it_for_gradients_that_are_followed(
    argnums: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ConvNet(width=32).build((3, 32, 32), 10)
    assert model.has_kernels
    theta, x = model.init(Rng(0), device="cuda"), Rng(1).normal(20, 3, 32, 32, device="cuda")

    def loss(theta: Tensor, x: Tensor) -> Tensor:
        return model.logits(theta, x).log_softmax(-1)[:, 3].sum()

    with_kernel = autodiff.grad(loss, argnums)(theta, x)
    monkeypatch.setattr("pseudocore.models.norm_pool.kernels_allowed", lambda: False)
    without = autodiff.grad(loss, argnums)(theta, x)
    assert not torch.equal(with_kernel, without)
    assert (with_kernel - without).norm() < FLIPS * without.norm()


def test_what_is_differentiated_twice_or_batched_goes_through_torchs_layers() -> None:
    model = ConvNet(width=16).build((3, 16, 16), 10)
    thetas, x = model.init(Rng(0), num=2, device="cuda"), Rng(1).normal(4, 3, 16, 16, device="cuda")

    def loss(theta: Tensor) -> Tensor:
        return model.logits(theta, x).square().sum()

    twice = grad(lambda theta: grad(loss)(theta).square().sum())(thetas[0])
    assert twice.isfinite().all()
    assert twice.abs().max() > 0
    batched = vmap(grad(loss))(thetas)
    assert (batched[1] - autodiff.grad(loss)(thetas[1])).norm() < FLIPS * batched[1].norm()


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 16, 16)])
def test_second_derivatives_through_the_kernels_are_those_of_torchs_layers(
    shape: tuple[int, ...],
) -> None:
    model = ConvNet(width=32).build(shape, 10)
    theta, x, y = (
        model.init(Rng(0), device="cuda"),
        Rng(1).normal(10, *shape, device="cuda"),
        torch.arange(10, device="cuda"),
    )
    direction = Rng(2).normal(*theta.shape, device="cuda")

    def energy(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, y)

    def whole(theta: Tensor, x: Tensor) -> Tensor:
        return energy(model.logits(theta, x))

    exact = jvp(
        lambda theta: grad(whole, (0, 1))(theta, x.double()),
        (theta.double(),),
        (direction.double(),),
    )[1]
    composed = SimpleNamespace(outputs=model.logits, of=energy)
    found = autodiff._reverse_over_forward(composed, theta, x, direction)
    for ours, theirs in zip(found[:2], exact, strict=True):
        assert (ours - theirs).norm() < FLIPS * theirs.norm()
