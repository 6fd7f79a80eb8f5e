r"""Orthogonal matching pursuit with non-negative weights: few atoms whose weighted sum is near a
target.

With atoms $g_i$, target $b$ and ridge $\lambda$, beginning with $S_0 = \emptyset$,

$$ j_{t+1} = \operatorname*{argmax}_{j \notin S_t}
   \langle g_j,\, b - \sum_{s \in S_t} w_s g_s \rangle, \qquad
   w = \operatorname*{argmin}_{w \ge 0} \lVert b - \sum_{s \in S_{t+1}} w_s g_s \rVert^2
   + \lambda \lVert w \rVert^2 . $$

Only inner products enter, so atoms may be of any length. Ties go to the lowest index. The weights
are those of an active-set solver (Lawson & Hanson 1974) that starts from the last solution and
keeps a Cholesky factor of the atoms in use: $O(t^2)$ for a choice that drops none of them, and
$O(n\,t)$ for the residual.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.runtime.reporting import report
from pseudocore.selection.greedy import check_num

SLACK = 1e-10
"""Share of the largest gradient below which a gradient counts as zero."""


def matching_pursuit(
    inner: Callable[[Tensor], Tensor], target: Tensor, num: int, *, ridge: float
) -> tuple[Tensor, Tensor]:
    """Indices (num,), in order, of distinct atoms, and their non-negative weights (num,) in double
    precision.

    `target` (n,) holds the inner products of the n atoms with the target, `inner` gives those of
    one atom (1,) with all n. An atom whose weight would be negative keeps its place with weight 0.
    """
    n = len(target)
    check_num(num, n)
    if not ridge >= 0:
        raise ConfigError(f"ridge = {ridge} must be at least 0", code="negative-ridge", ridge=ridge)
    target = _finite(target.detach())
    products = target.new_empty(num, n)  # inner products of the selected atoms with all
    solver, order = _NonNegative(num, ridge, target), target.new_zeros(num, dtype=torch.int64)
    residual, taken = target, torch.zeros_like(target, dtype=torch.bool)
    for pick in range(num):
        index = residual.masked_fill(taken, -torch.inf).argmax(0, keepdim=True)
        taken[index] = True
        order[pick] = index[0]
        report("selecting", pick + 1, num)
        products[pick] = _finite(inner(index).detach())
        weight = solver.extend(products[pick, order[: pick + 1]], target[index[0]])
        residual = target - weight.to(target) @ products[: pick + 1]
    return order, weight


def non_negative(gram: Tensor, target: Tensor, *, ridge: float = 0.0) -> Tensor:
    """The w ≥ 0 (m,) of least wᵀ(G + λI)w − 2bᵀw, in double precision."""
    solver = _NonNegative(len(target), ridge, target)
    for num in range(1, len(target) + 1):
        weight = solver.extend(gram[num - 1, :num], target[num - 1])
    return weight


class _NonNegative:
    r"""$\min_{w \ge 0} w^\top (G + \lambda I) w - 2 b^\top w$ in double precision, for G and b that
    grow by one row at a time.
    """

    def __init__(self, num: int, ridge: float, like: Tensor) -> None:
        self.ridge = ridge
        self.gram = like.new_zeros(num, num, dtype=torch.float64)
        self.b = like.new_zeros(num, dtype=torch.float64)
        self.weight = like.new_zeros(0, dtype=torch.float64)
        self.used: list[int] = []  # atoms of non-zero weight, in the order of the factor
        self.factor = torch.zeros_like(self.gram)  # of G + ridge among them
        self.solved = torch.zeros_like(self.b)  # their b, divided by the factor

    def extend(self, row: Tensor, b: Tensor) -> Tensor:
        """The solution (t,) with one more atom, of inner products `row` (t,) with all so far."""
        t = len(row)
        self.gram[t - 1, :t] = self.gram[:t, t - 1] = row.double()
        self.b[t - 1] = b
        self.weight = torch.cat([self.weight, self.weight.new_zeros(1)])
        slack = SLACK * float(self.b.abs().max())
        refused: list[int] = []  # atoms that only rounding would use
        while idle := sorted(set(range(t)).difference(self.used, refused)):
            gradient = self.b[idle] - self.gram[idle, :t] @ self.weight
            place = int(gradient.argmax())
            if not float(gradient[place]) > slack:
                break
            if not (self._enter(idle[place]) and self._descend(idle[place])):
                refused.append(idle[place])
        return self.weight

    def _enter(self, atom: int) -> bool:
        """Add an atom to those in use, unless it depends on them, as a duplicate without ridge."""
        t = len(self.used)
        row = self._solve(t, self.gram[self.used, atom])
        own = float(self.gram[atom, atom]) + self.ridge
        left = own - float(row @ row)
        if not left > 1e-12 * own:
            return False
        self.factor[t, :t] = row
        self.factor[t, t] = left**0.5
        self.solved[t] = (self.b[atom] - row @ self.solved[:t]) / left**0.5
        self.used.append(atom)
        return True

    def _descend(self, entered: int) -> bool:
        """Solve for the atoms in use, dropping negative ones; whether the new one stays."""
        while self.used:
            t = len(self.used)
            goal = torch.linalg.solve_triangular(
                self.factor[:t, :t].T, self.solved[:t].unsqueeze(1), upper=True
            ).squeeze(1)
            now, blocked = self.weight[self.used], goal <= 0
            if not blocked.any():
                self.weight[self.used] = goal
                break
            share = (now / (now - goal)).masked_fill(~blocked, torch.inf)
            self.weight[self.used] = torch.lerp(now, goal, share.min())
            places = (share <= share.min()).nonzero().flatten().tolist()
            self._drop([self.used[place] for place in places])
        return entered in self.used

    def _drop(self, atoms: list[int]) -> None:
        self.weight[atoms] = 0
        self.used = [atom for atom in self.used if atom not in atoms]
        t = len(self.used)
        kept = self.gram[self.used][:, self.used]
        kept.diagonal().add_(self.ridge)
        self.factor[:t, :t] = torch.linalg.cholesky(kept)
        self.solved[:t] = self._solve(t, self.b[self.used])

    def _solve(self, t: int, right: Tensor) -> Tensor:
        """The factor of the first t atoms in use, inverted, times `right` (t,)."""
        factor = self.factor[:t, :t]
        solved: Tensor = torch.linalg.solve_triangular(factor, right.unsqueeze(1), upper=False)
        return solved[:, 0]


def _finite(products: Tensor) -> Tensor:
    if not products.isfinite().all():
        raise DataError(
            "gradients to match hold NaN or infinite values, so the network behind them diverged",
            code="gradients-not-finite",
        )
    return products
