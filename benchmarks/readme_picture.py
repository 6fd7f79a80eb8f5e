"""The README's picture: the demo's coresets at one digit per class, chosen by chance beside learned
by VBPC.

`pseudocore demo --out demo && python benchmarks/readme_picture.py demo
docs/images/digits-vbpc-ipc1.png`

Pictures of seed 0, pixels clipped to [0, 1]; the accuracies are the means over the demo's seeds,
read from its evaluations.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from pseudocore.core.types import Coreset
from pseudocore.evaluation.names import format_metric
from pseudocore.evaluation.tables import comparison
from pseudocore.store.run_folder import Run

ROWS = {"uniform": "uniform\nten real digits", "vbpc": "VBPC\nten learned digits"}


def main(demo: Path, picture: Path) -> None:
    figure = Figure(figsize=(8.2, 1.6), layout="constrained")
    axes = figure.subplots(len(ROWS), 10)
    for row, (method, title) in zip(axes, ROWS.items(), strict=True):
        runs = [Run.open(path) for path in sorted(demo.glob(f"{method}-ipc1-seed*"))]
        _fill(row, runs[0].coreset())
        words = {"rotation": 0, "ha": "right", "va": "center", "fontsize": 9, "labelpad": 6}
        row[0].set_ylabel(f"{title}\naccuracy {_accuracy(runs)}", **words)
    figure.savefig(picture, dpi=120, metadata={"Software": None})
    print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")


def _fill(row: Sequence[Any], coreset: Coreset) -> None:
    for axes, point in zip(row, coreset.labels.argsort().tolist(), strict=True):
        axes.imshow(
            coreset.x[point, 0].clamp(0, 1).numpy(),
            cmap="gray",
            vmin=0,
            vmax=1,
            interpolation="nearest",
        )
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)


def _accuracy(runs: Sequence[Run]) -> str:
    (row,) = comparison(
        [(run.config, evaluation) for run in runs for evaluation in run.evaluations().values()]
    )
    return format_metric(*row.metrics["accuracy"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
