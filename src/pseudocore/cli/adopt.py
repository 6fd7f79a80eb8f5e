"""`pseudocore adopt FILE DATA`: somebody's distilled set as a coreset file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App

from pseudocore.assembly import READING_FIELDS, Setup
from pseudocore.cli import flags as flagging
from pseudocore.cli.console import hint
from pseudocore.cli.flags import Whole
from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.data.distilled import Units
from pseudocore.store.coreset_file import save_coreset
from pseudocore.store.run_folder import refuse_own_file
from pseudocore.workflows.distilled import read_distilled

NAME = "adopt"


def make_app(_: Sequence[str]) -> App:
    skip = [
        o.name for o in config.options(Setup) if o.name not in READING_FIELDS or o.name == "labels"
    ]
    return flagging.verb(NAME, _verb(), flagging.parameters(Setup, "How to read DATA", skip=skip))


def _verb() -> Callable[..., Any]:
    def adopt(
        file: Path,
        data: str,
        /,
        *,
        out: Path,
        labels: str | None = None,
        units: Units = "auto",
        mean: str | None = None,
        std: str | None = None,
        number: Annotated[int, Whole] = 0,
        **given: Any,
    ) -> int:
        """Turn somebody's distilled set into a coreset file.

        Args:
            file: .pt file as of DC, DSA, DM or MTT, .npz file as of FRePo or KIP, or folder of pictures.
            data: Data set it was distilled from.
            out: Coreset file to write, .safetensors.
            labels: File of the labels where they are apart, or in-order.
            units: Units of the images: pixels, normalised as published, or by the data's own moments. By
                default pixels where they lie in 0 to 1, else published.
            mean: Mean by channel that images were normalised with, as .49,.48,.45.
            std: Deviation by channel, likewise.
            number: Which set of a file that holds several.
        """
        if out.suffix != ".safetensors":
            raise ConfigError(f"{out} must end in .safetensors", code="wrong-format")
        refuse_own_file(out)
        points = read_distilled(
            file,
            data,
            labels=labels,
            units=units,
            mean=_numbers(mean),
            std=_numbers(std),
            number=number,
            **flagging.given(given, Setup),
        )
        save_coreset(out, points)
        made = points.provenance["distilled"]
        hint(
            f"{out}: {len(points)} points, labels {made['labels']}, {made['units']}; next: pseudocore"
            f" evaluate {out} --inference sgd, or pseudocore rank {out}"
        )
        return 0

    return adopt


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        message = f"{text!r} is not numbers separated by commas"
        raise ConfigError(message, code="invalid-options") from None
