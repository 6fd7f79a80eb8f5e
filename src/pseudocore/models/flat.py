"""A network as a function of one flat vector theta.

`theta` holds every parameter of the body, then the weight and bias of the linear head. With one
vector, samplers, experts and pools need no notion of layers; a batch of vectors (draws, parameters)
runs all draws at once.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.core.types import Statistics
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


class BatchNorm(nn.Module):
    """Batch normalisation whose statistics are values: this batch's when training, else those
    passed in as buffers.

    No running averages: on a coreset of a few dozen points they never settle, and hidden state
    would make a step impure.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if self.training:  # F.batch_norm, without its refusal of a single value
            fixed = None, None, True, 0.0, self.eps, torch.backends.cudnn.enabled
            return torch.batch_norm(x, self.weight, self.bias, *fixed)
        mean, var = cast(Tensor, self.mean), cast(Tensor, self.var)
        scale = self.weight * (var + self.eps).rsqrt()
        return x * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]


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
        self._training = copy.deepcopy(body).to("meta").train()
        self._fixed = copy.deepcopy(body).to("meta").eval()
        self._num_body = sum(self._sizes[:-2])
        centre, self._scale, bound = _initial_spread(body, num_features, num_classes, initial)
        self._centre_and_bound = {("cpu", torch.float32): (centre, bound)}
        self._description = dict(description or {})
        self._has_convolutions = any(isinstance(part, nn.Conv2d) for part in body.modules())
        kernels = [part.has_kernel for part in body.modules() if isinstance(part, NormPool)]
        self.has_kernels = bool(kernels) and all(kernels)
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
        pass, then the features: the output of the layer before, normalised, rectified and pooled.
        An input that two layers share comes once.
        """
        given: list[Tensor] = []

        def note(_: int, x: Tensor) -> None:
            if not any(x is earlier for earlier in given):
                given.append(x)

        module = self._training if statistics is None else self._fixed
        weighted = [part for part in module.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
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
            found[f"{name}.mean"], found[f"{name}.var"] = _batch_statistics(x)

        parts = self._training.named_modules()
        norms = {name: part for name, part in parts if isinstance(part, BatchNorm)}
        if norms:
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
        on_cpu_with_gradient = not x.is_cuda and torch.is_grad_enabled() and x.ndim == 4
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
        if self._has_convolutions and x.is_cuda and not keep_layout:
            x = x.contiguous(memory_format=torch.channels_last)  # which matrix units read
        named: dict[str, Tensor] = dict(zip(self._names, tensors, strict=False))  # but the head's
        named |= {name: named[own] for name, own in self._shared.items()}
        module = self._training if statistics is None else self._fixed
        values = {**named, **(statistics or {})}
        out: Tensor = functional_call(module, values, (x,), tie_weights=False)  # tied by name
        return out


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


def _batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.float() if x.dtype == torch.bfloat16 else x  # which rounds to three digits
    return x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)


def _initial_spread(
    body: nn.Module, num_features: int, num_classes: int, initial: Initial
) -> tuple[Tensor, Tensor, Tensor]:
    """Centre, natural scale and half-width of the initial uniform distribution of each parameter,
    in theta's order.
    """
    spread = {"weight": SPREAD[initial], "bias": 0.0 if initial == "flax" else SPREAD[initial]}
    rows: list[Tensor] = []

    def add(num: int, centre: float, scale: float, width: float) -> None:
        rows.append(torch.tensor([centre, scale, width]).expand(num, 3))

    for name, parameter in body.named_parameters():
        layer, _, kind = name.rpartition(".")
        owner = body.get_submodule(layer)
        if isinstance(owner, nn.Linear | nn.Conv2d):
            scale = 1 / math.sqrt(owner.weight[0].numel())
            add(parameter.numel(), 0.0, scale, spread[kind] * scale)
        elif isinstance(owner, nn.GroupNorm | BatchNorm):
            add(parameter.numel(), float(kind == "weight"), 1.0, 0.0)
        else:
            raise ConfigError(
                f"no initialisation is known for {name!r} of type {type(owner).__name__}",
                code="network-no-initialisation",
                layer=layer,
            )
    scale = 1 / math.sqrt(num_features)
    add(num_features * num_classes, 0.0, scale, spread["weight"] * scale)
    add(num_classes, 0.0, scale, spread["bias"] * scale)
    centre, natural, width = torch.cat(rows).unbind(1)
    return centre.contiguous(), natural.contiguous(), width.contiguous()
