"""Figures of samplers: traces over the draws, and scores over temperature. Each function returns an
SVG file.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pseudocore.report.figure import INK, PALETTE, draw, plain_text, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_WIDTH = 4.2
_PANEL = 1.05


class Sweep(NamedTuple):
    """One prior over a grid of temperatures."""

    label: str
    temperatures: Sequence[float]
    values: Sequence[float]
    deviations: Sequence[float] | None = None


def traces(panels: Mapping[str, Sequence[Sequence[float | None]]]) -> bytes:
    """Every number of the chains over their draws, a panel each: chains should look alike, and like
    noise.
    """

    def paint(figure: "Figure") -> None:
        grid: Any = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, chains) in zip(grid, panels.items(), strict=True):
            for place, chain in enumerate(chains):
                values = np.array(
                    [np.nan if value is None else value for value in chain], dtype=np.float64
                )
                axes.plot(
                    np.arange(1, len(values) + 1),
                    values,
                    color=PALETTE[place % len(PALETTE)],
                    linewidth=0.8,
                    alpha=0.85,
                )
            axes.set_ylabel(plain_text(name.replace("_", "\n"), 24).replace(" ", "\n"), fontsize=7)
            axes.tick_params(labelsize=7)
            axes.locator_params(axis="y", nbins=3)
            axes.grid(axis="y")
        grid[-1].set_xlabel("kept draw")

    return draw(_WIDTH, 0.5 + _PANEL * len(panels), paint)


def temperatures(
    metric: str, sweeps: Sequence[Sweep], *, level: tuple[str, float] | None = None
) -> bytes:
    """The cold-posterior curve: a metric over temperature, a line a prior, and another protocol's
    value as a level beside them.
    """

    def paint(figure: "Figure") -> None:
        axes: Axes = figure.subplots()
        for place, sweep in enumerate(sweeps):
            style: dict[str, Any] = {
                "color": PALETTE[place % len(PALETTE)],
                "linestyle": "-" if place < len(PALETTE) else "--",
            }
            axes.errorbar(
                sweep.temperatures, sweep.values, yerr=sweep.deviations, marker="o", markersize=3.5, linewidth=1.2, capsize=2,
                label=plain_text(sweep.label), **style,
            )  # fmt: skip
        if level is not None:
            axes.axhline(
                level[1],
                color=INK,
                linewidth=0.8,
                linestyle=(0, (4, 3)),
                alpha=0.8,
                label=plain_text(level[0]),
            )
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)
        axes.set(xlabel="temperature", ylabel=plain_text(metric))
        axes.grid()
        axes.legend()

    return draw(_WIDTH, 3.2, paint)
