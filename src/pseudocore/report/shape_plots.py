"""Figures of how coresets relate to their data and to other networks: spectra, losses on a line,
corruptions, architectures.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pseudocore.report.figure import INK, draw, plain_text, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_WIDTH, _HEIGHT = 4.2, 3.2
_STYLES = ("-", "--", ":", "-.")


class After(NamedTuple):
    """Accuracy after one stage of class-incremental learning."""

    num_classes: int
    mean: float
    sd: float | None


def spectrum(
    frequency: Sequence[float], coreset: Sequence[float], data: Sequence[float], colour: str
) -> bytes:
    """Power by spatial frequency of the coreset's images and of the data's."""

    def paint(figure: "Figure") -> None:
        axes: Axes = figure.subplots()
        axes.plot(
            frequency,
            data,
            color=INK,
            linewidth=1.1,
            linestyle=(0, (4, 3)),
            label="training images",
        )
        axes.plot(frequency, coreset, color=colour, linewidth=1.5, label="coreset")
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)
        axes.set(xlabel="cycles per pixel", ylabel="power")
        axes.grid()
        axes.legend()

    return draw(_WIDTH, _HEIGHT, paint)


def landscape(
    at: Sequence[float], coreset: Sequence[float], data: Sequence[float], colour: str
) -> bytes:
    """Losses of coreset and data along the line from a network trained on the one to a network
    trained on the other.
    """

    def paint(figure: "Figure") -> None:
        axes: Axes = figure.subplots()
        axes.plot(at, data, color=INK, linewidth=1.1, linestyle=(0, (4, 3)), label="training set")
        axes.plot(at, coreset, color=colour, linewidth=1.5, label="coreset")
        for place in (0, 1):
            axes.axvline(place, color=INK, linewidth=0.6, alpha=0.35)
        axes.set_xticks([0, 1], ["trained on\nthe coreset", "trained on\nthe data"])
        axes.set(ylabel="mean loss")
        axes.grid(axis="y")
        axes.legend()

    return draw(_WIDTH, _HEIGHT, paint)


def radar(accuracy: Mapping[str, Mapping[str, float]], colours: Mapping[str, str]) -> bytes:
    """Accuracy under each corruption, a spoke each, for several ways (rows of `accuracy`) at once."""

    def paint(figure: "Figure") -> None:
        axes: Any = figure.subplots(subplot_kw={"projection": "polar"})
        kinds = list(dict.fromkeys(kind for row in accuracy.values() for kind in row))
        angles = [2 * math.pi * place / len(kinds) for place in range(len(kinds))]
        for place, (name, row) in enumerate(accuracy.items()):
            values = [row.get(kind, np.nan) for kind in kinds]
            axes.plot(
                [*angles, angles[0]], [*values, values[0]], color=colours[name], linewidth=1.3, linestyle=_STYLES[place % 4],
                label=plain_text(name, 28),
            )  # fmt: skip
        axes.set_xticks(
            angles, [plain_text(kind.replace("_", " "), 18) for kind in kinds], fontsize=6.5
        )
        axes.set_ylim(0, 1)
        axes.tick_params(axis="y", labelsize=6.5)
        for text, angle in zip(
            axes.get_xticklabels(), angles, strict=True
        ):  # words begin or end at the circle, not in it
            text.set_horizontalalignment(
                "center"
                if abs(math.cos(angle)) < 0.1
                else "left"
                if math.cos(angle) > 0
                else "right"
            )
        figure.legend(loc="outside lower center", ncols=2)

    return draw(_WIDTH, 4.6, paint)


def architectures(
    accuracy: Mapping[str, Mapping[str, tuple[float, float | None]]], colours: Mapping[str, str]
) -> bytes:
    """Mean accuracy and deviation by network (groups of bars) for several ways (rows of
    `accuracy`).
    """

    def paint(figure: "Figure") -> None:
        axes: Axes = figure.subplots()
        networks = list(dict.fromkeys(network for row in accuracy.values() for network in row))
        width = 0.8 / len(accuracy)
        for place, (name, row) in enumerate(accuracy.items()):
            known = [number for number, network in enumerate(networks) if network in row]
            centres = [number + (place - (len(accuracy) - 1) / 2) * width for number in known]
            means, spreads = zip(*(row[networks[number]] for number in known), strict=True)
            axes.bar(
                centres,
                means,
                width=0.92 * width,
                color=colours[name],
                alpha=0.85,
                label=plain_text(name, 28),
            )
            axes.errorbar(
                centres,
                means,
                yerr=[spread or 0.0 for spread in spreads],
                fmt="none",
                color=INK,
                linewidth=0.9,
                capsize=2,
            )
        axes.set_xticks(
            range(len(networks)),
            [plain_text(network, 14) for network in networks],
            rotation=30,
            ha="right",
        )
        axes.set(ylabel="accuracy", ylim=(0, 1))
        axes.grid(axis="y")
        if len(accuracy) > 1:
            figure.legend(loc="outside lower center", ncols=2)

    return draw(_WIDTH, _HEIGHT, paint)


def stages(accuracy: Mapping[str, Sequence[After]], colours: Mapping[str, str]) -> bytes:
    """Mean accuracy and deviation over all classes seen, as they become more, for several ways
    (rows of `accuracy`).
    """

    def paint(figure: "Figure") -> None:
        axes: Axes = figure.subplots()
        for place, (name, row) in enumerate(accuracy.items()):
            classes, means, spreads = zip(*row, strict=True)
            axes.errorbar(
                classes, means, yerr=[spread or 0.0 for spread in spreads], color=colours[name], linestyle=_STYLES[place % 4], marker="o",
                markersize=3.5, linewidth=1.3, capsize=2, label=plain_text(name, 28),
            )  # fmt: skip
        axes.set_xticks(sorted({after.num_classes for row in accuracy.values() for after in row}))
        axes.set(xlabel="classes seen", ylabel="accuracy on all of them", ylim=(0, 1))
        axes.grid(axis="y")
        if len(accuracy) > 1:
            figure.legend(loc="outside lower center", ncols=2)

    return draw(_WIDTH, _HEIGHT, paint)
