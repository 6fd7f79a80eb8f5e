r"""Hilbert coresets: weighted points whose log-likelihoods add up to that of all data, by GIGA or by
Frank–Wolfe.

Campbell, Broderick (2019), "Automated scalable Bayesian inference via Hilbert coresets", and (2018),
"Bayesian coreset construction via greedy iterative geodesic ascent". With $g_n$ the vector of
point n's log-likelihood over posterior draws (`objectives/point_likelihoods.py`) and $g = \sum_n
g_n$,

$$ \min_{w \ge 0} \Big\lVert g - \sum_n w_n g_n \Big\rVert^2, \qquad \lVert w \rVert_0 \le M . $$

**Frank–Wolfe** stays on $\sum_n w_n \sigma_n = \sigma$, with $\sigma_n = \lVert g_n \rVert$ and
$\sigma = \sum_n \sigma_n$:

$$ f = \operatorname*{argmax}_n \big\langle g - g(w),\, g_n/\sigma_n \big\rangle, \quad
   w \leftarrow (1 - \gamma) w + \gamma \tfrac{\sigma}{\sigma_f} 1_f, \quad \gamma = \frac{\langle
   \frac\sigma{\sigma_f} g_f - g(w),\, g - g(w)\rangle}{\lVert \frac\sigma{\sigma_f} g_f -
   g(w)\rVert^2} . $$

**GIGA** works on the unit sphere, with $\ell = g / \lVert g \rVert$ and $\ell_n = g_n / \sigma_n$: it
walks from $\ell(w)$ along the geodesic towards the point whose direction there is nearest to that
of $\ell$,

$$ f = \operatorname*{argmax}_n \big\langle d, d_n \big\rangle, \quad d_n \propto \ell_n - \langle
   \ell_n, \ell(w)\rangle \ell(w), \quad \gamma = \frac{\zeta_0 - \zeta_1\zeta_2}{(\zeta_0 -
   \zeta_1\zeta_2) + (\zeta_1 - \zeta_0\zeta_2)}, $$

$\zeta_0 = \langle \ell, \ell_f\rangle$, $\zeta_1 = \langle \ell, \ell(w)\rangle$, $\zeta_2 = \langle
\ell_f, \ell(w)\rangle$, and is scaled at the end as fits $g$ best.

Cost: the posterior of the last layer on all data, then O(n · draws) per step.

Deviations:
  D1. Steps end when M distinct points are in use, and a class that has its share takes no new ones
      unless `balanced` is false. A walk that stalls before is completed by the points best aligned
      with what is left.
  D2. Weights are solved for anew at the end, the least error that the points can have; `weighting`
      "path" keeps those of the walk, as published.
  D3. Draws are of Laplace's approximation under the last layer, or of the reference (`draws`).
"""

import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Range
from pseudocore.core.likelihood import BOTH
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives.point_likelihoods import (
    Projections,
    point_model,
    projections,
    reference_projections,
)
from pseudocore.selection.budgets import SelectorSettings, groups
from pseudocore.selection.matching import non_negative
from pseudocore.training.pretrain import Pretraining

STEPS_PER_POINT = 20
"""Steps for each point of the budget, after which a walk that takes no new points has stalled."""
STALLED = 1e-12
"""Length of a direction, or improvement, below which only rounding is left."""
LARGE_ERROR, EXCESS = 0.1, 2.0
"""A relative error on fresh draws that is worth a warning, where it is also this many times that on
the draws behind the weights.
"""


class Room(NamedTuple):
    """How many more points each group may give."""

    group: Tensor  # of every point (n,)
    left: list[int]

    def open(self, taken: Tensor) -> Tensor:
        """Which points a step may use: those in use, and those of groups with room, (n,)."""
        room = torch.tensor(self.left, device=taken.device) > 0
        return taken | room[self.group]


class Walk(NamedTuple):
    """Where a greedy walk ended."""

    order: Tensor  # distinct points in order (num,)
    weight: Tensor  # theirs (num,)
    errors: list[float]
    """‖g − Σ w g‖ after every step."""


