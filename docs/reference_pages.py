"""Pages generated from the code: methods and inferences, the command line, the Python API; from
stored results: published tables.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pseudocore
from pseudocore.cli.main import make_app
from pseudocore.core.registry import Entry, inferences, methods

sys.path.insert(0, str(Path(__file__).parent))
import reproduction_pages

DOCS = Path(__file__).parent
KINDS = {
    "bayes": "Bayesian pseudo-coresets",
    "condense": "Dataset condensation",
    "select": "Selection of real points",
}
ELSEWHERE = ("inference", "methods")
"""Public modules with pages of their own."""
SHARED = "uniform"
"""The method on whose page the flags that all methods share are read."""
SHARED_GROUPS = ("Arguments", "Parameters", "Data and model", "Engine")
"""Headings of the flags that every method of `reduce` has."""


def all_pages() -> dict[str, str]:
    """Path below docs/ and text of every generated page."""
    pages = {"methods.md": methods_page(), "reference/python.md": _python_page()}
    for kind in KINDS:
        pages[f"reference/{kind}.md"] = _classes_page(kind)
        pages[f"reference/cli/{kind}.md"] = _flags_page(kind)
    pages["reference/inferences.md"] = _inferences_page()
    for verb in (name for name in make_app([]) if not name.startswith("-")):
        pages[f"reference/cli/{verb}.md"] = _verb_page(verb)
    pages["reproduction.md"] = reproduction_pages.summary_page()
    return pages | reproduction_pages.detail_pages()


def methods_page() -> str:
    """Every method and inference in one table per kind; committed as docs/methods.md."""
    lines = [
        "# Methods",
        "",
        "Written by `python docs/reference_pages.py` from the code.",
    ]
    for kind, title in KINDS.items():
        lines += ["", f"## {title}", ""]
        lines += [
            "| method | what it is | targets | learns weights | paper |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(entry) for entry in methods if entry.kind == kind]
    lines += [
        "", "## Inferences", "", "What turns a coreset, or a full data set, into a posterior "
        "([inference.md](inference.md)).", "", "| inference | kind | what it is | paper |",
        "|---|---|---|---|",
    ]  # fmt: skip
    lines += [
        f"| `{entry.name}` | {entry.kind} | {entry.summary} | {entry.paper} |"
        for entry in inferences
    ]
    return "\n".join(lines) + "\n"


def _row(entry: Entry) -> str:
    """Linked with the page of its name, else with the one whose opening names it."""
    name = f"`{entry.name}`"
    pages = [page for page in sorted(DOCS.glob("*.md")) if name in page.read_text()[:1500]]
    pages = [
        page for page in pages if page.name not in ("index.md", "methods.md", "cli.md", "api.md")
    ]
    own = DOCS / f"{entry.name}.md"
    pages = [own] if own.is_file() else pages
    linked = f"[{name}]({pages[0].name})" if pages else name
    return f"| {linked} | {entry.summary} | {entry.targets} | {entry.weights} | {entry.paper} |"


def _python_page() -> str:
    things = {name: getattr(pseudocore, name) for name in pseudocore.__all__ if "__" not in name}
    lines = [
        "# Python API",
        "",
        "Everything `pseudocore` exports. [api.md](../api.md) is a tour.",
        "",
    ]
    for thing in things.values():
        if not isinstance(thing, ModuleType):
            lines += [f"::: {thing.__module__}.{thing.__qualname__}", ""]
    for name, module in things.items():
        if isinstance(module, ModuleType) and name not in ELSEWHERE:
            lines += [f"## {name}", "", f"::: {module.__name__}", ""]
    return "\n".join(lines)


def _classes_page(kind: str) -> str:
    lines = [f"# {KINDS[kind]}: classes", "", "Each is a frozen dataclass whose fields are its "
             "options, in Python and as flags. Members of `pseudocore.methods`.", ""]  # fmt: skip
    modules: dict[str, list[str]] = {}
    for entry in methods:
        if entry.kind == kind:
            modules.setdefault(entry.make.__module__, []).append(entry.make.__name__)
    return "\n".join([*lines, *_members(modules)])


def _inferences_page() -> str:
    modules: dict[str, list[str]] = {}
    for entry in inferences:
        modules.setdefault(entry.make.__module__, []).append(entry.make.__name__)
    lines = ["# Inferences: classes", "", "Members of `pseudocore.inference`.", ""]
    return "\n".join([*lines, *_members(modules)])


def _members(modules: dict[str, list[str]]) -> Iterator[str]:
    for module, names in modules.items():
        yield from (f"::: {module}", "    options:", "      members:")
        yield from (f"        - {name}" for name in names)
        yield ""


def _verb_page(verb: str) -> str:
    words = [verb, SHARED] if verb == "reduce" else [verb]
    app = make_app(words)[verb]
    text = app.generate_docs(output_format="markdown", recursive=True)
    if verb == "reduce":
        kinds = ", ".join(f"[{title.lower()}]({kind}.md)" for kind, title in KINDS.items())
        note = f"These flags are those of every method; each has its own, too: {kinds}."
        usage = "pseudocore reduce METHOD DATA --out RUN [OPTIONS]"
        text = f"# reduce\n\n```console\n{usage}\n```\n\n{app.help}\n\n{note}\n\n"
        text += "\n\n".join(_groups("uniform", SHARED_GROUPS))
    else:
        text = re.sub(r"^```console\n", "```console\npseudocore ", text, flags=re.MULTILINE)
        text = re.sub(r"## Table of Contents\n.*?\n(?=\*\*)", "", text, flags=re.DOTALL)
    return text.rstrip() + "\n"


def _flags_page(kind: str) -> str:
    lines = [f"# reduce: {KINDS[kind].lower()}", "", "Flags of each method, besides those that "
             "[every method](reduce.md) has.", ""]  # fmt: skip
    for entry in methods:
        if entry.kind == kind:
            lines += [f"## {entry.name}", "", f"{entry.summary}.", ""]
            lines += [group + "\n" for group in _groups(entry.name, None, SHARED_GROUPS)]
    return "\n".join(lines)


def _groups(
    name: str, wanted: tuple[str, ...] | None, without: tuple[str, ...] = ()
) -> Iterator[str]:
    """The lists of flags of one method, under the headings of its help."""
    text = make_app(["reduce", name])["reduce"].generate_docs(output_format="markdown")
    for group in re.split(r"^(?=\*\*[^*]+\*\*:$)", text, flags=re.MULTILINE)[1:]:
        title = group.partition("**:")[0].removeprefix("**")
        if title != "Commands" and (title in wanted if wanted else title not in without):
            yield group.rstrip()


if __name__ == "__main__":
    (DOCS / "methods.md").write_text(methods_page(), encoding="utf-8")
    (DOCS / "reproduction.md").write_text(reproduction_pages.summary_page(), encoding="utf-8")
    reproduction_pages.write_figures()
