"""A coreset as a page shows it: pictures by class, points of the plane, or the first few numbers;
soft labels as a heat map.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pseudocore.core.types import Coreset
from pseudocore.report import svg
from pseudocore.store.png import encode_png, to_uint8

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_SHOWN = 100
"""Points of one coreset on a page; a note says how many are left out."""

_MAX_ROWS, _MAX_COLUMNS = 10, 8
_MARKERS = "osD^vP*X"


class Numbers(NamedTuple):
    """A small table."""

    head: list[str]
    rows: list[list[str]]


class Gallery(NamedTuple):
    """What there is to see of a coreset."""

    pictures: dict[str, list[svg.Image]]
    """By class."""
    figures: list[svg.Image]
    numbers: Numbers | None
    notes: list[str]

    @property
    def is_tiles(self) -> bool:
        """One picture per class: they can stand side by side under their names."""
        return all(len(pictures) == 1 for pictures in self.pictures.values())


def show(coreset: Coreset, class_names: Sequence[str]) -> Gallery:
    """The gallery of a coreset; `class_names` may be empty."""
    labels = coreset.labels.tolist()
    shown = _shown(labels)
    is_numbers = coreset.task == "regression"
    classes = [_name(label, class_names) for label in labels]
    if is_numbers:
        flat = coreset.x.ndim == 2 and coreset.x.shape[1] == 2
        classes = ["points" if flat else f"{value:.4g}" for value in coreset.y[:, 0].tolist()]
    notes = _notes(coreset)
    pictures: dict[str, list[svg.Image]] = {}
    figures: list[svg.Image] = []
    numbers = None
    if coreset.x.ndim == 4 and coreset.x.shape[1] in (1, 3):
        pictures = _pictures(coreset, shown, classes)
    elif coreset.x.ndim == 2 and coreset.x.shape[1] == 2:
        order = sorted(range(len(labels)), key=lambda point: labels[point])
        figures.append(scatter(coreset.x[order], [classes[point] for point in order]))
    else:
        numbers = _numbers(coreset.x, _shown(labels, _MAX_ROWS), classes)
        if is_numbers:
            numbers = Numbers(["target", *numbers.head[1:]], numbers.rows)
        notes.append(
            f"The points have shape {tuple(coreset.x.shape[1:])}, so their first numbers stand in "
            "for pictures."
        )
    if coreset.is_soft and not is_numbers:
        columns = [_name(label, class_names) for label in range(coreset.y.shape[1])]
        rows = [classes[point] for point in shown]
        figures.append(heat_map(coreset.y[shown], rows, columns))
    if len(shown) < len(labels) and (pictures or coreset.is_soft):
        most = max(1, MAX_SHOWN // len(set(labels)))
        notes.insert(0, f"Showing {len(shown)} of {len(labels)} points, at most {most} of a class.")
    return Gallery(pictures, figures, numbers, notes)


def scatter(x: Tensor, classes: Sequence[str]) -> svg.Image:
    """Points of the plane (M, 2), their classes distinguished by colour and shape."""

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        points, labels = x.double().numpy(), np.asarray(classes)
        names = list(dict.fromkeys(classes))
        for place, name in enumerate(names):
            own, style = points[labels == name], place % len(svg.PALETTE)
            marker = _MARKERS[(place // len(svg.PALETTE) + style) % len(_MARKERS)]
            look: dict[str, Any] = {"color": svg.PALETTE[style], "marker": marker, "s": 34}
            look |= {"edgecolors": svg.INK, "linewidths": 0.4, "label": svg.plain_text(name, 18)}
            axes.scatter(own[:, 0], own[:, 1], **look)
        axes.set(xlabel="feature 1", ylabel="feature 2")
        axes.grid()
        if len(names) <= 12:
            figure.legend(loc="outside right upper", title="class", title_fontsize=8)

    alt = f"scatter plot of the {len(x)} points by class"
    return svg.figure(paint, alt, "The points, by class.")


def heat_map(values: Tensor, row_classes: Sequence[str], names: Sequence[str]) -> svg.Image:
    """Soft labels (points, classes), a row per point; in two hues around zero where some are
    negative.
    """

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        grid = values.double().numpy()
        high = float(np.abs(grid).max()) or 1.0
        hues, low = ("PuOr_r", -high) if (grid < 0).any() else ("Blues", 0.0)
        style: dict[str, Any] = {"aspect": "auto", "interpolation": "none", "cmap": hues}
        picture = axes.imshow(grid, vmin=low, vmax=high, **style)
        _label_ticks(axes, names, row_classes)
        axes.set(xlabel="class", ylabel="point, by class")
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        bar: Any = figure.colorbar(picture, ax=axes, shrink=0.8, aspect=18, pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=2, labelsize=7)

    caption = "Soft labels: a row per point, a column per class."
    return svg.figure(paint, "heat map of the soft labels", caption)


def _label_ticks(axes: "Axes", names: Sequence[str], row_classes: Sequence[str]) -> None:
    """Class names on both axes, where there are few enough to fit."""
    if len(names) <= 20:
        long = max(len(name) for name in names) > 2
        texts = [svg.plain_text(name, 12) for name in names]
        axes.set_xticks(range(len(names)), texts, rotation=60 if long else 0, fontsize=7)
        if long:
            for text in axes.get_xticklabels():
                text.set(ha="right", rotation_mode="anchor")
    rows = range(len(row_classes))
    starts = [row for row in rows if row == 0 or row_classes[row - 1] != row_classes[row]]
    starts = starts if len(starts) <= 20 else []
    axes.set_yticks(starts, [svg.plain_text(row_classes[row], 12) for row in starts], fontsize=7)


def _shown(labels: Sequence[int], limit: int = MAX_SHOWN) -> list[int]:
    """At most `limit` points ordered by class, evenly many of each while there is room."""
    members: dict[int, list[int]] = {label: [] for label in sorted(set(labels))}
    for point, label in enumerate(labels):
        members[label].append(point)
    each = max(1, limit // len(members))
    return [point for own in list(members.values())[:limit] for point in own[:each]]


def _name(label: int, class_names: Sequence[str]) -> str:
    return class_names[label] if 0 <= label < len(class_names) else str(label)


def _notes(coreset: Coreset) -> list[str]:
    notes = []
    low, high = float(coreset.weight.min()), float(coreset.weight.max())
    if low != high:
        notes.append(f"Weights run from {low:.3g} to {high:.3g}.")
    if coreset.x.ndim == 4 and coreset.x.is_floating_point():
        outside = float(((coreset.x < 0) | (coreset.x > 1)).double().mean())
        if outside > 0.0005:
            notes.append(
                f"{outside:.1%} of the pixel values lie outside [0, 1] and are shown as black or "
                "white."
            )
    return notes


def _pictures(
    coreset: Coreset, shown: Sequence[int], classes: Sequence[str]
) -> dict[str, list[svg.Image]]:
    x = coreset.x[list(shown)]
    pixels = to_uint8(x.float() / 255 if x.dtype == torch.uint8 else x)
    pictures: dict[str, list[svg.Image]] = {}
    for point, picture in zip(shown, pixels, strict=True):
        words = [classes[point], f"weight {float(coreset.weight[point]):.3g}"]
        if coreset.indices is not None:
            words.insert(1, f"training example {int(coreset.indices[point])}")
        packed = svg.image(encode_png(picture), classes[point], " · ".join(words), "image/png")
        pictures.setdefault(classes[point], []).append(packed)
    return pictures


def _numbers(x: Tensor, shown: Sequence[int], classes: Sequence[str]) -> Numbers:
    values = x.flatten(1)[:, :_MAX_COLUMNS].double()
    more = ["…"] if x.flatten(1).shape[1] > _MAX_COLUMNS else []
    rows = [
        [classes[point], *(f"{value:.3g}" for value in values[point].tolist()), *more]
        for point in shown
    ]
    if len(x) > len(shown):
        rows.append(["…"] * (1 + values.shape[1] + len(more)))
    return Numbers(["class", *(str(column + 1) for column in range(values.shape[1])), *more], rows)
