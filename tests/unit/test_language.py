"""Pages, docstrings, help and messages are read by people: short sentences, words of the field."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    page
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    if "lab-notes" not in page.parts
]
MODULES = sorted((ROOT / "src").rglob("*.py"))
LONGEST = 30
"""Words of a sentence."""
A_FEW = 4
"""Sentences of pages that may be longer, so that one in the making does not stop a release."""
A_FEW_MORE = 25
"""Sentences of the source that may be longer: mathematics, and messages that list what works."""
BANNED = {
    "unless told": "Defaults to …",
    "the story of how": "provenance",
    "go on with:": "resume with:",
    "be gone on with": "be resumed",
    "would have to give up": "is unavailable under …",
    "as many in all of the": "the same total without class balance",
    "to be climbed as": "wraps …",
    "its name belongs into": "add its name to",
    "words of a setup": "setup fields",
    "what is told of": "what is configured",
}
"""What is not English of the field, and what to write instead."""

_HIDDEN = (
    re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL),
    re.compile(r"\$\$.*?\$\$", re.DOTALL),
    re.compile(r"^(\|.*|#.*|!!!.*|.*\\\\tag.*)$", re.MULTILINE),
)
"""Code, displayed equations, tables and headings: no sentences."""


def long_sentences(text: str) -> list[str]:
    for hidden in _HIDDEN:
        text = hidden.sub("\n\n", text)
    paragraphs = re.split(r"\n\s*\n|\n\s*(?=(?:[-*•]|\d+\.|D\d+\.|\w+:) )", text)
    return [
        sentence
        for paragraph in paragraphs
        for sentence in _sentences(" ".join(paragraph.split()))
        if len(re.findall(r"\S*\w\S*", sentence)) > LONGEST
    ]


def _sentences(paragraph: str) -> list[str]:
    """Links by their texts, code and formulas as one word each."""
    plain = re.sub(r"\]\([^)]*\)", "]", paragraph)
    plain = re.sub(r"``.*?``|`[^`]*`", "CODE", plain)
    plain = re.sub(r"\$[^$]*\$|\\\(.*?\\\)", "FORMULA", plain)
    return re.split(r"(?<=[.!?:])[\"')*_]*\s+(?=[A-Z*_\[(\"'–—\d])", plain)


def strings(module: Path) -> Iterator[str]:
    """Docstrings, help texts and messages, whose fields count as one word each."""
    for node in ast.walk(ast.parse(module.read_text())):
        match node:
            case ast.JoinedStr(values=parts):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts
                )
            case ast.Constant(value=str(text)) if " " in text:
                yield text


def test_sentences_are_counted() -> None:
    thirty = "Word " * 29 + "end"
    assert long_sentences(f"{thirty}. {thirty}: {thirty}.\n\n- {thirty}\n- {thirty}") == []
    assert len(long_sentences(f"one {thirty}. The `one two` word. A $b = c$ {thirty}.")) == 2
    assert long_sentences(f"| {thirty} | {thirty} |\n```sh\n{thirty} {thirty}\n```\n") == []


def test_pages_are_written_in_short_sentences() -> None:
    long = [(page.name, one) for page in PAGES for one in long_sentences(page.read_text())]
    assert len(long) <= A_FEW, long


def test_docstrings_and_messages_are_written_in_short_sentences() -> None:
    long = [
        (module.name, one)
        for module in MODULES
        for text in dict.fromkeys(strings(module))
        for one in long_sentences(text)
    ]
    assert len(long) <= A_FEW_MORE, long


def test_no_banned_phrase_is_used() -> None:
    texts = {page.name: page.read_text() for page in PAGES}
    texts |= {module.relative_to(ROOT).as_posix(): "\n".join(strings(module)) for module in MODULES}
    found = [
        f"{name}: {phrase!r}; better: {better!r}"
        for name, text in texts.items()
        for phrase, better in BANNED.items()
        if phrase in " ".join(text.lower().split())
    ]
    assert found == []
