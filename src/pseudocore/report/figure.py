"""The look of every figure, and its way into a page.

Figures are SVG drawn without pyplot, so no window system and no global state is involved. Their ink
is the page's text colour: it follows the reader's light or dark theme. Letters are drawn as
outlines and never parsed as mathematics, since labels come from strangers' files.
"""

import base64
import io
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pseudocore.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


INK = "#24292f"
"""Text and axes; becomes the reader's own text colour."""

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#a39a1b", "#8c8c8c")
"""Okabe and Ito's colours, told apart by colour-blind readers; the yellow is darkened and black a
grey, for both themes.
"""

_DARK_INK = "#d7dbe0"

_STYLE: dict[str, Any] = {
    "text.parse_math": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "pseudocore",  # equal figures, equal bytes
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "grid.alpha": 0.18,
    "grid.linewidth": 0.6,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8,
} | dict.fromkeys(
    ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"),
    INK,
)


def draw(width: float, height: float, paint: Callable[["Figure"], None]) -> bytes:
    """The SVG file of what `paint` puts on an empty figure of so many inches."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("matplotlib") from error
    file = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # a letter the font lacks is shown as a box; nothing a user could mend
        matplotlib.rcdefaults()  # the reader's own style file has no say here
        settings: Any = matplotlib.rcParams
        settings.update(_STYLE)
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return _following_theme(file.getvalue())


def colours(names: Iterable[str]) -> dict[str, str]:
    """One colour per name, the same wherever it is drawn; they repeat after eight."""
    return {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(dict.fromkeys(names))}


def data_uri(file: bytes, kind: str = "image/svg+xml") -> str:
    """A file as the source of an image, so that the page stands alone."""
    return f"data:{kind};base64,{base64.b64encode(file).decode()}"


def plain_text(text: object, length: int = 32) -> str:
    """A stranger's text as a label: one line, drawable, cut at `length`."""
    words = str(text).encode("utf-8", "replace").decode()  # a lone surrogate cannot be drawn
    words = "".join(char if char.isprintable() else " " for char in words)
    return words if len(words) <= length else words[: length - 1] + "…"


def plain_ticks(axis: "Axis") -> None:
    """Numbers of a logarithmic axis as plain text: powers of ten would be mathematics."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def missing_extra(package: str) -> ConfigError:
    """What to raise when an optional package of the report is not there."""
    return ConfigError(
        f'a report needs {package}, which is not installed; pip install "pseudocore[report]" brings it'
    )


def _following_theme(svg: bytes) -> bytes:
    rule = f"svg{{color:{INK}}}@media(prefers-color-scheme:dark){{svg{{color:{_DARK_INK}}}}}"
    opening = b'<style type="text/css">'
    return svg.replace(INK.encode(), b"currentColor").replace(opening, opening + rule.encode(), 1)
