"""Figures: their look and their way into a page.

They are SVG drawn without pyplot, so no window system and no global state is involved. Their ink
is the page's text colour and follows the reader's light or dark theme. Letters are drawn as
outlines and never parsed as mathematics, since labels come from strangers' files.
"""

import base64
import collections
import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pseudocore.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.2, 3.2
"""Inches of most figures: a column of about 400 pixels, readable on a phone."""

INK = "#24292f"
"""Text and axes; becomes the reader's own text colour."""

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#a39a1b", "#8c8c8c")
"""Okabe and Ito's colours, distinguishable by colour-blind readers; the yellow is darkened and the
black a grey, for both themes.
"""

DASHED: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 3))}

MAX_SERIES = 8
"""Lines or bars next to each other that can still be distinguished."""

_DARK_INK = "#d7dbe0"

_PADDING, _METADATA = re.compile(rb"\s*\n\s*"), re.compile(rb"<metadata>.*?</metadata>", re.DOTALL)
_DECIMALS = re.compile(rb"-?\d+\.\d{4,}")

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


class Image(NamedTuple):
    """An image of the page."""

    source: str
    """A data URI."""
    alt: str
    caption: str = ""


def figure(
    paint: Callable[["Figure"], None], alt: str, caption: str = "", *, height: float = HEIGHT
) -> Image:
    """A figure of the page's column width."""
    return image(draw(WIDTH, height, paint), alt, caption)


def image(file: bytes, alt: str, caption: str = "", kind: str = "image/svg+xml") -> Image:
    """A file packed into the page, which so stands alone."""
    return Image(f"data:{kind};base64,{base64.b64encode(file).decode()}", alt, caption)


def draw(width: float, height: float, paint: Callable[["Figure"], None]) -> bytes:
    """The SVG file of what `paint` puts on an empty figure of so many inches."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("matplotlib") from error
    file = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a letter the font lacks is drawn as a box
        matplotlib.rcdefaults()  # ignore the reader's own style file
        settings: Any = matplotlib.rcParams
        settings.update(_STYLE)
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    rule = f"svg{{color:{INK}}}@media(prefers-color-scheme:dark){{svg{{color:{_DARK_INK}}}}}"
    opening = b'<style type="text/css">'
    svg = _DECIMALS.sub(_rounded, file.getvalue().replace(INK.encode(), b"currentColor"))
    svg = _PADDING.sub(b"\n", _METADATA.sub(b"", svg))
    return svg.replace(opening, opening + rule.encode(), 1)


def colours(names: Iterable[str]) -> dict[str, str]:
    """One colour per name in order of appearance; they repeat after eight."""
    return {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(dict.fromkeys(names))}


def plain_text(text: object, length: int = 32) -> str:
    """A stranger's text as a label: one line, drawable, cut at `length`."""
    words = str(text).encode("utf-8", "replace").decode()  # a lone surrogate cannot be drawn
    words = "".join(char if char.isprintable() else " " for char in words)
    return words if len(words) <= length else words[: length - 1] + "…"


def labels(names: Sequence[object], length: int = 36) -> list[str]:
    """Names as labels that stay distinct where cutting them would make them equal."""
    cut = [plain_text(name, length) for name in names]
    counts = collections.Counter(cut)
    seen: collections.Counter[str] = collections.Counter()
    found = []
    for name, text in zip(names, cut, strict=True):
        if counts[text] > 1:
            seen[text] += 1
            number = f" #{seen[text]}"
            text = plain_text(name, length - len(number)) + number
        found.append(text)
    return found


def plain_ticks(axis: "Axis") -> None:
    """Numbers of a logarithmic axis as plain text: powers of ten would be mathematics."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _rounded(number: re.Match[bytes]) -> bytes:
    """Five digits are a hundredth of a pixel; half of a drawing is digits beyond."""
    return b"%.5g" % float(number[0])


def line(name: str, place: int, colour: str, length: int = 36) -> dict[str, Any]:
    """The style of one of several named lines."""
    label, dashes = plain_text(name, length), ("-", "--", ":", "-.")[place % 4]
    return {"color": colour, "linestyle": dashes, "label": label}


def error_bars(axes: "Axes", points: Sequence[tuple[float, ...]], **style: Any) -> None:
    """A line through means with deviations: points are (place, mean, deviation)."""
    at, means, deviations = zip(*points, strict=True)
    axes.errorbar(at, means, deviations, marker="o", markersize=3.5, capsize=2, **style)


def missing_extra(package: str) -> ConfigError:
    """The error for an optional package of the report that is not installed."""
    return ConfigError(
        f"a report needs {package}, which is not installed; "
        'pip install "pseudocore[report]" brings it',
        code="missing-package",
        package=package,
    )
