r"""Distances between two gradients of one network, which gradient matching makes small.

With $A_l$, $B_l$ the two gradients in the weights of layer $l$ and $A_{li}$ the part of output node
$i$ (one filter of a convolution, one row of a matrix),

| `Distance` | |
|---|---|
| `cosine` | $\sum_{l, i} 1 - \cos(A_{li}, B_{li})$ (Zhao, Mopuri, Bilen 2021) |
| `mse` | the mean of $(A - B)^2$ over all weights |
| `squares` | the sum of $(A - B)^2$ over all weights, which Kim et al. (2022, IDC) call mse |
| `l2` | $\lVert A - B \rVert_2$ over all parameters |

Biases and the gains of norms are one number a node, which has no direction: the cosine leaves them
out, and so do `mse` and `squares`. A node without a gradient on either side counts 1 in the cosine
and has no derivative.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Distance = Literal["cosine", "mse", "squares", "l2"]


def between(kind: Distance, one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    """The distance of two gradients, as tensors in the shapes of the parameters; differentiable."""
    if kind == "l2":
        difference = torch.cat([(a - b).flatten() for a, b in zip(one, other, strict=True)])
        return difference.square().sum().sqrt()
    weights = [(a, b) for a, b in zip(one, other, strict=True) if a.ndim > 1]
    if kind in ("mse", "squares"):
        squares = torch.cat([(a - b).flatten() for a, b in weights]).square()
        return squares.mean() if kind == "mse" else squares.sum()
    return torch.stack([_cosine(a.flatten(1), b.flatten(1)) for a, b in weights]).sum()


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    """1 − cosine of rows, summed over rows."""
    sizes = torch.linalg.vector_norm(one, dim=1) * torch.linalg.vector_norm(other, dim=1)
    there = sizes > torch.finfo(sizes.dtype).tiny
    cosine = (one * other).sum(1) / torch.where(there, sizes, 1)
    return (1 - torch.where(there, cosine, 0)).sum()
