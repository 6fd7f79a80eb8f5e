"""A network as a function of one flat vector theta.

`theta` holds every parameter of the body, then the weight and bias of the linear head. One vector
means samplers, experts and pools need no notion of layers; a batch of vectors (draws, parameters)
runs all draws at once.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.models.norm_pool import NormPool
from pseudocore.runtime.execution import is_eager

Initial = Literal["torch", "lecun", "he", "flax"]
SPREAD = {"torch": 1.0, "lecun": math.sqrt(3), "he": math.sqrt(6), "flax": math.sqrt(3)}
"""Half-width of initial weights times sqrt(fan-in): torch's default, variance 1/fan-in, variance
2/fan-in, and 1/fan-in again.
Biases start within the same bounds as weights, except `flax`: that library's default starts them at
0."""


MANY_PIXELS = 8192
"""Of all images together, from which on several networks on a CPU are differentiated faster one
after the other: with 100 images of
CIFAR-10 2.6 times as fast, with ten digits half as fast."""


class BatchNorm(nn.Module):
    """Batch normalisation whose statistics are values: this batch's when training, those handed in
    as buffers otherwise.

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
            return torch.batch_norm(
                x,
                self.weight,
                self.bias,
                None,
                None,
                True,
                0.0,
                self.eps,
                torch.backends.cudnn.enabled,
            )
        mean, var = cast(Tensor, self.mean), cast(Tensor, self.var)
        scale = self.weight * (var + self.eps).rsqrt()
        return x * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]


