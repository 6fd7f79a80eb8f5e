"""The gradients of augmentation: transposes of its operations, of the kernels promised, under every
transform and compiled.
"""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._functorch.aot_autograd import aot_function
from torch.func import grad, vjp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from pseudocore.core.rng import Rng
from pseudocore.data import resample
from pseudocore.data.augment import DSA, OPERATIONS, Draw
from pseudocore.runtime import compiling

F64 = torch.float64
ADDING_AT_INDICES = (
    "index_put",
    "index_add",
    "scatter",
    "index_backward",
    "embedding",
    "put_",
    "sort",
    "grid_sampler",
)


class Kernels(TorchDispatchMode):
    """The names of all that is run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


def images(*shape: int, dtype: torch.dtype = F64) -> Tensor:
    return Rng(5).normal(*shape, dtype=dtype)


def adding(names: set[str]) -> set[str]:
    return {name for name in names if any(part in name for part in ADDING_AT_INDICES)}


def twice(change: Any, x: Tensor) -> Tensor:
    """A second derivative of what is linear: through a cube, and through the square of the first."""
    return grad(lambda x: grad(lambda x: change(x).pow(3).sum())(x).square().sum())(x)


def run_twice(change: Any) -> set[str]:
    x = images(3, 2, 6, 5).requires_grad_()
    with Kernels() as kernels:
        (first,) = torch.autograd.grad(change(x).pow(3).sum(), x, create_graph=True)
        torch.autograd.grad(first.square().sum(), x)
    return kernels.names


@pytest.mark.parametrize("siamese", [True, False])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_gradient_adds_at_indices(operation: str, siamese: bool) -> None:
    change = DSA(operation, siamese=siamese)
    draw = change.draw(Rng(3), 3)
    assert adding(run_twice(lambda x: change.apply(x, draw))) == set()


def test_indexing_would_be_noticed() -> None:
    places = torch.tensor([0, 0, 2])
    assert adding(run_twice(lambda x: x[:, :, places]))
    assert adding(run_twice(lambda x: x.gather(2, places.view(1, 1, 3, 1).expand(3, 2, 3, 5))))


@pytest.mark.parametrize("siamese", [True, False])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_gradient_is_the_transpose(operation: str, siamese: bool) -> None:
    change, x, y = (
        DSA(operation, siamese=siamese),
        images(3, 2, 6, 5),
        Rng(6).normal(3, 2, 6, 5, dtype=F64),
    )
    for number in range(10):
        draw = change.draw(Rng(number), 3)
        offset = change.apply(torch.zeros_like(x), draw)
        there = ((change.apply(x, draw) - offset) * y).sum()
        back = (x * vjp(lambda x: change.apply(x, draw), x)[1](y)[0]).sum()
        assert abs(float(there - back)) < 1e-12


@pytest.mark.parametrize("shape", [(6, 6), (7, 7), (6, 5), (3, 8), (1, 4), (1, 1)])
def test_a_turn_back_is_the_transposed_matrix_of_a_turn(shape: tuple[int, int]) -> None:
    """At any angle, and where places fall on pixels or half-way between them."""
    angle = torch.cat([torch.arange(-8, 9) * math.pi / 4, torch.linspace(-3, 3, 31)]).to(F64)
    size = shape[0] * shape[1]
    basis = torch.eye(size, dtype=F64).view(1, size, *shape).expand(len(angle), -1, -1, -1)
    there = resample._turned(basis, angle, back=False).flatten(2)
    back = resample._turned(basis, angle, back=True).flatten(2)
    torch.testing.assert_close(back, there.mT, atol=1e-13, rtol=0)
    assert 0 <= float(there.min()) <= float(there.max()) < 1 + 1e-12


def test_a_turn_back_of_single_precision_angles_fits_double_precision_images() -> None:
    x, y, angle = images(1, 3, 9, 9), images(1, 3, 9, 9).flip(2), torch.tensor([0.2])
    back = vjp(lambda x: resample.rotate(x, angle), x)[1](y)[0]
    assert abs(float((resample.rotate(x, angle) * y).sum() - (x * back).sum())) < 1e-12


@pytest.mark.parametrize("operation", ["crop", "scale", "rotate"])
def test_batches_of_batches(operation: str) -> None:
    change, x = DSA(operation, siamese=False), images(2, 3, 1, 6, 5)
    (draw,) = change.draw(Rng(1), 6)
    uniforms = draw.uniform.view(2, 3, 3)

    def along(x: Tensor, uniform: Tensor) -> Tensor:
        return twice(lambda x: change.apply(x, (Draw(operation, uniform),)), x)

    torch.testing.assert_close(
        vmap(along)(x, uniforms),
        torch.stack([along(*each) for each in zip(x, uniforms, strict=True)]),
    )


@pytest.mark.parametrize("operation", ["crop", "scale", "rotate"])
def test_images_keep_their_precision_where_networks_do_not(operation: str) -> None:
    change, x = DSA(operation), images(2, 3, 8, 8, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = change(x, Rng(0))
    assert torch.equal(inside, change(x, Rng(0)))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_compiled_gradients_are_those_same_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """All operations in one graph, as on a GPU: the compiler must take rotation with the gradient
    it has.
    """
    graphs: list[set[str]] = []

    def noted(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return graph

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        return aot_function(graph, fw_compiler=noted)

    change, x = DSA(), images(2, 3, 6, 5, dtype=torch.float32)
    (draw,) = change.draw(Rng(0), 2)

    def along(x: Tensor, draw: Draw) -> Tensor:
        return twice(lambda x: change.apply(x, (draw,)), x)

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    compiled = compiling.step(along)
    for place in range(len(OPERATIONS)):
        chosen = draw._replace(operation=torch.tensor(place))
        torch.testing.assert_close(compiled(x, chosen), along(x, chosen))
    assert len(graphs) == 1
    assert "aten.gather.default" in graphs[0]
    assert adding(graphs[0]) == set()
