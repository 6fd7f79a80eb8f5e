r"""What a stored image decodes to: itself, several smaller images (multi-formation), or these with
their mirror images.

Multi-formation: Kim et al. (2022b), "Dataset Condensation via Efficient Synthetic-Data
Parameterization", IDC.

A stored image of side $s$ is cut into `factor`² tiles of side $s/$`factor`, and each tile is
upsampled to side $s$ bilinearly: what networks see. That is linear in the stored image, $U T
U^\top$ for a tile $T$, row $i$ of $U$ being the weights of pixel $i$ among the tile's. So gradients
reach the stored pixels. With `mirror` the mirror image of each follows, as another point. All that
an image decodes to has its label, and an equal share of its weight.

A method calls `begin` for the initial stored images, `decode` for what networks see of them and
their labels (or `split`, `repeat` and `mirrored` one by one), and `provenance` for the coreset,
which holds the stored images. `decoded` gives what inference trains on.
"""

from collections.abc import Sequence
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
    problem: Problem, counts: Sequence[int], kind: Initial, rng: Rng, *, factor: int
) -> tuple[Tensor, Tensor]:
    """Initial stored images (M, ...), of `factor`² smaller ones each if not noise, and labels;
    `counts` of each class, in their order.
    """
    if factor == 1 or kind == "noise":  # noise made smaller would lose the scale of the data
        check(problem, factor=factor)
        return initial_inputs(problem, counts, kind, rng)
    check(problem, counts, factor=factor)
    x, y = initial_inputs(problem, [num * factor**2 for num in counts], kind, rng)
    tiles = avg_pool2d(x, factor)  # (M factor², channels, s / factor, s / factor)
    rows = tiles.reshape(-1, factor, factor, *tiles.shape[1:])  # (M, down, across, channels, h, w)
    return rows.permute(0, 3, 1, 4, 2, 5).reshape(-1, *problem.data.shape), y[:: factor**2]


def decode(x: Tensor, *rows: Tensor, factor: int = 1, mirror: bool = False) -> tuple[Tensor, ...]:
    """The images that stored ones (M, ...) decode to, with rows (M, ...) repeated for each."""
    if factor == 1 and not mirror:
        return x, *rows
    x, rows = split(x, factor), tuple(repeat(row, factor) for row in rows)
    return (mirrored(x), *(torch.cat([row, row]) for row in rows)) if mirror else (x, *rows)


def split(x: Tensor, factor: int) -> Tensor:
    """Upsampled tiles (M factor², channels, s, s) of stored images (M, channels, s, s)."""
    if factor == 1:
        return x
    channels, height, width = x.shape[1], x.shape[2] // factor, x.shape[3] // factor
    tiles = x.reshape(-1, channels, factor, height, factor, width)
    tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)
    return _bilinear(height, factor, x) @ tiles @ _bilinear(width, factor, x).mT


def repeat(y: Tensor, factor: int) -> Tensor:
    """One row of y (M, ...) for every tile."""
    return y if factor == 1 else y.unsqueeze(1).expand(-1, factor**2, *y.shape[1:]).flatten(0, 1)


def repeat_weight(weight: Tensor | None, factor: int) -> Tensor | None:
    """The relative weight of every tile, given that of every stored image."""
    return None if weight is None else repeat(weight, factor)


def mirrored(x: Tensor) -> Tensor:
    """Images (M, channels, height, width), followed by their mirror images, (2M, ...)."""
    return torch.cat([x, x.flip(-1)])


def provenance(*, factor: int = 1, mirror: bool = False) -> dict[str, Any]:
    """Entries of a coreset's provenance; none where images are stored one by one."""
    return {**({"formation": factor} if factor > 1 else {}), **({"mirror": True} if mirror else {})}


def decoded(problem: Problem, coreset: Coreset) -> Coreset:
    """The coreset with all decoded images as points of their own, of the same weight in all."""
    factor, mirror = coreset.provenance.get("formation", 1), coreset.provenance.get("mirror", False)
    if type(factor) is not int or factor < 1 or type(mirror) is not bool:
        raise ArtifactError(
            f"the coreset's provenance has formation = {factor!r} and mirror = {mirror!r}; they "
            f"must be a whole number of at least 1, and true or false",
            code="bad-provenance",
            formation=factor,
            mirror=mirror,
        )
    if factor == 1 and not mirror:
        return coreset
    check(problem, factor=factor, mirror=mirror)
    problem.check_fits(coreset)
    # In the network's units, as the method did: whitening does not commute with upsampling.
    shared = coreset.weight / (factor**2 * (2 if mirror else 1))
    x, y, weight = decode(
        problem.inputs(coreset.x), coreset.y, shared, factor=factor, mirror=mirror
    )
    x, done = problem.pixels(x).to(coreset.x.device), ("formation", "mirror")
    others = {name: value for name, value in coreset.provenance.items() if name not in done}
    return replace(coreset, x=x, y=y, weight=weight, indices=None, provenance=others)


def check(
    problem: Problem, counts: Sequence[int] = (), *, factor: int = 1, mirror: bool = False
) -> None:
    """Refuse data whose images cannot be mirrored, or cut into tiles."""
    data = problem.data
    if not (mirror or factor > 1):
        return
    if not data.is_images:
        tiles = f"formation = {factor} cuts images into tiles"
        raise ConfigError(
            f"{'mirror shows images mirrored' if mirror else tiles}, but {data.name!r} has "
            f"features of shape {data.shape}; leave it out",
            code="needs-images",
            shape=data.shape,
        )
    height, width = data.shape[1:]
    if height % factor or width % factor:
        raise ConfigError(
            f"formation = {factor} does not divide the {height}×{width} images of {data.name!r}; "
            f"use a factor that does, or 1",
            code="formation-does-not-divide",
            formation=factor,
            shape=data.shape,
        )
    for label, (num, available) in enumerate(zip(counts, data.class_counts.tolist(), strict=False)):
        if num * factor**2 > available:
            raise ConfigError(
                f"formation = {factor} starts {num} images of class {label} from "
                f"{num * factor**2} real ones, but {data.name!r} has {available}; use a smaller "
                "formation or start from noise",
                code="formation-needs-more-examples",
                label=label,
                formation=factor,
                available=available,
            )


def _bilinear(size: int, factor: int, like: Tensor) -> Tensor:
    """U (size · factor, size): pixel i lies at (i + ½) / factor − ½ among the tile's, and takes the
    edge's value beyond its edge.

    A matrix, as the gradient of torch's interpolation is not deterministic on a GPU.
    """
    places = torch.arange(size * factor, dtype=like.dtype, device=like.device)
    at = ((places + 0.5) / factor - 0.5).clamp(0, size - 1).unsqueeze(1)
    return (1 - (at - torch.arange(size, dtype=like.dtype, device=like.device)).abs()).relu()
