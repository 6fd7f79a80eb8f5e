"""Selection from rows of an array, without labels, network or data set."""

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.registry import did_you_mean
from pseudocore.selection import kernels, submodular
from pseudocore.selection.submodular import Concave, Objective

Similarity = Literal["gaussian", "cosine", "precomputed"]

OBJECTIVES = ("facility-location", "graph-cut", "log-det", "feature-based")

MOST_ROWS = 20_000
"""Rows above which the matrix of similarities would need more than 3.2 GB in double precision."""


class Selection(NamedTuple):
    """Rows chosen one by one; any beginning of them is the choice of a smaller number."""

    indices: npt.NDArray[np.int64]
    gains: npt.NDArray[np.float64]
    """What each row added to the objective; where they have become small, more rows add little."""


def select(
    x: Any,
    num: int,
    objective: str = "facility-location",
    *,
    initial: Any = None,
    similarity: Similarity = "gaussian",
    length: float | None = None,
    diversity: float = 0.5,
    noise: float = 0.1,
    concave: Concave = "sqrt",
) -> Selection:
    """Select rows of an array that stand for all of them.

    Args:
        x: Rows (n, ...): an array, a tensor or a frame of numbers; or, precomputed, the
            similarities (n, n).
        num: Rows to select.
        objective: `facility-location` (everyone near a chosen row), `graph-cut` (chosen rows near
            everyone and far from each other), `log-det` (most informative under a Gaussian
            process) or `feature-based` (some of every non-negative feature).
        initial: Rows taken before, which the selection adds to; they are not returned.
        similarity: `gaussian`, `cosine` (of non-negative rows), or `precomputed`.
        length: Of the Gaussian. Defaults to the median distance.
        diversity: Weight of distance between chosen rows, of graph-cut; 0 to 0.5.
        noise: Of log-det, beside similarities of 1.
        concave: Of feature-based: `sqrt` or `log`.

    Returns:
        Indices of the rows in order, and what each added.
    """
    if objective not in OBJECTIVES:
        raise ConfigError(
            f"unknown objective {objective!r}{did_you_mean(objective, OBJECTIVES)} "
            f"(known: {', '.join(OBJECTIVES)})",
            code="unknown-objective",
            objective=objective,
        )
    rows = _rows(x)
    before = None if initial is None else torch.as_tensor(np.asarray(initial, dtype=np.int64))
    made: Objective
    if objective == "feature-based":
        made = submodular.FeatureBased(rows, concave)
    else:
        matrix = _similarities(rows, similarity, length)
        if objective == "facility-location":
            made = submodular.FacilityLocation(matrix)
        elif objective == "graph-cut":
            made = submodular.GraphCut(matrix, diversity)
        else:
            made = submodular.LogDet(matrix, noise)
    chosen = submodular.maximise(made, num, before)
    return Selection(chosen.indices.numpy(), chosen.gains.numpy())


def _rows(x: Any) -> Tensor:
    values = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
    if values.ndim < 2 or not len(values) or values.dtype.kind not in "fiub":
        raise DataError(
            f"rows to select from must be an array of numbers (n, ...), not {values.dtype} of "
            f"shape {values.shape}",
            code="bad-rows",
            shape=tuple(values.shape),
        )
    rows = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64)).flatten(1)
    if not rows.isfinite().all():
        raise DataError("rows to select from hold NaN or infinite values", code="not-finite")
    return rows


def _similarities(rows: Tensor, kind: Similarity, length: float | None) -> Tensor:
    n = len(rows)
    if n > MOST_ROWS:
        raise DataError(
            f"the similarities of {n} rows do not fit into memory; select from at most "
            f"{MOST_ROWS} random ones, or take objective = 'feature-based'",
            code="too-many-rows",
            num=n,
        )
    if kind == "gaussian":
        return kernels.gaussian(rows, rows, length or kernels.median_distance(rows))
    if kind == "cosine":
        scaled = torch.nn.functional.normalize(rows)
        return (scaled @ scaled.T).clamp_min(0)
    if kind != "precomputed":
        raise ConfigError(
            f"unknown similarity {kind!r}; it is gaussian, cosine or precomputed",
            code="unknown-similarity",
            similarity=kind,
        )
    if rows.shape != (n, n) or not torch.allclose(rows, rows.T) or (rows < 0).any():
        raise DataError(
            f"precomputed similarities must be a symmetric matrix of numbers from 0 on, not of "
            f"shape {tuple(rows.shape)}",
            code="bad-similarities",
            shape=tuple(rows.shape),
        )
    return rows
