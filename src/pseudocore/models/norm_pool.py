"""A block: a convolution whose bias has no effect, instance norm, ReLU, 2×2 average pool.

On a GPU the latter three are one kernel (`models/_triton/norm_pool.py`), and a first block never
writes its activations (`models/_triton/first_block.py`), wherever a pass is differentiated at most
once. Torch's own layers run everywhere else. In forward mode, for a second derivative, a first
convolution is a matrix product (`models/_triton/first_conv.py`).
"""

from collections.abc import Sequence
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from pseudocore.runtime.execution import kernels_allowed

MAX_INPUTS = 3
"""Channels of an image that kernels take: their nine neighbours and a 1 fit in 32 columns."""

SIZES = {(2**power, 2**power) for power in range(1, 6)}


class UnbiasedConv(nn.Conv2d):
    """A 3×3 convolution before an instance norm, which takes away what a bias adds: on a GPU the
    pass over memory is saved.

    The bias stays a parameter, as in the published networks; its gradient is zero, and without it
    that is not rounding noise.
    """

    def __init__(self, inputs: int, channels: int, padding: int) -> None:
        super().__init__(inputs, channels, 3, padding=padding, device="meta")
        self.has_kernel = inputs <= MAX_INPUTS and _has_triton()

    def forward(self, x: Tensor) -> Tensor:
        if self.has_kernel and _runs_kernels(x):
            from pseudocore.models._triton.first_conv import first_conv

            return first_conv(x, self.weight, int(self.padding[0]))
        return F.conv2d(x, self.weight, None if x.is_cuda else self.bias, padding=self.padding)


class NormPool(nn.GroupNorm):
    """Instance norm, ReLU, 2×2 average pool of images (channels, *size)."""

    def __init__(self, channels: int, size: Sequence[int]) -> None:
        super().__init__(channels, channels)
        # a program of the kernel holds all pixels of some channels of an image
        self.has_kernel = tuple(size) in SIZES and channels % 16 == 0 and _has_triton()

    def forward(self, x: Tensor) -> Tensor:
        if self.has_kernel and _runs_kernels(x):
            from pseudocore.models._triton.norm_pool import norm_pool

            return norm_pool(x, self.weight, self.bias, self.eps)
        return F.avg_pool2d(F.relu(super().forward(x)), 2)


class Block(nn.Module):
    """Of images of `inputs` channels that are of `size` after the convolution."""

    def __init__(self, inputs: int, channels: int, size: Sequence[int], padding: int) -> None:
        super().__init__()
        self.convolution = UnbiasedConv(inputs, channels, padding)
        self.norm_pool = NormPool(channels, size)
        even = all(side % 2 == 0 for side in size)
        self.has_kernel = self.convolution.has_kernel and channels % 16 == 0 and even

    def forward(self, x: Tensor) -> Tensor:
        norm, convolution = self.norm_pool, self.convolution
        if self.has_kernel and _runs_kernels(x) and not _moves(convolution.weight):
            from pseudocore.models._triton.first_block import first_block

            parameters = convolution.weight, norm.weight, norm.bias
            return first_block(x, *parameters, int(convolution.padding[0]), norm.eps)
        pooled: Tensor = norm(convolution(x))
        return pooled


def _has_triton() -> bool:
    return find_spec("triton") is not None


def _moves(weight: Tensor) -> bool:
    """Whether the pass is differentiated in forward mode."""
    return forward_ad.unpack_dual(weight).tangent is not None  # type: ignore[no-untyped-call]


def _runs_kernels(x: Tensor) -> bool:
    return x.is_cuda and x.dtype in (torch.float32, torch.bfloat16) and kernels_allowed()