@dataclass(frozen=True, kw_only=True)
class HilbertCoreset(Pretraining, SelectorSettings):
    """Settings of both."""

    tasks = BOTH
    learns_total_weight: ClassVar[bool] = True
    assumes: ClassVar[str | None] = "hmc"

    num_projections: Annotated[int, Range(low=2)] = 500
    """Posterior draws that log-likelihoods are projected on."""
    draws: Literal["laplace", "reference"] = "laplace"
    """Posterior draws: of Laplace's approximation for the last layer, or of the full-data posterior
    of the whole network, the reference.
    """
    weighting: Literal["mass", "ones", "learned", "path"] = "learned"  # type: ignore[assignment]
    """Weight of a point. `mass`: the examples of its class over the points of its class. `ones`: 1.
    `learned`: of least error for the selected points. `path`: as the steps that selected them left
    it.
    """

    @property
    def needs_reference(self) -> bool | str:
        return self.draws == "reference"

    @abstractmethod
    def walk(self, vectors: Tensor, room: Room) -> Walk:
        """The greedy walk on vectors (n, draws)."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        name = methods.name_of(self)
        if self.draws == "reference":
            found = reference_projections(problem, self.num_projections, rng, name=name)
        else:
            points = point_model(problem, self, rng, name=name)
            found = projections(points, self.num_projections, rng)
        parts = groups(problem, self)
        group = torch.empty(problem.num_train, dtype=torch.int64, device=found.vectors.device)
        for number, part in enumerate(parts):
            group[part.indices] = number
        walk = self.walk(found.vectors, Room(group, [part.num for part in parts]))
        by_group = group[walk.order].argsort(stable=True)
        order, weight = walk.order[by_group], walk.weight[by_group]
        if self.weighting == "learned" or weight.sum() <= 0:
            weight = least_error(found.vectors, order)
        fitted, fresh = errors(found, order, weight)
        if self.weighting in ("learned", "path"):
            _warn_of_chance(name, found.vectors.shape[1], fitted, fresh)
        given = {"mass": None, "ones": torch.ones(len(weight))}.get(self.weighting, weight.cpu())
        coreset = problem.subset(order.cpu(), given)
        return coreset.with_provenance(projection_error={"fitted": fitted, "fresh": fresh})


@methods.register(
    "giga",
    kind="select",
    paper="Campbell & Broderick 2018, arXiv 1802.01737",
    targets="posterior",
    weights="yes",
)
@dataclass(frozen=True, kw_only=True)
class GIGA(HilbertCoreset):
    """Weighted points whose log-likelihoods add up to that of all data, by geodesic ascent."""

    def walk(self, vectors: Tensor, room: Room) -> Walk:
        return geodesic_ascent(vectors, room)


@methods.register(
    "frank-wolfe",
    kind="select",
    paper="Campbell & Broderick 2019, arXiv 1710.05053",
    targets="posterior",
    weights="yes",
)
@dataclass(frozen=True, kw_only=True)
class FrankWolfe(HilbertCoreset):
    """Weighted points whose log-likelihoods add up to that of all data, by Frank–Wolfe."""

    def walk(self, vectors: Tensor, room: Room) -> Walk:
        return frank_wolfe(vectors, room)


def frank_wolfe(vectors: Tensor, room: Room) -> Walk:
    """The walk within Σ w σ = Σ σ on vectors (n, draws)."""
    norms, goal = vectors.norm(dim=1), vectors.sum(0)
    corners = norms.sum() * _unit(vectors)  # σ g_n / σ_n

    def step(weight: Tensor, open: Tensor) -> tuple[Tensor, int] | None:
        now = weight @ vectors
        scores = corners @ (goal - now)
        best = int(scores.masked_fill(~open, -torch.inf).argmax())
        towards = corners[best] - now
        gain, length = towards @ (goal - now), towards.square().sum()
        if weight.sum() == 0:
            gamma = 1.0  # the first corner
        elif gain <= STALLED * length:
            return None
        else:
            gamma = min(1.0, float(gain / length))
        weight = (1 - gamma) * weight
        weight[best] += gamma * norms.sum() / norms[best].clamp_min(STALLED)
        return weight, best

    return _walk(vectors, room, step, lambda weight: weight)


def geodesic_ascent(vectors: Tensor, room: Room) -> Walk:
    """The walk on the unit sphere, for vectors (n, draws)."""
    norms, goal = vectors.norm(dim=1), vectors.sum(0)
    units, wanted = _unit(vectors), goal / goal.norm().clamp_min(STALLED)

    def step(share: Tensor, open: Tensor) -> tuple[Tensor, int] | None:
        now = share @ units
        if share.sum() == 0:
            best = int((units @ wanted).masked_fill(~open, -torch.inf).argmax())
            share = share.clone()
            share[best] = 1.0
            return share, best
        direction = wanted - (wanted @ now) * now
        if direction.norm() <= STALLED:
            return None
        along = units @ now
        lengths = (1 - along.square()).clamp_min(0).sqrt()  # of ℓ_n − ⟨ℓ_n, ℓ(w)⟩ ℓ(w)
        scores = (units @ direction) / lengths.clamp_min(STALLED)
        scores = scores.masked_fill(~open | (lengths < STALLED**0.5), -torch.inf)
        best = int(scores.argmax())
        zeta = wanted @ units[best], wanted @ now, units[best] @ now
        gain, rest = zeta[0] - zeta[1] * zeta[2], zeta[1] - zeta[0] * zeta[2]
        if not gain > STALLED:
            return None
        gamma = gain / (gain + rest.clamp_min(0))
        share = (1 - gamma) * share
        share[best] += gamma
        return share / (share @ units).norm(), best

    def scaled(share: Tensor) -> Tensor:
        weight: Tensor = share / norms.clamp_min(STALLED)
        found = weight @ vectors
        scale: Tensor = found @ goal / found.square().sum().clamp_min(STALLED)
        return weight * scale.clamp_min(0)

    return _walk(vectors, room, step, scaled)


def least_error(vectors: Tensor, order: Tensor) -> Tensor:
    """Weights (num,) of least ‖g − Σ w g‖ for some points."""
    chosen = vectors[order]
    # a solution to scale: the normal equations are as large as the square of the data's likelihood
    scale = chosen.square().sum(1).mean().clamp_min(torch.finfo(chosen.dtype).tiny)
    return non_negative(chosen @ chosen.mT / scale, chosen @ vectors.sum(0) / scale)


def errors(found: Projections, order: Tensor, weight: Tensor) -> tuple[float, float]:
    """‖g − Σ w g‖ / ‖g‖, on the draws behind the weights and on fresh ones."""
    return tuple(  # type: ignore[return-value]
        float((vectors.sum(0) - weight @ vectors[order]).norm() / vectors.sum(0).norm())
        for vectors in found
    )


def _walk(
    vectors: Tensor,
    room: Room,
    step: Callable[[Tensor, Tensor], tuple[Tensor, int] | None],
    weights: Callable[[Tensor], Tensor],
) -> Walk:
    """Steps until the budget is spent or nothing is gained; `weights` makes weights of what `step`
    keeps.
    """
    n, num, goal = len(vectors), sum(room.left), vectors.sum(0)
    room = Room(room.group, list(room.left))
    now, taken = vectors.new_zeros(n), torch.zeros(n, dtype=torch.bool, device=vectors.device)
    order, history = list[int](), list[float]()

    def take(place: int) -> None:
        taken[place] = True
        order.append(place)
        room.left[int(room.group[place])] -= 1

    for _ in range(STEPS_PER_POINT * num):
        if len(order) == num:
            break
        stepped = step(now, room.open(taken))
        if stepped is None:
            break
        now, place = stepped
        if not taken[place]:
            take(place)
        history.append(float((goal - weights(now) @ vectors).norm()))
    while len(order) < num:  # D1
        scores = _unit(vectors) @ (goal - weights(now) @ vectors)
        take(int(scores.masked_fill(taken | ~room.open(taken), -torch.inf).argmax()))
    places = torch.tensor(order, device=vectors.device)
    return Walk(places, weights(now)[places], history)


def _unit(vectors: Tensor) -> Tensor:
    lengths: Tensor = vectors.norm(dim=1, keepdim=True)
    return vectors / lengths.clamp_min(STALLED)


def _warn_of_chance(name: str, num: int, fitted: float, fresh: float) -> None:
    if fresh > LARGE_ERROR and fresh > EXCESS * fitted:
        warnings.warn(
            f"{name} fitted its weights to {num} draws with a relative error of {fitted:.2g}, which "
            f"is {fresh:.2g} on fresh draws; more num_projections would bring them together",
            stacklevel=3,
        )
