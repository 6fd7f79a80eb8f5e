"""On a CUDA device: the numbers of the CPU, gradients without a race, no waiting."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudocore.core.rng import Rng
from pseudocore.data import digits
from pseudocore.data.augment import DSA, OPERATIONS
from pseudocore.data.preprocessing import make

pytestmark = pytest.mark.gpu


@pytest.fixture
def no_waiting() -> Iterator[None]:
    with warnings.catch_warnings(action="ignore"):  # that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


class FromTheCpu(Rng):
    """Draws as on the CPU, wherever they are asked for: a GPU's own generator makes others."""

    def __call__(self, *names: str | int) -> "FromTheCpu":
        return FromTheCpu(self.seed, (*self.path, *names))

    def draw(
        self,
        make: Callable[..., Tensor],
        *arguments: Any,
        device: torch.device | str,
        **options: Any,
    ) -> Tensor:
        return super().draw(make, *arguments, device="cpu", **options).to(device)


@pytest.mark.parametrize("siamese", [True, False])
@pytest.mark.parametrize("operation", [*OPERATIONS, "flip+color+crop_rotate"])
def test_augmentation_agrees_with_the_cpu(operation: str, siamese: bool) -> None:
    x, change = Rng(0).normal(8, 3, 16, 16), DSA(operation, siamese=siamese)
    torch.testing.assert_close(
        change(x.cuda(), FromTheCpu(1)).cpu(), change(x, Rng(1)), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("operation", [*OPERATIONS, "flip+color+crop_rotate"])
def test_augmentation_never_waits_for_the_device(operation: str, no_waiting: None) -> None:
    x = torch.ones(8, 3, 16, 16, device="cuda", requires_grad=True)
    DSA(operation)(x, Rng(1)).square().sum().backward()


@pytest.mark.parametrize("operation", ["crop", "scale", "rotate"])
def test_gradients_of_warps_are_bitwise_repeatable(operation: str) -> None:
    x = Rng(0).normal(64, 3, 32, 32).cuda().requires_grad_()
    first, *others = (
        torch.autograd.grad(DSA(operation)(x, Rng(1)).pow(3).sum(), x)[0] for _ in range(5)
    )
    assert all(torch.equal(first, other) for other in others)


def test_zca_fits_on_the_device_as_on_the_cpu() -> None:
    data = digits()
    on_cpu, on_gpu = make("zca", data), make("zca", data, device="cuda")
    x = data.test.x.float() / 255
    torch.testing.assert_close(on_gpu.apply(x.cuda()).cpu(), on_cpu.apply(x), atol=1e-4, rtol=0)
    torch.testing.assert_close(on_gpu.apply(x), on_cpu.apply(x), atol=1e-4, rtol=0)
