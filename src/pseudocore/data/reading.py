"""What the readers of data sets share: how to read, what they return, class names, refusals."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.likelihood import Task
from pseudocore.store.files import read_regular

if TYPE_CHECKING:
    from pseudocore.data.tables import Rows

Missing = Literal["refuse", "impute"]
Layout = Literal["NCHW", "NHWC"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How to make a data set of what was read."""

    target: str | None = None
    """Column of a table that holds the labels."""
    drop: tuple[str, ...] = ()
    """Columns of a table to leave out."""
    labels: str | None = None
    """File of the labels of inputs that are a .npy file."""
    missing: Missing = "refuse"
    """What to do about gaps in features."""
    resize: int | None = None
    """Height and width to bring images to."""
    pixel_range: tuple[float, float] | None = None
    """Values of black and white in image arrays. By default recognised."""
    layout: Layout | None = None
    """Where the channels of image arrays are. By default found from the shape."""
    task: Task | None = None
    """What targets are. By default numbers where they hold fractions, else classes."""
    seed: int = 0
    """Decides which examples are held out where there is no test half."""
    lenient: bool = False
    """Whether options that have no effect on the data are passed over."""

    def refuse(self, names: Sequence[str], what: str, why: str) -> None:
        """Refuse those of the options `names` that are set, as they could have no effect."""
        if self.lenient:
            return
        default = Reading()
        for name in names:
            if getattr(self, name) != getattr(default, name):
                raise ConfigError(
                    f"{name} has no effect on {what}: {why}; leave it out",
                    code="unused-option",
                    option=name,
                    where=what,
                )


AS_IT_IS = Reading()


class Half(NamedTuple):
    """The training or the test half as it was read."""

    x: "Any | Rows"
    """An array, or the rows of a table without its target."""
    y: Any
    """Labels of any kind, (n,)."""
    what_y: str
    """What to call the labels in a sentence."""
    what: str
    """What to call the inputs."""


class Raw(NamedTuple):
    """What a reader returns: one or two halves, and what else the source knows."""

    halves: tuple[Half, ...]
    class_names: tuple[str, ...] = ()
    layout: Layout | None = None
    notes: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    """Options of `Reading` that the reader has carried out."""
    task: Task | None = None
    """What the source says that its targets are."""


_NUMERALS = tuple("0123456789")
_CLASS_NAMES = {
    "mnist": _NUMERALS,
    "svhn": _NUMERALS,
    "fashion-mnist": (
        "T-shirt/top", "trouser", "pullover", "dress", "coat",
        "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ),
    "cifar10": (
        "airplane", "automobile", "bird", "cat", "deer",
        "dog", "frog", "horse", "ship", "truck",
    ),
}  # fmt: skip


def class_names(name: str, num_classes: int) -> tuple[str, ...]:
    """Class names of a well-known set; none if it is unknown or has another number of classes."""
    names = _CLASS_NAMES.get(name, ())
    return names if len(names) == num_classes else ()


def existing(path: Path, hint: str = "unpack the archive again") -> Path:
    """The path of a file that must be there."""
    if not path.is_file():
        raise DataError(f"{path} is missing; {hint}", code="missing-file", path=path)
    return path


def damaged(path: Path, what: str) -> DataError:
    """A `DataError` about the contents of a file."""
    return DataError(
        f"{path} {what}; it is damaged or another file", code="damaged-data", path=path
    )


def text_of(path: Path) -> str:
    """The content of a UTF-8 text file."""
    try:
        return read_regular(path, DataError).decode()
    except UnicodeDecodeError as error:
        byte = f"{error.object[error.start]:#04x}"
        raise damaged(path, f"is not UTF-8 text (it holds the byte {byte})") from error


def legible(name: str) -> str:
    """The name of a file or folder as valid Unicode, whatever bytes it is made of."""
    return os.fsencode(name).decode("utf-8", "replace")
