"""Figures: sound SVG, equal bytes for equal content, nobody's global state touched, and the right
lengths drawn.
"""

import math
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import matplotlib
import matplotlib.axes
import numpy as np
import pytest
import torch

from pseudocore.core.errors import ConfigError
from pseudocore.evaluation.metrics import Reliability
from pseudocore.evaluation.tables import Estimate, Row
from pseudocore.report import plots
from pseudocore.report.figure import INK, PALETTE, colours, draw, plain_text

DIAGRAM = Reliability((None, 0.5, 0.9), (None, 0.4, 1.0), (0, 10, 30))


def row(method: str, accuracy: float | None = 0.9, sd: float | None = 0.1, **fields: Any) -> Row:
    metrics = {} if accuracy is None else {"accuracy": Estimate(accuracy, sd)}
    return Row(method, "digits", 1, "hmc", "", 1, 3, metrics)._replace(**fields)


FIGURES = {
    "curves": lambda: plots.curves(
        "loss", [plots.Curve("seed 0", [1, 2, 3], [3.0, 2.0, 1.0])], PALETTE[0]
    ),
    "noisy curves": lambda: plots.curves(
        "loss",
        [plots.Curve(f"s{k}", range(3000), [math.nan, 1.0, 900.0] * 1000) for k in (0, 1)],
        "k",
    ),
    "negative curve": lambda: plots.curves(
        "$\\frac{$", [plots.Curve("a", [1, 2], [-1.0, math.inf])], "k"
    ),
    "reliability": lambda: plots.reliability(DIAGRAM, PALETTE[1]),
    "bars": lambda: plots.bars(
        [row("a"), row("b", math.inf), row("a", None)], "accuracy", colours("ab")
    ),
    "bars of nothing": lambda: plots.bars([row("a", 0.0, None)], "accuracy", colours("a")),
    "scatter": lambda: plots.scatter(
        torch.rand(40, 2, generator=torch.Generator().manual_seed(0)),
        [f"c{k % 20}" for k in range(40)],
    ),
    "heat map": lambda: plots.heat_map(
        torch.eye(4) - 0.25, ["a", "a", "b", "汉字"], ["a", "bird", "$\\x{$", "d"]
    ),
    "large heat map": lambda: plots.heat_map(
        torch.eye(100), [str(k) for k in range(100)], [str(k) for k in range(100)]
    ),
    "heat map of zeros": lambda: plots.heat_map(torch.zeros(1, 2), ["a"], ["a", "b"]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_sound_svg_and_equal_each_time(name: str) -> None:
    svg = FIGURES[name]()
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert FIGURES[name]() == svg
    assert len(svg) < 250_000


def test_a_figure_follows_the_readers_theme() -> None:
    svg = FIGURES["bars"]().decode()
    assert "currentColor" in svg
    assert svg.count(INK) == 1  # in the rule that says what currentColor is
    assert "prefers-color-scheme:dark" in svg


def test_the_users_matplotlib_is_neither_asked_nor_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = FIGURES["curves"]()
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "text.usetex": True}):
        before = dict(matplotlib.rcParams)
        assert FIGURES["curves"]() == plain
        assert dict(matplotlib.rcParams) == before
    assert (
        "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    )


def test_without_matplotlib_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r'pip install "pseudocore\[report\]"'):
        draw(1, 1, print)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What was handed to the axes, by the name of the call."""
    calls: dict[str, list[Any]] = {}

    def recording(name: str) -> Callable[..., Any]:
        call = getattr(matplotlib.axes.Axes, name)

        def record(axes: Any, *args: Any, **style: Any) -> Any:
            calls.setdefault(name, []).append((*args, style))
            return call(axes, *args, **style)

        return record

    for name in ("plot", "bar", "barh", "errorbar", "set_yscale"):
        monkeypatch.setattr(matplotlib.axes.Axes, name, recording(name))
    return calls


def test_bars_are_as_long_as_the_means(drawn: dict[str, list[Any]]) -> None:
    plots.bars(
        [row("a", 0.75, 0.125), row("b", math.inf, None), row("c", 0.5, None)],
        "accuracy",
        colours("abc"),
    )
    assert [call[1] for call in drawn["barh"]] == [0.75, 0.0, 0.5]
    assert [call[-1]["color"] for call in drawn["barh"]] == list(PALETTE[:3])
    ((at, place, style),) = drawn["errorbar"]
    assert (at, place, style["xerr"]) == (0.75, 0, 0.125)


def test_reliability_draws_filled_bins_at_their_place(drawn: dict[str, list[Any]]) -> None:
    plots.reliability(DIAGRAM, "k")
    accuracies, counts = drawn["bar"]
    assert accuracies[0] == pytest.approx([0.5, 5 / 6])
    assert accuracies[1] == [0.4, 1.0]
    assert list(counts[1]) == [0, 10, 30]
    diagonal, points = drawn["plot"]
    assert diagonal[:2] == ([0, 1], [0, 1])
    assert points[:2] == ([0.5, 0.9], [0.4, 1.0])


def test_a_curve_that_spans_a_lot_is_logarithmic(drawn: dict[str, list[Any]]) -> None:
    plots.curves("loss", [plots.Curve("a", [1, 2], [1.0, 1000.0])], "k")
    assert [call[0] for call in drawn["set_yscale"]] == ["log"]
    plots.curves("loss", [plots.Curve("a", [1, 2], [0.0, 1000.0])], "k")
    plots.curves("loss", [plots.Curve("a", [1, 2], [1.0, 2.0])], "k")
    assert len(drawn["set_yscale"]) == 1


def test_a_long_curve_is_smoothed_without_bending_a_line(drawn: dict[str, list[Any]]) -> None:
    values = [2.0 * step for step in range(200)]
    values[100] = math.nan
    plots.curves("loss", [plots.Curve("a", range(200), values)], "k")
    _, (steps, smooth, _) = drawn["plot"]
    inside = (steps >= 5) & (steps < 195) & (abs(steps - 100) > 5)
    np.testing.assert_allclose(smooth[inside], 2.0 * steps[inside])
    assert np.isnan(smooth[[0, 4, -1, -5]]).all()
    assert smooth[100] == pytest.approx(200)  # the gap itself, from its neighbours


def test_labels_name_what_rows_do_not_share() -> None:
    assert plots.row_labels([row("a"), row("b")]) == ["a", "b"]
    rows = [
        row("a"),
        row("a", per_class=10),
        row("full", per_class="all", inference="sgd"),
        row("a", per_class=None),
    ]
    assert plots.row_labels(rows) == [
        "a\n1 per class · hmc",
        "a\n10 per class · hmc",
        "full\nall · sgd",
        "a\nhmc",
    ]


def test_colours_follow_the_order_of_first_appearance() -> None:
    assert colours(["b", "a", "b"]) == {"b": PALETTE[0], "a": PALETTE[1]}
    many = colours(map(str, range(9)))
    assert many["8"] == many["0"]
    assert all(re.fullmatch(r"#[0-9a-f]{6}", colour) for colour in PALETTE)


def test_plain_text_is_short_printable_and_on_one_line() -> None:
    assert plain_text("a\nb\x00\ud800") == "a b ?"
    assert plain_text("x" * 40, 10) == "x" * 9 + "…"
    assert plain_text(3) == "3"
