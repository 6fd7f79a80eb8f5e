"""What the numbers of a page say, in sentences: at each budget the best row, beside full data."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pseudocore.evaluation.names import DIRECTIONS, TITLES, format_metric, num_digits
from pseudocore.evaluation.tables import Row

_SCORES = ("accuracy", "rmse", "nll")
"""What a row is described by: the first that it has."""
MAX_SENTENCES = 6
_BUDGETS = ("points=", "fraction=")
"""Settings that the number of points says already."""
_MAX_VARIANT = 40
"""Letters; the table has all of them."""


class Scale(NamedTuple):
    """How much smaller a coreset is."""

    points: int
    num_train: int | None


Budget = tuple[object, object, object]
"""Points per class, in all, and as a fraction: one of them."""
Scales = Mapping[tuple[str, str, Budget], Scale]
"""By method, data set and budget."""


def budget(per_class: object, settings: Mapping[str, object]) -> Budget:
    """What was asked for, of flat settings."""
    return per_class, settings.get("options.points"), settings.get("options.fraction")


def scale_of(row: Row, scales: Scales) -> Scale | None:
    return scales.get((row.method, row.data, budget(row.per_class, row.settings)))


def conclusions(rows: Sequence[Row], scales: Scales) -> list[str]:
    """A sentence for each data set and budget, the best row of each, small budgets first."""
    budgets: dict[tuple[str, Budget], list[Row]] = {}
    for row in rows:
        if row.per_class != "all":
            asked = budget(row.per_class, row.settings)
            budgets.setdefault((row.data, asked), []).append(row)
    chosen = [best for alike in budgets.values() if (best := _best(alike))]
    several = len({row.data for row in chosen}) > 1
    found = [_sentence(row, full_row(row, rows), scales, several) for row in chosen]
    return found[:MAX_SENTENCES]


def full_row(row: Row, rows: Sequence[Row]) -> Row | None:
    """All data under the same inference, and the same variant where there are several."""
    full = [
        other
        for other in rows
        if (other.per_class, other.data, other.inference) == ("all", row.data, row.inference)
    ]
    same = [other for other in full if other.variant == row.variant]
    return same[0] if len(same) == 1 else full[0] if len(full) == 1 else None


def _best(rows: Sequence[Row]) -> Row | None:
    """Nearest to full-data inference of those measured, else of the best score."""
    for name in ("fidelity_kl", *_SCORES):
        known = [row for row in rows if _mean(row, name) is not None]
        if known:
            better = DIRECTIONS.get(name, min)
            return better(known, key=lambda row: row.metrics[name].mean)  # type: ignore[no-any-return]
    return None


def _sentence(row: Row, full: Row | None, scales: Scales, names_data: bool) -> str:
    scale = scale_of(row, scales)
    asked = f"{row.per_class} per class" if type(row.per_class) is int else ""
    settings = [part for part in row.variant.split(", ") if not part.startswith(_BUDGETS)]
    variant = ", ".join(settings)
    variant = variant if len(variant) <= _MAX_VARIANT else "one of several settings"
    about = ", ".join(part for part in (row.method, asked, variant) if part)
    subject = f"{scale.points:,} points ({about})" if scale else about[:1].upper() + about[1:]
    start = f"{row.data}: {subject}" if names_data else subject
    parts = []
    if (name := next((one for one in _SCORES if _mean(row, one) is not None), None)) is not None:
        parts.append(_score(name, row, full))
    if (kl := _mean(row, "fidelity_kl")) is not None:
        floor = _mean(row, "fidelity_floor_kl")
        beside = "" if floor is None else f" (floor {format_metric(floor, digits=4)})"
        parts.append(
            "predictions differ from full-data inference by "
            f"{format_metric(kl, digits=4)} nats{beside}"
        )
    if scale and scale.num_train and scale.num_train > scale.points:
        parts.append(f"{scale.num_train / scale.points:,.0f} times smaller")
    return f"{start} {'; '.join(parts)}."


def _score(name: str, row: Row, full: Row | None) -> str:
    title, digits = TITLES.get(name, name), num_digits(name)
    own = format_metric(_mean(row, name), digits=digits)
    whole = None if full is None else _mean(full, name)
    if name != "accuracy":
        beside = "" if whole is None else f" (all data: {format_metric(whole, digits=digits)})"
        return f"reach {title} {own}{beside}"
    if whole is None:
        return f"reach {own} accuracy"
    return f"keep {own} of {format_metric(whole, digits=digits)} accuracy"


def _mean(row: Row, name: str) -> float | None:
    found = row.metrics.get(name)
    return found.mean if found is not None and math.isfinite(found.mean) else None
