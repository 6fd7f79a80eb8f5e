r"""What a stored image shows to networks: itself, several smaller ones (multi-formation), its
mirror image beside it.

Multi-formation: Kim et al. (2022b), "Dataset Condensation via Efficient Synthetic-Data
Parameterization", IDC.

A stored image of side $s$ is cut into `factor`² tiles of side $s/$`factor`, and each tile brought
to side $s$ bilinearly: what networks see. That is linear in the stored image, $U T U^\top$ for a
tile $T$ with row $i$ of $U$ the weights of pixel $i$ among the tile's, so the gradient reaches the
stored pixels. All tiles of an image share its label and its weight.

Where left and right mean nothing, a stored image says as much when mirrored: `mirrored` shows both,
as two points of one label.

Pieces for a method: `begin` for where stored images start, `shown` for what networks see of them
and their labels (or `split`, `repeat` and `mirrored` one by one), and `provenance` for the coreset,
which holds the stored images; `decoded` is what inference trains on.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from pseudocore.core.errors import ArtifactError, ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives.initial import Initial, initial_inputs


def begin(
    problem: Problem, per_class: int, kind: Initial, rng: Rng, *, factor: int
) -> tuple[Tensor, Tensor]:
    """Starting network inputs (M, ...) and their labels (M,): `factor`² initial images of a class
    in each, made smaller; noise as it is.
    """
    if factor == 1 or kind == "noise":  # noise made smaller would lose the scale of the data
        check(problem, factor=factor)
        return initial_inputs(problem, per_class, kind, rng)
    check(problem, per_class, factor=factor)
    x, y = initial_inputs(problem, per_class * factor**2, kind, rng)
    tiles = avg_pool2d(x, factor)  # (M factor², channels, s / factor, s / factor)
    rows = tiles.reshape(
        -1, factor, factor, *tiles.shape[1:]
    )  # (M, down, across, channels, height, width)
    return rows.permute(0, 3, 1, 4, 2, 5).reshape(-1, *problem.data.shape), y[:: factor**2]


def shown(x: Tensor, *rows: Tensor, factor: int = 1, mirror: bool = False) -> tuple[Tensor, ...]:
    """What stored images (M, ...) show, and the rows (M, ...) beside them, as of labels or weights,
    once for each.
    """
    seen = (split(x, factor), *(repeat(row, factor) for row in rows))
    return (mirrored(seen[0]), *(torch.cat([row, row]) for row in seen[1:])) if mirror else seen


def split(x: Tensor, factor: int) -> Tensor:
    """What stored images (M, channels, s, s) show: (M factor², channels, s, s), the tiles of an
    image beside each other.
    """
    if factor == 1:
        return x
    num, channels, height, width = (
        x.shape[0],
        x.shape[1],
        x.shape[2] // factor,
        x.shape[3] // factor,
    )
    tiles = x.reshape(
        num, channels, factor, height, factor, width
    )  # (M, channels, down, height, across, width)
    tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)
    return _bilinear(height, factor, x) @ tiles @ _bilinear(width, factor, x).mT


def repeat(y: Tensor, factor: int) -> Tensor:
    """One row of y (M, ...) for every tile."""
    return y if factor == 1 else y.unsqueeze(1).expand(-1, factor**2, *y.shape[1:]).flatten(0, 1)


def mirrored(x: Tensor) -> Tensor:
    """Images (M, channels, height, width) and, after all of them, their mirror images: (2M, ...)."""
    return torch.cat([x, x.flip(-1)])


def provenance(*, factor: int = 1, mirror: bool = False) -> dict[str, Any]:
    """What a coreset's provenance says of what its images show; nothing where each shows itself
    alone.
    """
    return {**({"formation": factor} if factor > 1 else {}), **({"mirror": True} if mirror else {})}


def decoded(problem: Problem, coreset: Coreset) -> Coreset:
    """The coreset with all that it shows as points of their own; the coreset itself where every
    image shows itself alone.
    """
    factor, mirror = coreset.provenance.get("formation", 1), coreset.provenance.get("mirror", False)
    if type(factor) is not int or factor < 1:
        raise ArtifactError(
            f"the coreset's provenance has formation = {factor!r}, where a whole number of at least 1 should be"
        )
    if type(mirror) is not bool:
        raise ArtifactError(
            f"the coreset's provenance has mirror = {mirror!r}, where true or false should be"
        )
    if factor == 1 and not mirror:
        return coreset
    check(problem, factor=factor, mirror=mirror)
    problem.check_fits(coreset)
    # In the network's units, where the method did it: whitening does not commute with it.
    x, y, weight = shown(
        problem.inputs(coreset.x), coreset.y, coreset.weight, factor=factor, mirror=mirror
    )
    others = {
        name: value
        for name, value in coreset.provenance.items()
        if name not in ("formation", "mirror")
    }
    return replace(
        coreset,
        x=problem.pixels(x).to(coreset.x.device),
        y=y,
        weight=weight,
        indices=None,
        provenance=others,
    )


def check(problem: Problem, per_class: int = 0, *, factor: int = 1, mirror: bool = False) -> None:
    """Whether images of this problem can be cut into tiles and mirrored, in one sentence where not."""
    data = problem.data
    if mirror and not data.is_images:
        raise ConfigError(
            f"mirror shows images mirrored, but {data.name!r} has features of shape {data.shape}; leave it off"
        )
    if factor == 1:
        return
    if not data.is_images:
        raise ConfigError(
            f"formation = {factor} cuts images into tiles, but {data.name!r} has features of shape {data.shape}; leave it at 1"
        )
    height, width = data.shape[1:]
    if height % factor or width % factor:
        raise ConfigError(
            f"formation = {factor} does not divide the {height}×{width} images of {data.name!r}; use a factor that does, or 1"
        )
    fewest = int(data.class_counts.min())
    if per_class * factor**2 > fewest:
        raise ConfigError(
            f"formation = {factor} starts {per_class} images per class from {per_class * factor**2} real ones, but the smallest class of "
            f"{data.name!r} has {fewest}; --ipc can be at most {fewest // factor**2}"
        )


def _bilinear(size: int, factor: int, like: Tensor) -> Tensor:
    """U (size · factor, size): pixel i lies at (i + ½) / factor − ½ among the tile's, and beyond
    its edge takes the edge's value.

    A product with it, not torch's interpolation, whose gradient on a GPU adds up in no fixed order.
    """
    places = torch.arange(size * factor, dtype=like.dtype, device=like.device)
    at = ((places + 0.5) / factor - 0.5).clamp(0, size - 1).unsqueeze(1)
    return (1 - (at - torch.arange(size, dtype=like.dtype, device=like.device)).abs()).relu()
