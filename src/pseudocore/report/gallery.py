"""A coreset as a page shows it: pictures by class, points of the plane, or the first few numbers;
soft labels as a heat map.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.core.types import Coreset
from pseudocore.report import plots
from pseudocore.report.figure import data_uri
from pseudocore.report.images import Image
from pseudocore.store.export import encode_png, to_uint8

MAX_SHOWN = 100
"""Points of one coreset on a page; what is left out is said."""

_MAX_ROWS, _MAX_COLUMNS = 10, 8


class Shelf(NamedTuple):
    """The pictures of one class."""

    name: str
    pictures: list[Image]


class Numbers(NamedTuple):
    """A small table."""

    head: list[str]
    rows: list[list[str]]


class Gallery(NamedTuple):
    shelves: list[Shelf]
    figures: list[Image]
    numbers: Numbers | None
    notes: list[str]

    @property
    def is_tiles(self) -> bool:
        """One picture per class: they can stand side by side under their names."""
        return all(len(cache.pictures) == 1 for cache in self.shelves)


def show(coreset: Coreset, class_names: Sequence[str]) -> Gallery:
    """What there is to see of a coreset; `class_names` may be empty."""
    labels = coreset.labels.tolist()
    shown = _shown(labels)
    classes = [_name(label, class_names) for label in labels]
    notes = _notes(coreset)
    shelves: list[Shelf] = []
    figures: list[Image] = []
    numbers = None
    if coreset.x.ndim == 4 and coreset.x.shape[1] in (1, 3):
        shelves = _shelves(coreset, shown, classes)
    elif coreset.x.ndim == 2 and coreset.x.shape[1] == 2:
        order = sorted(range(len(labels)), key=lambda point: labels[point])
        plot = plots.scatter(coreset.x[order], [classes[point] for point in order])
        figures.append(
            Image(
                data_uri(plot),
                f"scatter plot of the {len(coreset)} points by class",
                "The points, by class.",
            )
        )
    else:
        numbers = _numbers(coreset.x, _shown(labels, _MAX_ROWS), classes)
        notes.append(
            f"The points have shape {tuple(coreset.x.shape[1:])}, so their first numbers stand in for pictures."
        )
    if coreset.is_soft:
        columns = [_name(label, class_names) for label in range(coreset.y.shape[1])]
        plot = plots.heat_map(coreset.y[shown], [classes[point] for point in shown], columns)
        figures.append(
            Image(
                data_uri(plot),
                "heat map of the soft labels",
                "Soft labels: a row per point, a column per class.",
            )
        )
    if len(shown) < len(labels) and (shelves or coreset.is_soft):
        notes.insert(
            0,
            f"Showing {len(shown)} of {len(labels)} points, at most {max(1, MAX_SHOWN // len(set(labels)))} of a class.",
        )
    return Gallery(shelves, figures, numbers, notes)


def _shown(labels: Sequence[int], limit: int = MAX_SHOWN) -> list[int]:
    """At most `limit` points by class, evenly many of each while there is room."""
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
                f"{outside:.1%} of the pixel values lie outside [0, 1] and are shown as black or white."
            )
    return notes


def _shelves(coreset: Coreset, shown: Sequence[int], classes: Sequence[str]) -> list[Shelf]:
    x = coreset.x[list(shown)]
    pixels = to_uint8(x.float() / 255 if x.dtype == torch.uint8 else x)
    shelves: list[Shelf] = []
    for point, image in zip(shown, pixels, strict=True):
        words = [classes[point]]
        if coreset.indices is not None:
            words.append(f"training example {int(coreset.indices[point])}")
        words.append(f"weight {float(coreset.weight[point]):.3g}")
        picture = Image(data_uri(encode_png(image), "image/png"), classes[point], " · ".join(words))
        if not shelves or shelves[-1].name != classes[point]:
            shelves.append(Shelf(classes[point], []))
        shelves[-1].pictures.append(picture)
    return shelves


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
