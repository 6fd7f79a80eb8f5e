"""Batch normalisation without running averages."""

from typing import cast

import torch
from torch import Tensor, nn


class BatchNorm(nn.Module):
    """Batch normalisation whose statistics are values: this batch's when training, else those
    passed in as buffers.

    No running averages: on a coreset of a few dozen points they never settle, and hidden state
    would make a step impure.
    """

    def __init__(self, channels: int, eps: float = 1e-5, *, affine: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if self.training:  # F.batch_norm, without its refusal of a single value
            fixed = None, None, True, 0.0, self.eps, torch.backends.cudnn.enabled
            return torch.batch_norm(x, self.weight, self.bias, *fixed)
        mean, var = cast(Tensor, self.mean), cast(Tensor, self.var)
        scale = (var + self.eps).rsqrt()
        scale = scale if self.weight is None else self.weight * scale
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        shape = (-1, *(1 for _ in x.shape[2:]))
        return x * scale.view(shape) + shift.view(shape)


def batch_norms(body: nn.Module) -> dict[str, BatchNorm]:
    """The batch norms of a network by name."""
    return {name: part for name, part in body.named_modules() if isinstance(part, BatchNorm)}


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel of a batch (n, channels, ...)."""
    x = x.float() if x.dtype == torch.bfloat16 else x  # which rounds to three digits
    axes = [axis for axis in range(x.ndim) if axis != 1]
    return x.mean(axes), x.var(axes, correction=0)
