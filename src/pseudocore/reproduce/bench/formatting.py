"""A benchmark as lines of text, each ready as soon as its numbers are."""

from collections.abc import Mapping
from typing import Any

from pseudocore.reproduce.bench.measure import Ceilings
from pseudocore.reproduce.bench.plan import Curve, Row

HEADER = (
    f"{'':<20} {'ms':>8} {'eager':>8} {'plain':>8} {'faster':>7} {'images/s':>9} {'GFLOP/s':>8} "
    f"{'of matmul':>9} {'of copy':>8} {'MiB':>6}"
)


def ceilings_line(ceilings: Ceilings) -> str:
    return (
        f"this machine at best: matrix products {ceilings.matmul / 1e12:.3g} TFLOP/s, "
        f"copies {ceilings.copy / 1e9:.3g} GB/s"
    )


def row_line(row: Row) -> str:
    ours, work = row.ours, row.work
    eager, plain = (
        "" if other is None else format(other.timing.ms, ".3g") for other in (row.eager, row.plain)
    )
    faster = "" if row.faster is None else f"{row.faster:.2f}×"
    flop, copied = row.per_second(work.flop), row.per_second(work.bytes)
    line = (
        f"{row.name:<20} {ours.timing.ms:8.3g} {eager:>8} {plain:>8} {faster:>7} "
        f"{row.per_second(work.images):9.0f} {flop / 1e9:8.3g} {flop / row.ceilings.matmul:9.1%} "
        f"{copied / row.ceilings.copy:8.1%} {ours.peak_mib:6d}"
    )
    return line + (f"  ({ours.note})" if ours.note else "")


def curve_line(curve: Curve) -> str:
    points = "  ".join(
        f"{value}: {ms:.3g} ms, {mib} MiB"
        for value, ms, mib in zip(curve.values, curve.ms, curve.peak_mib, strict=True)
    )
    growth = "" if curve.exponent is None else f"  (exponent {curve.exponent:.2f})"
    return f"{curve.name} against {curve.knob}  {points}{growth}"


def closing_lines(document: Mapping[str, Any]) -> list[str]:
    """What failed, and what there was no time for."""
    lines = [f"failed: {title}: {reason}" for title, reason in document["failed"].items()]
    if missing := document["not_reached"]:
        lines.append(f"no time was left for {', '.join(missing)}; a larger --seconds takes them in")
    return lines
