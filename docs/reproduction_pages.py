"""Pages and pictures about published tables, from the stored results: a summary, which is committed,
and a page for each table, which the site generates.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pseudocore.evaluation.names import metric_title
from pseudocore.report import svg
from pseudocore.reproduce import pages, render
from pseudocore.reproduce.cells import table_names, title
from pseudocore.reproduce.render import Compared

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
IMAGES = DOCS / "images"
NEAR, FAR = 2.0, 5.0
"""Standard errors within which a number is reproduced, and beyond which it is not."""
BANDS = (
    ("within 2", "#009e73"),
    ("2 to 5", "#e69f00"),
    ("beyond 5", "#d55e00"),
    ("no sd", "#8c8c8c"),
)
PAPERS = {
    "kim2022": "Kim et al. 2022, *On Divergence Measures for Bayesian Pseudocoresets*",
    "tiwary2023": "Tiwary et al. 2023, *Constructing Bayesian Pseudo-Coresets using Contrastive Divergence*",
    "lcmat2023": "Shin et al. 2023, *Loss-Curvature Matching for Dataset Selection and Condensation*",
    "vbpc2025": "*Variational Bayesian Pseudo-Coreset*, 2025",
}
SAID = {
    "kim2022": "By the published protocol `bpc-fkl` agrees; `bpc-rkl` scores higher at 1 per class, `bpc-w` lower at 10 "
    "and random points lower than printed. ECE is lower here. What that protocol does is in "
    "[inference.md](inference.md#the-published-protocol).",
    "tiwary2023": "`uniform`, `herding` and `k-center` scatter around the printed numbers, `forgetting` lies mostly "
    "below. `bpc-cd` lies far below (.30 against .56); what was tried is in [bpc-cd.md](bpc-cd.md).",
    "lcmat2023": "About half agree. `glister` lies below at the small budgets and `k-center` at the large ones; `herding` and "
    "`gradmatch-val` lie above at 5 %. Why is in [selection: results](selection-results.md#against-printed-numbers).",
    "vbpc2025": "One number can be compared: .714 where .698 is printed ([vbpc.md](vbpc.md)).",
}
"""What each figure shows."""


def summary_page() -> str:
    """docs/reproduction.md."""
    tables = {table: render.table_rows(table, RESULTS) for table in table_names()}
    numbers = {
        table: [one for row in rows for one in render.compared(row)]
        for table, rows in tables.items()
    }
    printed = sum(len(row.cell.printed) for rows in tables.values() for row in rows)
    done = sum(map(len, numbers.values()))
    lines = [
        "# Reproduction",
        "",
        "Written by `python docs/reference_pages.py` from the results in `benchmarks/results`.",
        "",
        f"{done} of the {printed} numbers that the papers print have ours beside them. A number of ours is the last iterate of "
        "settings chosen on training data, over the whole test set. Where a paper's protocol is known, "
        "it was run too, choices on the test set included, and the comparison is with that.",
        "",
        "The distance is in standard errors of both means. Where a paper prints no spread, that of our seeds counts alone. Pages of every cell are generated for the site (`make docs`).",
        "",
        "| table | cells run | numbers | within 2 | 2 to 5 | beyond 5 | details |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]  # fmt: skip
    for table, rows in tables.items():
        filled = sum(row.filled is not None for row in rows)
        bands = [_band(one) for one in numbers[table]]
        counts = " | ".join(str(bands.count(place)) for place in range(3))
        link = (
            f"[every cell](reproduction/{table}.md), [data](../benchmarks/results/{table}.jsonl)"
            if filled
            else "not run"
        )
        lines.append(
            f"| {title(table)} | {filled} of {len(rows)} | {len(bands)} | {counts} | {link} |"
        )
    for paper, name in PAPERS.items():
        own = _of_paper(paper, numbers)
        lines += ["", f"## {name}", ""]
        if len(own) > 1:
            picture = f"![Ours against printed, {paper}](images/reproduction-{paper}.svg)"
            lines += [picture, "", _counted(own), ""]
        lines += [SAID[paper]]
    lines += [
        "", "## Our own table", "",
        "[Every method on the built-in digits](reproduction/digits.md), in one protocol, on two CPU cores.", "",
        "## As data", "",
        "`benchmarks/results/TABLE.jsonl` has a line for each cell: configuration, seeds, metrics, cost, hardware, commit. "
        "`src/pseudocore/reproduce/published.csv` has the printed numbers with their source. "
        "`pseudocore table TABLE --json` joins them, `pseudocore table TABLE --render` prints a page. [tables.md](tables.md) says how cells are run.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def detail_pages() -> dict[str, str]:
    """A page for each table that has results, by its path below docs/."""
    found = {}
    for table in table_names():
        if any(row.result for row in render.table_rows(table, RESULTS)):
            blocks = render.render_table(table, RESULTS)
            text = pages.to_markdown([pages.Heading(1, table), *blocks[1:]])
            found[f"reproduction/{table}.md"] = text.replace("\n\n", f"\n\n{title(table)}\n\n", 1)
    return found


def write_figures() -> None:
    """images/reproduction-PAPER.svg."""
    numbers = {
        table: [one for row in render.table_rows(table, RESULTS) for one in render.compared(row)]
        for table in table_names()
    }
    for paper in PAPERS:
        if len(own := _of_paper(paper, numbers)) > 1:
            (IMAGES / f"reproduction-{paper}.svg").write_bytes(_figure(own))


def _of_paper(paper: str, numbers: dict[str, list[Compared]]) -> list[Compared]:
    return [one for table, own in numbers.items() if table.startswith(paper) for one in own]


def _counted(numbers: Sequence[Compared]) -> str:
    near = sum(_band(one) == 0 for one in numbers)
    return f"{near} of {len(numbers)} numbers lie within 2 standard errors."


def _band(one: Compared) -> int:
    if one.gap is None:
        return 3
    return 0 if abs(one.gap) <= NEAR else 1 if abs(one.gap) <= FAR else 2


def _figure(numbers: Sequence[Compared]) -> bytes:
    """Ours against printed, a panel for each metric."""
    metrics = list(dict.fromkeys(one.metric for one in numbers))

    def paint(figure: "Figure") -> None:
        for axes, metric in zip(
            figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True
        ):
            own = [one for one in numbers if one.metric == metric]
            ends = [value for one in own for value in (one.printed, one.ours)]
            margin = 0.06 * (max(ends) - min(ends) or 1.0)
            span = min(ends) - margin, max(ends) + margin
            axes.plot(span, span, linewidth=0.8, **svg.DASHED)
            for place, (label, colour) in enumerate(BANDS):
                points = [(one.printed, one.ours) for one in own if _band(one) == place]
                if points:
                    axes.scatter(
                        *zip(*points, strict=True), s=16, color=colour, alpha=0.8, label=label
                    )
            axes.set(
                xlabel=f"printed {metric_title(metric)}",
                ylabel="ours",
                xlim=span,
                ylim=span,
                aspect="equal",
            )
        handles: dict[str, object] = {}
        for axes in figure.axes:
            handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        order = [label for label, _ in BANDS if label in handles]
        title_ = "standard errors apart"
        figure.legend(
            [handles[label] for label in order],
            order,
            loc="outside lower center",
            ncols=4,
            title=title_,
        )

    width = min(2.9 * len(metrics) + 0.6, 9.0)
    return svg.draw(width, width / len(metrics) + 0.7, paint)
