"""Images for the page out of what run folders hold: checked, drawn, and packed as data URIs.

A file may come from a stranger; what cannot be drawn is left out, so that one odd number does not
cost the page.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pseudocore.evaluation.metrics import Reliability
from pseudocore.evaluation.tables import Row
from pseudocore.report import plots
from pseudocore.report.figure import data_uri
from pseudocore.store.run_folder import Run

_MAX_CURVES = 4


class Image(NamedTuple):
    source: str
    """A data URI."""
    alt: str
    caption: str = ""


def charts(rows: Sequence[Row], colour_of: Mapping[str, str]) -> list[Image]:
    """Accuracy and NLL of a comparison; nothing for one row, which compares nothing."""
    names = (
        [name for name in ("accuracy", "nll") if any(name in row.metrics for row in rows)]
        if len(rows) > 1
        else []
    )
    return [
        Image(
            data_uri(plots.bars(rows, name, colour_of)), f"bar chart of {name} by row of the table"
        )
        for name in names
    ]


def curves(runs: Sequence[Run], colour: str) -> list[Image]:
    """Whatever was logged over the steps of runs that differ in their seed, the loss first."""
    logs = [run.metrics() for run in runs]
    found = dict.fromkeys(name for log in logs for entry in log for name in entry if name != "step")
    images = []
    for name in sorted(found, key=lambda name: name != "loss")[:_MAX_CURVES]:
        lines = []
        for run, log in zip(runs, logs, strict=True):
            points = [
                (entry["step"], entry[name])
                for entry in log
                if _is_number(entry["step"]) and _is_number(entry.get(name))
            ]
            if any(is_finite(value) for _, value in points):
                label = f"seed {run.config.get('seed', run.path.name)}"
                lines.append(
                    plots.Curve(
                        label, [step for step, _ in points], [float(value) for _, value in points]
                    )
                )
        if lines:
            images.append(
                Image(
                    data_uri(plots.curves(name, lines, colour)), f"curve of {name} over the steps"
                )
            )
    return images


def reliability(evaluation: Mapping[str, Any], colour: str) -> Image | None:
    """The reliability diagram of an evaluation, if it holds a sound one."""
    diagram = _diagram(evaluation.get("reliability"))
    if diagram is None:
        return None
    inference = evaluation.get("inference", "unknown")
    caption = (
        f"{inference}: accuracy against confidence, with the number of test points in each bin."
    )
    return Image(
        data_uri(plots.reliability(diagram, colour)), f"reliability diagram of {inference}", caption
    )


def corruption_map(evaluation: Mapping[str, Any]) -> Image | None:
    """Accuracy under corruptions, where they were evaluated."""
    table = evaluation.get("corruptions")
    if not isinstance(table, Mapping) or not table:
        return None
    sound = {
        str(kind): {str(s): float(v) for s, v in row.items() if is_finite(v)}
        for kind, row in table.items()
        if isinstance(row, Mapping)
    }
    sound = {kind: row for kind, row in sound.items() if row}
    if not sound:
        return None
    inference = evaluation.get("inference", "unknown")
    caption = f"{inference}: accuracy on corrupted test images, by corruption and severity."
    return Image(data_uri(plots.corruptions(sound)), f"corruption heat map of {inference}", caption)


def is_finite(value: Any) -> bool:
    """Whether a value from a file is a number with a place on an axis."""
    return _is_number(value) and math.isfinite(value)


def _is_number(value: Any) -> bool:
    return type(value) is float or (
        type(value) is int and abs(value) < 2**53
    )  # whole numbers can be too long to draw


def _diagram(value: Any) -> Reliability | None:
    """A diagram with at least one filled bin, or nothing to draw."""
    parts = [value.get(part) for part in Reliability._fields] if isinstance(value, Mapping) else []
    confidence, accuracy, count = (
        part if isinstance(part, list) else [] for part in parts or [[], [], []]
    )
    if not len(confidence) == len(accuracy) == len(count):
        return None
    if not all(type(number) is int and is_finite(number) and number >= 0 for number in count):
        return None
    filled = [place for place, number in enumerate(count) if number]
    sound = all(
        is_finite(part[place]) and 0 <= part[place] <= 1
        for part in (confidence, accuracy)
        for place in filled
    )
    return (
        Reliability(tuple(confidence), tuple(accuracy), tuple(count)) if filled and sound else None
    )
