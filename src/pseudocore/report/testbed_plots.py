"""Figures of the test bed, like Figs. 6 and 7 of Kim et al. (2022): true divergences over steps and
over sizes, as SVG files.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pseudocore.report import svg
from pseudocore.reproduce.testbed import Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {"reverse_kl": "reverse KL", "forward_kl": "forward KL", "w2_squared": "W₂²"}
_LEAST = 1e-5
"""Where the logarithmic axes end: below is the estimators' noise."""
_FLOOR: dict[str, Any] = {
    "linewidth": 0.8,
    "alpha": 0.7,
    "label": "floor at weight 1",
    **svg.DASHED,
}

Floors = Mapping[int, Mapping[str, float]]
"""The least divergences that points of weight 1 can have, by size."""


def over_steps(curves: Sequence[Curve], floors: Floors) -> bytes:
    """The divergences of every method along its steps, at the smallest size."""
    size = min(curve.size for curve in curves)

    def fill(axes: Any, name: str, colour: Mapping[str, str]) -> None:
        for curve in curves:
            if curve.size == size:
                style: dict[str, Any] = {"color": colour[curve.method], "label": curve.method}
                axes.plot(curve.steps, _visible(curve.values[name]), linewidth=1.3, **style)
        axes.axhline(max(floors[size][name], _LEAST), **_FLOOR)
        axes.set(xlabel="step", title=f"{TITLES[name]}, M = {size}")

    return _panels(curves, fill)


def over_sizes(curves: Sequence[Curve], floors: Floors) -> bytes:
    """The divergences of every method after its last step, over the number of points."""

    def fill(axes: Any, name: str, colour: Mapping[str, str]) -> None:
        for method in colour:
            own = sorted((one.size, one.values[name][-1]) for one in curves if one.method == method)
            sizes, values = zip(*own, strict=True)
            style: dict[str, Any] = {"color": colour[method], "label": method, "markersize": 3.5}
            axes.plot(sizes, _visible(values), "o-", linewidth=1.2, **style)
        axes.plot(
            sorted(floors), _visible([floors[size][name] for size in sorted(floors)]), **_FLOOR
        )
        axes.set(xlabel="M", title=f"{TITLES[name]} at the end")

    return _panels(curves, fill)


def _panels(curves: Sequence[Curve], fill: Callable[[Any, str, Mapping[str, str]], None]) -> bytes:
    colour = svg.colours(curve.method for curve in curves)

    def paint(figure: "Figure") -> None:
        grid: Any = figure.subplots(1, len(TITLES))
        for axes, name in zip(grid, TITLES, strict=True):
            fill(axes, name, colour)
            axes.set_yscale("log")
            svg.plain_ticks(axes.yaxis)
            axes.grid(axis="y")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside right upper")

    return svg.draw(9.0, 2.9, paint)


def _visible(values: Sequence[float]) -> list[float]:
    return [max(value, _LEAST) for value in values]
