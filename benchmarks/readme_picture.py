"""The README's picture: ten digits chosen by chance beside the ten that BPC-PCD learned.

    python benchmarks/readme_picture.py uniform.safetensors bpc-pcd.safetensors benchmarks/results/pcd.jsonl PNG

The coresets are those that `benchmarks/pcd.py digits --network tanh-32 --per-class 1 --keep DIR` keeps; the
numbers are of the same seed, from its record. Pixels are clipped to [0, 1].
"""

import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import pseudocore
from pseudocore.reproduce import records

TITLES = {"uniform": "ten real digits", "bpc-pcd": "ten learned digits"}


def main(uniform: Path, learned: Path, results: Path, picture: Path) -> None:
    cells = records.read(results)["digits-tanh-32"]["cells"]
    figure = Figure(figsize=(9, 1.7), layout="constrained")
    axes = figure.subplots(2, 10)
    for row, path, method in zip(axes, (uniform, learned), TITLES, strict=True):
        key = {"per_class": 1, "seed": 0, "method": method}
        (cell,) = [one for one in cells if one["key"] == key]
        coreset = pseudocore.load(path)
        for place, point in zip(row, coreset.labels.argsort().tolist(), strict=True):
            _draw(place, coreset.x[point, 0])
        text = f"{TITLES[method]}\nKL {cell['kl']:.2f}, accuracy {cell['accuracy']:.2f}"
        row[0].set_ylabel(
            text.replace("0.", "."), rotation=0, ha="right", va="center", fontsize=9, labelpad=6
        )
    figure.savefig(picture, dpi=120, metadata={"Software": None})
    print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")


def _draw(axes: Any, image: Any) -> None:
    axes.imshow(image.clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
