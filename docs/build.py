"""Build the site: `make docs`, or `python docs/build.py`. Needs the extra `docs`.

The pages are staged in build/docs beside what is generated from the code, and what they link to
elsewhere in the repository is copied. Equations become MathML, so that no script is fetched.
"""

import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from latex2mathml.converter import convert

sys.path.insert(0, str(Path(__file__).parent))
from reference_pages import DOCS, all_pages

ROOT = DOCS.parent
STAGE = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
MOVED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md",
         "README.md": "index.md", "SECURITY.md": "security.md",
         "CODE_OF_CONDUCT.md": "code_of_conduct.md"}  # fmt: skip
"""Pages of the root by their name on the site."""
MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
FETCHED = '<script src="https://unpkg.com/iframe-worker/shim" type="text/javascript"></script>'
"""What zensical would fetch for search in pages opened from a folder."""
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def stage() -> None:
    """Copy the pages, generate the others, and bring links out of docs/ onto the site."""
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(DOCS, STAGE, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for name, page in MOVED.items():
        if (ROOT / name).is_file() and name != "README.md":
            (STAGE / page).write_text(_inside((ROOT / name).read_text(), ROOT, STAGE / page))
    for page in DOCS.rglob("*.md"):
        target = STAGE / page.relative_to(DOCS)
        target.write_text(_inside(page.read_text(), page.parent, target))
    for name, text in all_pages().items():
        target = STAGE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def _inside(text: str, folder: Path, page: Path) -> str:
    """The text with every link to a file of the repository made one to its place on the site."""

    def moved(link: re.Match[str]) -> str:
        name, hash_, anchor = link[2].partition("#")
        if not name or re.match(r"[a-z]+:", name):
            return link[0]
        file = (folder / name).resolve()
        target = STAGE / _place(file)
        if file.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
        return f"{link[1]}{os.path.relpath(target, page.parent)}{hash_}{anchor}{link[3]}"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)


def _place(file: Path) -> Path:
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS)
    inside = file.relative_to(ROOT)
    return Path(MOVED.get(str(inside), f"files/{inside}"))


def finish(page: Path) -> None:
    """Equations of a finished page as MathML, and its search without the network."""
    text = page.read_text(encoding="utf-8")

    def mathml(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return convert(html.unescape(found[2]).strip(), display=display)

    script = os.path.relpath(SITE / "offline.js", page.parent)
    text = text.replace(FETCHED, f'<script src="{script}"></script>')
    text = re.sub(
        r"(<pre>(?:<span></span>)?<code)>", r'\1 tabindex="0">', text
    )  # scrolls by keyboard
    page.write_text(MATH.sub(mathml, text), encoding="utf-8")


def main() -> int:
    """Stage, build and finish; the exit code of zensical."""
    stage()
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
        return code
    for page in SITE.rglob("*.html"):
        finish(page)
    print(f"open {SITE / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
