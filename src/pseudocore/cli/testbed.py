"""pseudocore testbed: every divergence method on a problem whose posterior is known, measured by
the true divergences.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter, validators
from rich.table import Table

from pseudocore.cli import flags as flagging
from pseudocore.cli.console import err, out, print_json, progress
from pseudocore.cli.flags import Json, Whole
from pseudocore.cli.output import keep_and_show
from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.reproduce import testbed as bench
from pseudocore.reproduce.testbed import Bed, Curve
from pseudocore.store.files import write_bytes, write_json, writing
from pseudocore.store.folders import MANIFEST_FILE

NAME = "testbed"


def make_app(words: Sequence[str]) -> App:
    """The verb with the settings of the test bed as flags."""
    return flagging.verb(NAME, _verb(), flagging.parameters(Bed, "Test bed"))


def _verb() -> Callable[..., Any]:
    def testbed(
        *,
        folder: Annotated[
            Path, Parameter(name="--out", help="Folder for testbed.json and the figures.")
        ] = Path("testbed"),
        method: Annotated[
            list[str] | None,
            Parameter(
                negative="",
                help="A method to run; repeat it for several. [default: all]",
                show_default=False,
            ),
        ] = None,
        size: Annotated[
            list[int] | None,
            Parameter(
                negative="",
                validator=validators.Number(gte=1),
                help="A number of points; repeat it for several. [default: 5 20 40 60 80 100]",
                show_default=False,
            ),
        ] = None,
        seed: Annotated[
            int, Whole, Parameter(help="Seed of the data and of every random stream.")
        ] = 0,
        json: Json = False,
        **given: Any,
    ) -> int:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(
                f"{folder} is a file; --out takes a folder, for the numbers and the figures"
            )
        if (folder / MANIFEST_FILE).exists():
            raise ConfigError(f"{folder} holds a run or experts; --out takes a folder of its own")
        bed = config.build(Bed, flagging.given(given, Bed), what=NAME)
        methods, sizes = (
            list(dict.fromkeys(method or bench.METHODS)),
            sorted(set(size or bench.SIZES)),
        )
        began, curves = time.monotonic(), list[Curve]()
        with progress(NAME, len(methods) * len(sizes)) as advance:

            def on_curve(curve: Curve) -> None:
                curves.append(curve)
                advance(len(curves), {"reverse_kl": curve.values["reverse_kl"][-1]})

            bench.run(bed, methods=methods, sizes=sizes, seed=seed, on_curve=on_curve)
        document = _document(bed, curves, seed, time.monotonic() - began)
        keep_and_show(
            lambda: print_json(document) if json else out.print(_table(document)),
            lambda: _keep(folder, document, curves),
        )
        return 0

    return testbed


def _document(bed: Bed, curves: Sequence[Curve], seed: int, seconds: float) -> dict[str, Any]:
    """Settings, floors by size, and every curve with the share by which each divergence fell."""
    fell = [
        {
            name: 1 - values[-1] / values[0] if values[0] else math.nan
            for name, values in curve.values.items()
        }
        for curve in curves
    ]
    return {
        "settings": config.to_dict(bed),
        "seed": seed,
        "seconds": round(seconds, 1),
        "floors": {
            str(size): bench.floor(bed, size) for size in sorted({curve.size for curve in curves})
        },
        "curves": [
            {**curve._asdict(), "fell": share} for curve, share in zip(curves, fell, strict=True)
        ],
    }


def _keep(folder: Path, document: dict[str, Any], curves: Sequence[Curve]) -> None:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "testbed.json", document)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        err.print(
            f'numbers in {folder}/testbed.json; for the figures: pip install "pseudocore[report]"'
        )
        return
    from pseudocore.report import testbed_plots

    floors = {int(size): values for size, values in document["floors"].items()}
    write_bytes(folder / "steps.svg", testbed_plots.over_steps(curves, floors))
    write_bytes(folder / "sizes.svg", testbed_plots.over_sizes(curves, floors))
    err.print(f"numbers and figures in {folder}/: testbed.json, steps.svg, sizes.svg")


def _table(document: dict[str, Any]) -> Table:
    """A row a method and size: each divergence before the first step and after the last."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("method")
    for title in ("M", "reverse KL", "forward KL", "W₂²", "fell by"):
        table.add_column(title, justify="right")
    for curve in document["curves"]:
        ends = [f"{values[0]:.4g} → {values[-1]:.3g}" for values in curve["values"].values()]
        table.add_row(
            curve["method"], str(curve["size"]), *ends, f"{min(curve['fell'].values()):.1%}"
        )
    for size, values in document["floors"].items():
        table.add_row(
            "floor at weight 1",
            size,
            *(f"{round(value, 9) + 0.0:.3g}" for value in values.values()),
            "",
        )
    return table
