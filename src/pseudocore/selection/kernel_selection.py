r"""Rows of a matrix chosen through a kernel: herding, thinning, Stein thinning.

All take distinct rows and see the kernel a block at a time; ties go to the lowest index.
"""

import math

import torch
from torch import Tensor

from pseudocore.core.rng import Rng
from pseudocore.selection.kernels import Kernel, mean_over

DELTA = 0.5
"""Probability of failure that kernel thinning's walk is balanced for."""


def herding(kernel: Kernel, n: int, num: int, references: Tensor) -> Tensor:
    r"""Indices (num,) of rows, each
    $\operatorname{argmax}_i \mu(i) - \frac1{t+1} \sum_{s<t} k(i, i_s)$, with $\mu$ the mean over
    references (Chen, Welling & Smola 2010).
    """
    mean, every = mean_over(kernel, n, references), torch.arange(n)
    total, taken = torch.zeros_like(mean), torch.zeros(n, dtype=torch.bool)
    order = []
    for step in range(num):
        value = (mean - total / (step + 1)).masked_fill(taken, -math.inf)
        index = value.argmax(0, keepdim=True)
        taken[index] = True
        total += kernel(every, index)[:, 0].double()
        order.append(index)
    return torch.cat(order)


def stein_thinning(kernel: Kernel, diagonal: Tensor, n: int, num: int) -> Tensor:
    r"""Indices (num,) of rows, each $\operatorname{argmin}_i \frac12 p(i, i) + \sum_{s<t} p(i, i_s)$
    (Riabiz et al. 2022).
    """
    total, every = diagonal.double() / 2, torch.arange(n)
    taken, order = torch.zeros(n, dtype=torch.bool), []
    for _ in range(num):
        index = total.masked_fill(taken, math.inf).argmin(0, keepdim=True)
        taken[index] = True
        total = total + kernel(every, index)[:, 0].double()
        order.append(index)
    return torch.cat(order)


def thinning(
    kernel: Kernel, n: int, num: int, references: Tensor, rng: Rng, *, most: int
) -> Tensor:
    """Indices (num,) of rows, by kernel thinning (Dwivedi & Mackey 2024): num · 2^m random rows, not
    more than `most`, are halved m times by a balanced walk. The best of the 2^m parts is refined.
    """
    rounds = int(math.log2(max(1, min(n, most) // num)))
    start = rng("start").permutation(n)[: num * 2**rounds]
    parts = start[None]
    for level in range(rounds):
        parts = _halved(kernel, parts, rng("halve", level), DELTA / max(1, rounds * len(start)))
    mean = mean_over(kernel, n, references)
    spread = torch.stack([_discrepancy(kernel, part, mean) for part in parts])
    return _refined(kernel, parts[int(spread.argmin())], mean, n)


def _halved(kernel: Kernel, parts: Tensor, rng: Rng, delta: float) -> Tensor:
    """Each part (p, 2 s) as two (2 p, s). Of every pair of rows one goes to either, by a coin that
    is biased against the difference of kernel sums so far.
    """
    num_parts, size = parts.shape
    pairs = parts.view(num_parts, size // 2, 2)
    # ⟨k_x − k_x', k_y − k_y'⟩ between the differences of pairs, (p, s, s); b² on the diagonal
    difference = torch.stack([_between_pairs(kernel, *part.unbind(1)) for part in pairs])
    square = difference.diagonal(dim1=1, dim2=2)
    sign = torch.zeros(num_parts, size // 2, dtype=torch.float64)
    sigma = torch.zeros(num_parts, dtype=torch.float64)
    coins = rng.uniform(num_parts, size // 2).double()
    log_term = math.sqrt(2 * math.log(2 / delta))
    for pair in range(size // 2):
        b2 = square[:, pair].clamp(min=0)
        limit = torch.maximum(b2.sqrt() * sigma * log_term, b2).clamp(min=1e-300)
        growth = 1 + (b2 - 2 * limit) * sigma.square() / limit.square()
        sigma = (sigma.square() + b2 * growth.clamp(min=0)).sqrt()
        # sum over all seen minus twice that over the first half: − Σ signs ⟨·, ·⟩
        alpha = -(sign * difference[:, pair]).sum(1)  # later signs are still 0
        swap = coins[:, pair] < (0.5 * (1 - (alpha / limit))).clamp(0, 1)
        sign[:, pair] = torch.where(swap, -1.0, 1.0)
    is_second = (sign < 0).long()
    first = pairs.gather(2, is_second[..., None])[..., 0]
    second = pairs.gather(2, 1 - is_second[..., None])[..., 0]
    return torch.stack([first, second], 1).reshape(2 * num_parts, size // 2)


def _between_pairs(kernel: Kernel, x: Tensor, y: Tensor) -> Tensor:
    return (kernel(x, x) - kernel(x, y) - kernel(y, x) + kernel(y, y)).double()


def _discrepancy(kernel: Kernel, part: Tensor, mean: Tensor) -> Tensor:
    """MMD² to what `mean` is over, without its own constant."""
    return kernel(part, part).double().mean() - 2 * mean[part].mean()


def _refined(kernel: Kernel, part: Tensor, mean: Tensor, n: int) -> Tensor:
    """Each row in turn replaced by the one that lowers the discrepancy most."""
    every, num, part = torch.arange(n), len(part), part.clone()
    columns = kernel(every, part).double()  # (n, num)
    total, taken = columns.sum(1), torch.zeros(n, dtype=torch.bool)
    taken[part] = True
    own = _diagonal(kernel, n)
    for place in range(num):
        without = total - columns[:, place]
        taken[part[place]] = False
        cost = (own + 2 * without) / num - 2 * mean
        index = cost.masked_fill(taken, math.inf).argmin(0, keepdim=True)
        if cost[index] >= cost[part[place]]:
            index = part[place : place + 1].clone()
        taken[index] = True
        if index != part[place]:
            columns[:, place] = kernel(every, index)[:, 0].double()
        part[place], total = index[0], without + columns[:, place]
    return part


def _diagonal(kernel: Kernel, n: int, block: int = 256) -> Tensor:
    parts = torch.split(torch.arange(n), block)
    return torch.cat([kernel(part, part).diagonal().double() for part in parts])
