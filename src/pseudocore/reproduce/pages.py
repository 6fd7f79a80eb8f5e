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

_STYLE = """body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums } th, td { padding: .2rem .7rem; text-align: left }
th { border-bottom: 2px solid #888 } td { border-bottom: 1px solid #ddd } code { background: #f2f2f2; padding: 0 .2rem }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #1b1b1b } td { border-color: #444 } code { background: #333 } }"""


def to_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def to_html(blocks: Sequence[Block], *, title: str) -> str:
    """No scripts, nothing fetched, every text escaped."""
    body = "\n".join(_html(block) for block in blocks)
    head = (
        f'<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n<style>\n{_STYLE}\n</style>'
    )
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def _markdown(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {text}"
        case Paragraph(text):
            return text
        case Bullets(texts):
            return "\n".join(f"- {text}" for text in texts)
        case Grid(header, rows):
            lines = [header, tuple("---" for _ in header), *rows]
            return "\n".join(
                "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
                for line in lines
            )


def _html(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{_inline(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{_inline(text)}</p>"
        case Bullets(texts):
            return "<ul>" + "".join(f"<li>{_inline(text)}</li>" for text in texts) + "</ul>"
        case Grid(header, rows):
            head = "".join(f"<th>{_inline(cell)}</th>" for cell in header)
            lines = "\n".join(
                "<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>"
                for row in rows
            )
            return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table>"


def _inline(text: str) -> str:
    """Code, emphasis and links, the Markdown that texts here have."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    text = re.sub(r"\*([^*]+)\*", r"<em>\1</em>", text)
    return re.sub(r"\[([^\]]+)\]\(([\w./#-]+)\)", r'<a href="\2">\1</a>', text)
