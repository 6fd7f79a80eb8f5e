"""A network as a function of one flat vector theta.

`theta` holds every parameter of the body, then the weight and bias of the linear head. With one
vector, samplers, experts and pools need no notion of layers; a batch of vectors (draws, parameters)
runs all draws at once.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from pseudocore.core.rng import Rng
from pseudocore.core.types import Statistics
from pseudocore.models.batch_norm import BatchNorm as BatchNorm
from pseudocore.models.batch_norm import batch_norms, batch_statistics
from pseudocore.models.initial import Convolution, initial_spread
from pseudocore.models.norm_pool import NormPool
from pseudocore.runtime.execution import is_eager

Name = TypeVar("Name")
Initial = Literal["torch", "lecun", "he", "flax"]
SPREAD = {"torch": 1.0, "lecun": math.sqrt(3), "he": math.sqrt(6), "flax": math.sqrt(3)}
"""Half-width of initial weights times sqrt(fan-in): torch's default, variance 1/fan-in, variance
2/fan-in, and 1/fan-in again. Biases start within the same bounds, but at 0 for `flax`, as in that
library.
"""

MIN_PIXELS_ONE_BY_ONE = 8192
"""Of all images together: from there on a CPU differentiates several networks faster one after the
other. With 100 images of CIFAR-10 that is 2.6 times as fast, with ten digits half as fast.
"""


class FlatModel:
    """`head(body(x))` with all parameters in one vector.

    `body` maps inputs to features (n, h). Batch norms normalise by the batch they are given, unless
    `statistics` from an earlier batch (usually the coreset) are passed along.
    """

    def __init__(
        self,
        body: nn.Module,
        num_features: int,
        num_classes: int,
        description: Mapping[str, Any] | None = None,
        initial: Initial = "torch",
    ) -> None:
        own_name = {parameter: name for name, parameter in body.named_parameters()}
        self._names = list(own_name.values())
        head = torch.Size([num_classes, num_features]), torch.Size([num_classes])
        self._shapes = [*(parameter.shape for parameter in own_name), *head]
        self._sizes = [shape.numel() for shape in self._shapes]
        self._shared = {
            name: own_name[parameter]
            for name, parameter in body.named_parameters(remove_duplicate=False)
            if own_name[parameter] != name
        }
        own_state = {f"{name}.{kind}" for name in batch_norms(body) for kind in ("mean", "var")}
        buffers = body.named_buffers(remove_duplicate=False)
        constants = {name: value for name, value in buffers if name not in own_state}
        self._constants = {("cpu", torch.float32): constants} if constants else {}
        self._training, self._fixed = (copy.deepcopy(body).to("meta") for _ in range(2))
        for norm in batch_norms(self._training).values():
            norm.train()
        for norm in batch_norms(self._fixed).values():
            norm.eval()
        self._num_body = sum(self._sizes[:-2])
        centre, self._scale, bound = initial_spread(
            body, num_features, num_classes, SPREAD[initial], flax=initial == "flax"
        )
        self._centre_and_bound = {("cpu", torch.float32): (centre, bound)}
        self._description = dict(description or {})
        self._has_convolutions = any(isinstance(part, Convolution) for part in body.modules())
        kernels = [part.has_kernel for part in body.modules() if isinstance(part, NormPool)]
        self.has_kernels = bool(kernels) and all(kernels)
        self.may_attend = False
        """Whether the body may hold attention, as a network from outside may."""
        self.learns_inputs = True
        """Whether features have a gradient in their inputs, without which no points can be learned."""
        self.num_features = num_features
        self.num_classes = num_classes
        self.num_parameters = sum(self._sizes)

    def init(
        self,
        rng: Rng,
        *,
        num: int | None = None,
        device: Any = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """A fresh theta, or (num, parameters) of them: weights uniform within
        ±`SPREAD`/sqrt(fan-in); norms at 1 and 0.
        """
        shape = (self.num_parameters,) if num is None else (num, self.num_parameters)
        kept, key = self._centre_and_bound, (str(device), dtype)
        if key not in kept:  # kept per device: a captured graph must not copy from the host
            centre, bound = kept["cpu", torch.float32]
            kept[key] = (centre.to(device, dtype), bound.to(device, dtype))
        centre, bound = kept[key]
        return centre + bound * (2 * rng.uniform(*shape, device=device, dtype=dtype) - 1)

    def layer_scale(
        self, *, device: Any = "cpu", dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """Centre and scale (parameters,) of a prior that keeps every layer's outputs near unit
        size: 0 and 1/sqrt(fan-in) for weights and biases of linear and convolutional layers, 1 and
        1 for gains of norms, 0 and 1 for their shifts.
        """
        centre, _ = self._centre_and_bound["cpu", torch.float32]
        return centre.to(device, dtype), self._scale.to(device, dtype)

    def features(self, theta: Tensor, x: Tensor, statistics: Statistics | None = None) -> Tensor:
        """Last-layer features (n, h); (draws, n, h) for thetas (draws, parameters)."""
        if theta.ndim == 1:
            return self._pass(self.tensors(theta), x, statistics)
        if self._goes_one_by_one(theta, x):
            each = []
            for draw, one in enumerate(theta):
                own = {name: value[draw] for name, value in (statistics or {}).items()}
                each.append(self.features(one, x, own or None))
            return torch.stack(each)
        # vmap has no norm of another layout, which one channel can pass for
        x = x.clone(memory_format=torch.contiguous_format)

        def passed(theta: Tensor, x: Tensor, own: Statistics | None) -> Tensor:
            return self._pass(self.tensors(theta), x, own, keep_layout=True)

        axes = (0, None, 0 if statistics else None)
        features: Tensor = vmap(passed, in_dims=axes)(theta, x, statistics)
        return features

    def logits(self, theta: Tensor, x: Tensor, statistics: Statistics | None = None) -> Tensor:
        """Class scores (n, classes); (draws, n, classes) for thetas (draws, parameters)."""
        if theta.ndim == 2:
            weight, bias = self.head(theta)
            return self.features(theta, x, statistics) @ weight.mT + bias.unsqueeze(-2)
        tensors = self.tensors(theta)
        return self._pass(tensors, x, statistics) @ tensors[-2].mT + tensors[-1]

    def layers(
        self, theta: Tensor, x: Tensor, statistics: Statistics | None = None
    ) -> list[Tensor]:
        """The inputs (n, width) of every layer with weights but the first, in the order of the
        pass. Then the features: the output of the layer before, normalised, rectified and pooled.
        An input that two layers share comes once.
        """
        given: list[Tensor] = []

        def note(_: int, x: Tensor) -> None:
            if not any(x is earlier for earlier in given):
                given.append(x)

        module = self._training if statistics is None else self._fixed
        weighted = [part for part in module.modules() if isinstance(part, nn.Linear | Convolution)]
        with _watched(enumerate(weighted[1:]), note):
            features = self.features(theta, x, statistics)
        return [*(inputs.flatten(1) for inputs in given), features]

    def head(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Weight (..., classes, h) and bias (..., classes) of the last layer."""
        flat, size = theta[..., self._num_body :], self._sizes[-2]
        return flat[..., :size].reshape(*theta.shape[:-1], *self._shapes[-2]), flat[..., size:]

    def tensors(self, theta: Tensor) -> list[Tensor]:
        """Every parameter of one theta (parameters,) in its own shape, the head's weight and bias
        last.
        """
        # One split, whose backward is one cat: slices would each fill a gradient with zeros.
        pieces = zip(torch.split(theta, self._sizes), self._shapes, strict=True)
        return [piece.view(shape) for piece, shape in pieces]

    def statistics(self, theta: Tensor, x: Tensor) -> dict[str, Tensor]:
        """Batch-norm statistics of a batch under theta, for use on other batches; empty for other
        norms.
        """
        if theta.ndim == 2:
            per_draw: dict[str, Tensor] = vmap(self.statistics, in_dims=(0, None))(theta, x)
            return per_draw
        found: dict[str, Tensor] = {}

        def note(name: str, x: Tensor) -> None:
            found[f"{name}.mean"], found[f"{name}.var"] = batch_statistics(x)

        if norms := batch_norms(self._training):
            with _watched(norms.items(), note):
                self.features(theta, x)
        return found

    def describe(self) -> dict[str, Any]:
        """Name, options and number of parameters."""
        return {**self._description, "num_parameters": self.num_parameters}

    def _goes_one_by_one(self, theta: Tensor, x: Tensor) -> bool:
        """Batched convolutions are grouped ones, which are slow but for the gradient of a few small
        images on a CPU. Compiled or transformed, one after the other takes long to trace.
        """
        if len(theta) == 1:
            return True
        on_cpu_with_gradient = not x.is_cuda and torch.is_grad_enabled() and x.ndim > 2
        small = on_cpu_with_gradient and len(x) * x[0, 0].numel() < MIN_PIXELS_ONE_BY_ONE
        return self._has_convolutions and is_eager() and not small

    def _pass(
        self,
        tensors: Sequence[Tensor],
        x: Tensor,
        statistics: Statistics | None,
        *,
        keep_layout: bool = False,
    ) -> Tensor:
        """The features (n, h) of a network given its parameters."""
        if self._has_convolutions and x.is_cuda and x.ndim == 4 and not keep_layout:
            x = x.contiguous(memory_format=torch.channels_last)  # which matrix units read
        named: dict[str, Tensor] = dict(zip(self._names, tensors, strict=False))  # but the head's
        named |= {name: named[own] for name, own in self._shared.items()}
        module = self._training if statistics is None else self._fixed
        values = {**self._buffers(tensors[0]), **named, **(statistics or {})}
        # the fast kernels of attention know no batch of thetas, and have no second derivative
        with sdpa_kernel(SDPBackend.MATH) if self.may_attend else nullcontext():
            out: Tensor = functional_call(module, values, (x,), tie_weights=False)  # tied by name
        return out

    def _buffers(self, like: Tensor) -> dict[str, Tensor]:
        """Constant buffers on a device; floats in its type."""
        kept, key = self._constants, (str(like.device), like.dtype)
        if kept and key not in kept:  # kept, as what starts a layer is
            kept[key] = {
                name: value.to(like.device, like.dtype if value.is_floating_point() else None)
                for name, value in kept["cpu", torch.float32].items()
            }
        return kept.get(key, {})


@contextmanager
def _watched(
    parts: Iterable[tuple[Name, nn.Module]], note: Callable[[Name, Tensor], None]
) -> Iterator[None]:
    """Call `note` with the name and input of every part that is passed through."""

    def hook(name: Name) -> Any:
        return lambda _, args: note(name, args[0])

    handles = [part.register_forward_pre_hook(hook(name)) for name, part in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
