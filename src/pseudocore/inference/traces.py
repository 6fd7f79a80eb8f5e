"""The numbers that went along with the draws, thinned to what a file should keep and a figure can
show.
"""

import math

from pseudocore.inference.draws import Draws

NAMES = ("log_density", "accept", "step_size", "energy_error", "kinetic", "gradient_norm")
"""What samplers tell of a draw; each of them some of it."""

Traces = dict[str, list[list[float | None]]]
"""By name, chain and kept draw; None where a value was not finite."""


def traces(draws: Draws, limit: int = 200) -> Traces:
    """Every trace there is, at most `limit` evenly spaced draws a chain."""
    stride = math.ceil(len(draws) / limit) or 1
    found: Traces = {}
    for name in NAMES:
        try:
            values = draws.trace(name)
        except KeyError:
            continue
        found[name] = [
            [_rounded(value) for value in chain] for chain in values[::stride].T.double().tolist()
        ]
    return found


def _rounded(value: float) -> float | None:
    """Six digits: a file is for looking at, the draws are for computing."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
