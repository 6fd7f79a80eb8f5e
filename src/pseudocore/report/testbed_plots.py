"""Figures of the test bed, like Figs. 6 and 7 of Kim et al. (2022): true divergences over steps,
and over sizes. Each is an SVG file.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pseudocore.report.figure import INK, colours, draw, plain_ticks
from pseudocore.reproduce.testbed import Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TITLES = {"reverse_kl": "reverse KL", "forward_kl": "forward KL", "w2_squared": "W₂²"}
_WIDTH, _HEIGHT = 9.0, 2.9
_LEAST = 1e-5
"""Where the logarithmic axes end: below is the estimators' noise."""

Floors = Mapping[int, Mapping[str, float]]
"""The least divergences that points of weight 1 can have, by size."""


def over_steps(curves: Sequence[Curve], floors: Floors) -> bytes:
    """Every method at the smallest size: the three divergences along its steps, and the floor of
    weight 1.
    """
    size = min(curve.size for curve in curves)

    def fill(axes: Any, name: str, ink: Mapping[str, str]) -> None:
        for curve in curves:
            if curve.size == size:
                axes.plot(
                    curve.steps,
                    _visible(curve.values[name]),
                    color=ink[curve.method],
                    linewidth=1.3,
                    label=curve.method,
                )
        axes.axhline(
            max(floors[size][name], _LEAST),
            color=INK,
            linewidth=0.8,
            linestyle=(0, (4, 3)),
            alpha=0.7,
            label="floor at weight 1",
        )
        axes.set(xlabel="step", title=f"{TITLES[name]}, M = {size}")

    return _panels(curves, fill)


def over_sizes(curves: Sequence[Curve], floors: Floors) -> bytes:
    """Every method after its last step: the three divergences over the number of points, and the
    floor of weight 1.
    """

    def fill(axes: Any, name: str, ink: Mapping[str, str]) -> None:
        for method, colour in ink.items():
            own = sorted(
                (curve.size, curve.values[name][-1]) for curve in curves if curve.method == method
            )
            axes.plot(
                [size for size, _ in own], _visible([value for _, value in own]), "o-",
                color=colour, markersize=3.5, linewidth=1.2, label=method,
            )  # fmt: skip
        sizes = sorted(floors)
        lowest = _visible([floors[size][name] for size in sizes])
        axes.plot(
            sizes,
            lowest,
            color=INK,
            linewidth=0.8,
            linestyle=(0, (4, 3)),
            alpha=0.7,
            label="floor at weight 1",
        )
        axes.set(xlabel="M", title=f"{TITLES[name]} at the end")

    return _panels(curves, fill)


def _panels(curves: Sequence[Curve], fill: Callable[[Any, str, Mapping[str, str]], None]) -> bytes:
    ink = colours(curve.method for curve in curves)

    def paint(figure: "Figure") -> None:
        grid: Any = figure.subplots(1, len(TITLES))
        for axes, name in zip(grid, TITLES, strict=True):
            fill(axes, name, ink)
            axes.set_yscale("log")
            plain_ticks(axes.yaxis)
            axes.grid(axis="y")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside right upper")

    return draw(_WIDTH, _HEIGHT, paint)


def _visible(values: Sequence[float]) -> list[float]:
    return [max(value, _LEAST) for value in values]
