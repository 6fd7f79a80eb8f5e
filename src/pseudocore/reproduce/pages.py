"""A page as blocks, written as Markdown or as one self-contained HTML file."""

import html
import re
from collections.abc import Sequence
from typing import NamedTuple


class Heading(NamedTuple):
    level: int
    text: str


class Paragraph(NamedTuple):
    text: str


class Bullets(NamedTuple):
    texts: tuple[str, ...]


class Grid(NamedTuple):
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Block = Heading | Paragraph | Bullets | Grid

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; color: #222 }}
table {{ border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }}
th, td {{ padding: .2rem .7rem; text-align: left; border-bottom: 1px solid #ccc }}
code {{ background: #f2f2f2; padding: 0 .2rem }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def to_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def to_html(blocks: Sequence[Block], *, title: str) -> str:
    """No scripts, nothing fetched, every text escaped."""
    return _PAGE.format(title=html.escape(title), body="\n".join(map(_html, blocks)))


def _markdown(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {text}"
        case Paragraph(text):
            return text
        case Bullets(texts):
            return "\n".join(f"- {text}" for text in texts)
        case Grid(header, rows):
            lines = [header, ("---",) * len(header), *rows]
            cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
            return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _html(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{_inline(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{_inline(text)}</p>"
        case Bullets(texts):
            return f"<ul>{_tagged('li', texts)}</ul>"
        case Grid(header, rows):
            lines = "\n".join(f"<tr>{_tagged('td', row)}</tr>" for row in rows)
            head = f"<thead><tr>{_tagged('th', header)}</tr></thead>"
            return f"<table>\n{head}\n<tbody>\n{lines}\n</tbody>\n</table>"


def _tagged(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{_inline(text)}</{tag}>" for text in texts)


def _inline(text: str) -> str:
    """Code, emphasis and links, the Markdown that texts here use."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    text = re.sub(r"\*([^*]+)\*", r"<em>\1</em>", text)
    return re.sub(r"\[([^\]]+)\]\(([\w./#-]+)\)", r'<a href="\2">\1</a>', text)
