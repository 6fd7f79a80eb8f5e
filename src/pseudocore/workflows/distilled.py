"""Other people's distilled sets as coresets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pseudocore.assembly import Data, Setup
from pseudocore.assembly import reading as reading_of
from pseudocore.core import config
from pseudocore.core.types import Coreset
from pseudocore.data import read
from pseudocore.data.distilled import Distilled, Units


def read_distilled(
    path: str | Path,
    data: Data,
    *,
    labels: str | Path | None = None,
    units: Units = "auto",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    number: int = 0,
    **reading: Any,
) -> Coreset:
    """Read somebody's distilled set as a coreset. Nothing in the file is executed.

    Args:
        path: A `.pt` file as DC, DSA, DM and MTT save it, a `.npz` file as FRePo and KIP do, or a
            folder of pictures with class folders or a file of labels.
        data: The data set it was distilled from: a name, a path, or what `dataset` takes.
        labels: File of the labels where they are apart, or "in-order" for as many points of each
            class, class by class. Defaults to the file's own, and to `labels_*.pt` for `images_*.pt`.
        units: "pixels", "published" (normalised as by DC, DSA, DM and MTT) or "standard" (by the
            data's own mean and deviation). By default pixels where they lie in 0 to 1, else published.
        mean: By channel, that images were normalised with; with `std` in place of `units`.
        std: Deviation by channel.
        number: Which set of a file that holds several.
        **reading: How to read the data, as in a setup: `target`, `drop`, `missing`, `resize`, ….

    Returns:
        The points in pixel units, all of the same weight unless the file has weights. It is accepted
        wherever a coreset is.
    """
    setup = config.build(Setup, reading, what="setup")
    known = read(data, reading_of(setup))
    how = Distilled(labels=labels, units=units, mean=mean, std=std, number=number)
    points = how.read(Path(path).expanduser(), known)
    name = str(data) if isinstance(data, str | Path) else known.name
    return points.with_provenance(
        setup={"data": name, **reading}, method="distilled", data_fingerprint=known.fingerprint
    )
