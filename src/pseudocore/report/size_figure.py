"""The curve of a search for the smallest coreset: KL to full-data inference by size and method."""

from typing import TYPE_CHECKING

from pseudocore.evaluation.size import Row, Size
from pseudocore.report import svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curve(result: Size) -> bytes:
    """The SVG file: a line for each method, whose bars end where the bound must lie below."""

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        by_method: dict[str, list[Row]] = {}
        for row in result.rows:
            by_method.setdefault(row.method, []).append(row)
        colour_of = svg.colours(by_method)
        for place, (method, rows) in enumerate(by_method.items()):
            points, kl = [row.points for row in rows], [max(row.kl, 1e-12) for row in rows]
            bars = [[0.0] * len(rows), [max(row.upper - row.kl, 0.0) for row in rows]]
            style = svg.line(method, place, colour_of[method])
            axes.errorbar(points, kl, bars, marker="o", markersize=3.5, capsize=2, **style)
        axes.axhline(result.within, **svg.DASHED, linewidth=1)
        axes.axhline(result.floor_kl, color=svg.INK, linewidth=0.7, alpha=0.5)
        axes.plot(
            [result.answer.points], [max(result.answer.kl, 1e-12)], "o", markersize=9,
            markerfacecolor="none", color=svg.INK,
        )  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            svg.plain_ticks(axis)
        axes.set_xlabel("points")
        axes.set_ylabel("KL to full-data inference")
        axes.grid(axis="y")
        axes.legend()

    return svg.draw(svg.WIDTH, svg.HEIGHT, paint)
