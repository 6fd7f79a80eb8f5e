"""`pseudocore testbed`: every divergence method on a problem whose posterior is known."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter, validators
from rich.table import Table

from pseudocore.cli import flags as flagging
from pseudocore.cli.console import hint, out, print_json, progress
from pseudocore.cli.flags import Json, Whole
from pseudocore.cli.output import keep_and_show
from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.reproduce.testbed import METHODS, SIZES, Bed, Curve, floor, run
from pseudocore.store.files import write_bytes, write_json, writing
from pseudocore.store.folders import MANIFEST_FILE

NAME = "testbed"
_Names = Annotated[list[str] | None, Parameter(negative="", show_default=False)]
_SIZES = Parameter(negative="", validator=validators.Number(gte=1), show_default=False)


def make_app(words: Sequence[str]) -> App:
    """The verb with the settings of the test bed as flags."""
    return flagging.verb(NAME, _function(), flagging.parameters(Bed, "Test bed"))


def _function() -> Callable[..., Any]:
    def testbed(
        *,
        folder: Annotated[Path, Parameter(name="--out")] = Path("testbed"),
        method: _Names = None,
        size: Annotated[list[int] | None, _SIZES] = None,
        seed: Annotated[int, Whole] = 0,
        json: Json = False,
        **given: Any,
    ) -> int:
        """Run the test bed.

        Args:
            folder: Folder for testbed.json and the figures.
            method: A method to run, default all; repeat for several.
            size: A number of points, default 5 20 40 60 80 100; repeat for several.
            seed: Seed of the data and of every random stream.
        """
        if folder.exists() and not folder.is_dir():
            raise ConfigError(
                f"{folder} is a file; --out takes a folder for the numbers and the figures",
                code="not-a-folder",
                path=folder,
            )
        if (folder / MANIFEST_FILE).exists():
            raise ConfigError(
                f"{folder} holds a run or experts; --out takes a folder of its own",
                code="folder-in-use",
                path=folder,
            )
        bed = config.build(Bed, flagging.given(given, Bed), what=NAME)
        methods = list(dict.fromkeys(method or METHODS))
        sizes = sorted(set(size or SIZES))
        began, curves = time.monotonic(), list[Curve]()
        with progress(NAME, len(methods) * len(sizes)) as advance:

            def on_curve(curve: Curve) -> None:
                curves.append(curve)
                advance(len(curves), {"reverse_kl": curve.values["reverse_kl"][-1]})

            run(bed, methods=methods, sizes=sizes, seed=seed, on_curve=on_curve)
        document = {
            "settings": config.to_dict(bed),
            "seed": seed,
            "seconds": round(time.monotonic() - began, 1),
            "floors": {str(size): floor(bed, size) for size in sizes},
            "curves": [{**curve._asdict(), "fell": _fall(curve)} for curve in curves],
        }
        keep_and_show(
            lambda: print_json(document) if json else out.print(_table(document)),
            lambda: _keep(folder, document, curves),
        )
        return 0

    return testbed


def _fall(curve: Curve) -> dict[str, float]:
    """The share by which each divergence fell."""
    return {
        name: 1 - values[-1] / values[0] if values[0] else math.nan
        for name, values in curve.values.items()
    }


def _keep(folder: Path, document: dict[str, Any], curves: Sequence[Curve]) -> None:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "testbed.json", document)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        advice = 'for the figures: pip install "pseudocore[report]"'
        hint(f"numbers in {folder}/testbed.json; {advice}")
        return
    from pseudocore.report import testbed_plots

    floors = {int(size): values for size, values in document["floors"].items()}
    write_bytes(folder / "steps.svg", testbed_plots.over_steps(curves, floors))
    write_bytes(folder / "sizes.svg", testbed_plots.over_sizes(curves, floors))
    hint(f"numbers and figures in {folder}/: testbed.json, steps.svg, sizes.svg")


def _table(document: dict[str, Any]) -> Table:
    """A row for each method and size: each divergence before the first step and after the last."""
    table = Table("method", box=None, header_style="bold", pad_edge=False)
    for title in ("M", "reverse KL", "forward KL", "W₂²", "fell by"):
        table.add_column(title, justify="right")
    for curve in document["curves"]:
        ends = [f"{values[0]:.4g} → {values[-1]:.3g}" for values in curve["values"].values()]
        fall = f"{min(curve['fell'].values()):.1%}"
        table.add_row(curve["method"], str(curve["size"]), *ends, fall)
    for size, values in document["floors"].items():
        least = [f"{round(value, 9) + 0.0:.3g}" for value in values.values()]
        table.add_row("floor at weight 1", size, *least, "")
    return table
