"""Entry point: parse, run, and turn what the user can mend into one sentence and exit code 2."""

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from pseudocore import __version__
from pseudocore.cli import listing, reduce
from pseudocore.cli.console import err
from pseudocore.cli.demo import demo
from pseudocore.cli.evaluate import make_app
from pseudocore.core.errors import PseudocoreError

__all__ = ["main"]


def main(tokens: Sequence[str] | None = None) -> None:
    tokens = list(sys.argv[1:] if tokens is None else tokens)
    try:
        sys.exit(_app(tokens)(tokens, exit_on_error=False, print_error=False))
    except (PseudocoreError, CycloptsError) as error:
        err.print(f"pseudocore: {_sentence(error)}", style=None, markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)


def _app(tokens: Sequence[str]) -> App:
    app = App(
        name="pseudocore",
        help="Turns a training set into a tiny one that carries its posterior.",
        version=__version__,
        result_action="return_value",
    )
    app.command(demo)
    app.command(listing.methods)
    app.command(listing.data)
    reduce.register()
    app.command(reduce.app)
    app.command(make_app(tokens[1:] if tokens[:1] == ["evaluate"] else []))
    for verb in (listing.compare, listing.report, listing.export):
        app.command(verb)
    return app


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())
