"""The verbs under one name."""

from collections.abc import Sequence

from cyclopts import App

from pseudocore import __version__
from pseudocore.cli import bench, continual, evaluate, experts, reduce, table, testbed
from pseudocore.cli import listings as listing
from pseudocore.cli.demo import demo
from pseudocore.cli.presets import presets


def make_app(tokens: Sequence[str]) -> App:
    """The command line; some verbs have flags that depend on what else these words say."""
    app = App(
        name="pseudocore",
        help="Turns a training set into a tiny one that carries its posterior.",
        version=__version__,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    app.command(demo)
    app.command(listing.methods)
    app.command(presets)
    app.command(listing.data)
    for verb in (experts, reduce, evaluate, continual, testbed, bench, table):
        app.command(verb.make_app(tokens[1:] if tokens[:1] == [verb.NAME] else []))
    for command in (listing.compare, listing.report, listing.export):
        app.command(command)
    return app
