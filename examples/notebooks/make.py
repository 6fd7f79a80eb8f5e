"""The tutorials as notebooks, with what their code prints: python examples/notebooks/make.py"""

import contextlib
import io
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGES = HERE.parents[1] / "docs" / "tutorials"
NAMES = ("arrays", "images", "tabular")
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def cells(page: str) -> list[dict[str, Any]]:
    """The page as cells: its text, and its Python without outputs."""
    parts = FENCE.split(re.sub(r"!\[[^\]]*\]\([^)]*\)\n", "", page))
    found: list[dict[str, Any]] = []
    for place, part in enumerate(parts):
        lines = part.strip().splitlines(keepends=True)
        own = {"id": f"cell-{place}", "metadata": {}, "source": lines}
        if place % 2:
            found.append({"cell_type": "code", "execution_count": None, "outputs": [], **own})
        elif lines:
            found.append({"cell_type": "markdown", **own, "source": _from_here(lines)})
    return found


def _from_here(lines: list[str]) -> list[str]:
    """Links of a page in docs/tutorials as links from this folder."""
    link = re.compile(r"\]\((?!https?:)([^)]+)\)")
    path = lambda found: f"](../../docs/{os.path.normpath(f'tutorials/{found[1]}')})"  # noqa: E731
    return [link.sub(path, line) for line in lines]


def executed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells with what their code prints, run in order in an empty folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    before, number = Path.cwd(), 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for cell in found:
                if cell["cell_type"] == "code":
                    number += 1
                    printed = io.StringIO()
                    with contextlib.redirect_stdout(printed):
                        exec(compile("".join(cell["source"]), "cell", "exec"), names)
                    text = printed.getvalue().splitlines(keepends=True)
                    out = {"name": "stdout", "output_type": "stream", "text": text}
                    cell |= {"execution_count": number, "outputs": [out] if text else []}
        finally:
            os.chdir(before)
    return found


def main() -> None:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    for name in NAMES:
        page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
        notebook = {"cells": executed(cells(page)), "metadata": {"kernelspec": kernel}}
        text = json.dumps({**notebook, "nbformat": 4, "nbformat_minor": 5}, indent=1)
        (HERE / f"{name}.ipynb").write_text(text + "\n", encoding="utf-8")
        print(f"{name}.ipynb")


if __name__ == "__main__":
    main()