class FlatModel:
    """`head(body(x))` with all parameters in one vector.

    `body` maps inputs to features (n, h). Batch-norm bodies normalise by the batch they are given,
    unless `statistics` from an earlier batch (usually the coreset) are passed along.
    """

    def __init__(
        self,
        body: nn.Module,
        num_features: int,
        num_classes: int,
        description: Mapping[str, Any] | None = None,
        initial: Initial = "torch",
    ) -> None:
        self._names = [name for name, _ in body.named_parameters()]
        head = torch.Size([num_classes, num_features]), torch.Size([num_classes])
        self._shapes = [*(p.shape for p in body.parameters()), *head]
        self._sizes = [shape.numel() for shape in self._shapes]
        own_name = {p: name for name, p in body.named_parameters()}
        self._shared = {
            name: own_name[p]
            for name, p in body.named_parameters(remove_duplicate=False)
            if own_name[p] != name
        }
        self._training, self._fixed = (
            copy.deepcopy(body).to("meta").train(mode) for mode in (True, False)
        )
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
        key = (str(device), dtype)
        if (
            key not in self._centre_and_bound
        ):  # kept per device: a captured graph must not copy from the host
            centre, bound = self._centre_and_bound["cpu", torch.float32]
            self._centre_and_bound[key] = (centre.to(device, dtype), bound.to(device, dtype))
        centre, bound = self._centre_and_bound[key]
        return centre + bound * (2 * rng.uniform(*shape, device=device, dtype=dtype) - 1)

    def layer_scale(
        self, *, device: Any = "cpu", dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """Centre and scale (parameters,) of a prior that keeps every layer's outputs near unit
        size.

        0 and 1/sqrt(fan-in) for weights and biases of linear and convolutional layers; gains of
        norms at 1, shifts at 0, both of scale 1.
        """
        centre, _ = self._centre_and_bound["cpu", torch.float32]
        return centre.to(device, dtype), self._scale.to(device, dtype)

    def features(
        self, theta: Tensor, x: Tensor, statistics: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Last-layer features (n, h); (draws, n, h) for thetas (draws, parameters)."""
        if theta.ndim == 2 and self._goes_one_by_one(theta, x):
            each = [
                {name: value[draw] for name, value in (statistics or {}).items()} or None
                for draw in range(len(theta))
            ]
            return torch.stack(
                [self.features(one, x, own) for one, own in zip(theta, each, strict=True)]
            )
        if theta.ndim == 2:
            axes = (0, None, 0 if statistics else None)
            x = x.clone(
                memory_format=torch.contiguous_format
            )  # vmap knows no norm of another layout, which one channel can pass for
            return vmap(
                lambda theta, x, own: self._passed(self._pieces(theta), x, own, as_it_is=True),
                in_dims=axes,
            )(theta, x, statistics)
        return self._passed(self._pieces(theta), x, statistics)

    def layers(
        self, theta: Tensor, x: Tensor, statistics: Mapping[str, Tensor] | None = None
    ) -> list[Tensor]:
        """What every layer with weights but the first is given, in the order of the pass, each (n,
        width); the last are `features`.

        That is the output of the layer before, normalised, rectified and pooled. Two layers that
        are given the same count once.
        """
        given: list[Tensor] = []

        def record(_: nn.Module, args: tuple[Tensor]) -> None:
            if not any(args[0] is earlier for earlier in given):
                given.append(args[0])

        module = self._training if statistics is None else self._fixed
        weighted = [part for part in module.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
        handles = [part.register_forward_pre_hook(record) for part in weighted[1:]]
        try:
            features = self.features(theta, x, statistics)
        finally:
            for handle in handles:
                handle.remove()
        return [*(inputs.flatten(1) for inputs in given), features]

    def logits(
        self, theta: Tensor, x: Tensor, statistics: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Class scores (n, classes); (draws, n, classes) for thetas (draws, parameters)."""
        if theta.ndim == 2:
            weight, bias = self.head(theta)
            return self.features(theta, x, statistics) @ weight.mT + bias.unsqueeze(-2)
        pieces = self._pieces(theta)
        return self._passed(pieces, x, statistics) @ pieces[-2].mT + pieces[-1]

    def head(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Weight (..., classes, h) and bias (..., classes) of the last layer."""
        flat = theta[..., self._num_body :]
        num_weights = self.num_features * self.num_classes
        weight = flat[..., :num_weights].reshape(
            *theta.shape[:-1], self.num_classes, self.num_features
        )
        return weight, flat[..., num_weights:]

    def tensors(self, theta: Tensor) -> list[Tensor]:
        """Every parameter of one theta (parameters,) in its own shape, in theta's order: the head's
        weight and bias last.
        """
        return self._pieces(theta)

    def statistics(self, theta: Tensor, x: Tensor) -> dict[str, Tensor]:
        """Batch-norm statistics of a batch under theta, for use on other batches; empty for other
        norms.
        """
        if theta.ndim == 2:
            per_draw: dict[str, Tensor] = vmap(self.statistics, in_dims=(0, None))(theta, x)
            return per_draw
        found: dict[str, Tensor] = {}

        def record(name: str) -> Any:
            def hook(_: nn.Module, args: tuple[Tensor]) -> None:
                found[f"{name}.mean"], found[f"{name}.var"] = _batch_statistics(args[0])

            return hook

        norms = {
            name: part
            for name, part in self._training.named_modules()
            if isinstance(part, BatchNorm)
        }
        if not norms:
            return {}
        handles = [part.register_forward_pre_hook(record(name)) for name, part in norms.items()]
        try:
            self.features(theta, x)
        finally:
            for handle in handles:
                handle.remove()
        return found

    def describe(self) -> dict[str, Any]:
        return {**self._description, "num_parameters": self.num_parameters}

    def _goes_one_by_one(self, theta: Tensor, x: Tensor) -> bool:
        """Batched convolutions are grouped ones, which are slow but for the gradient of a few small
        images on a CPU; written out in what
        compiles or is transformed, many take long."""
        if len(theta) == 1:
            return True
        small = (
            not x.is_cuda
            and torch.is_grad_enabled()
            and x.ndim == 4
            and len(x) * x[0, 0].numel() < MANY_PIXELS
        )
        return self._has_convolutions and is_eager() and not small

    def _pieces(self, theta: Tensor) -> list[Tensor]:
        """As `tensors`. One split, whose way back is one `cat`: slices would each fill a gradient
        with zeros, to be added up.
        """
        return [
            piece.view(shape)
            for piece, shape in zip(torch.split(theta, self._sizes), self._shapes, strict=True)
        ]

    def _passed(
        self,
        pieces: Sequence[Tensor],
        x: Tensor,
        statistics: Mapping[str, Tensor] | None,
        *,
        as_it_is: bool = False,
    ) -> Tensor:
        """The features (n, h) of a network in pieces."""
        if self._has_convolutions and x.is_cuda and not as_it_is:
            x = x.contiguous(
                memory_format=torch.channels_last
            )  # the layout of a GPU's matrix units
        module = self._training if statistics is None else self._fixed
        named = dict(zip(self._names, pieces, strict=False))  # the head is not the module's
        named |= {name: named[own] for name, own in self._shared.items()}
        out: Tensor = functional_call(
            module, {**named, **(statistics or {})}, (x,), tie_weights=False
        )  # they are, by name
        return out


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
    centre: list[Tensor] = []
    scale: list[Tensor] = []
    bound: list[Tensor] = []

    def add(num: int, at: float, unit: float, width: float) -> None:
        for values, value in ((centre, at), (scale, unit), (bound, width)):
            values.append(torch.full((num,), value))

    for name, parameter in body.named_parameters():
        layer, _, kind = name.rpartition(".")
        owner = body.get_submodule(layer)
        if isinstance(owner, nn.Linear | nn.Conv2d):
            unit = 1 / math.sqrt(owner.weight[0].numel())
            add(parameter.numel(), 0.0, unit, spread[kind] * unit)
        elif isinstance(owner, nn.GroupNorm | BatchNorm):
            add(parameter.numel(), float(kind == "weight"), 1.0, 0.0)
        else:
            raise ConfigError(
                f"no initialisation is known for layer {name!r} of type {type(owner).__name__}"
            )
    unit = 1 / math.sqrt(num_features)
    add(num_features * num_classes, 0.0, unit, spread["weight"] * unit)
    add(num_classes, 0.0, unit, spread["bias"] * unit)
    return torch.cat(centre), torch.cat(scale), torch.cat(bound)
