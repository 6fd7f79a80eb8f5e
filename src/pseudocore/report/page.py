"""One self-contained HTML file about some runs: no scripts, nothing fetched, everything from a run
escaped.
"""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from pseudocore.report.content import gather
from pseudocore.report.figure import missing_extra
from pseudocore.store.files import StrPath, write_bytes
from pseudocore.store.run_folder import Run


def render(runs: Sequence[Run], out: StrPath) -> Path:
    """Write the page and return where it is; equal runs give equal bytes. An existing file is
    replaced whole.
    """
    try:
        import jinja2
    except ImportError as error:
        raise missing_extra("jinja2") from error
    folder = files("pseudocore.report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(folder.joinpath("page.html.j2").read_text(encoding="utf-8"))
    page = template.render(
        content=gather(runs), css=folder.joinpath("page.css").read_text(encoding="utf-8")
    )
    write_bytes(
        out, page.lstrip().encode("utf-8", "replace")
    )  # a lone surrogate of a stranger's name becomes a question mark
    return Path(out)
