"""Find and read data sets by name or path. Nothing is downloaded.

Names are looked for in this order: the `root` argument, the folders of the environment variable
PSEUDOCORE_DATA, the user's folder (`~/.local/share/pseudocore`), and `/usr/share/datasets`, where
Debian puts dataset-fashion-mnist.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.registry import did_you_mean
from pseudocore.core.types import Dataset, Embedded
from pseudocore.data import arrays, official, pictures
from pseudocore.data.assemble import adapted, assemble
from pseudocore.data.builtin import digits, logistic, moons
from pseudocore.data.reading import AS_IT_IS, Reading, legible
from pseudocore.data.streaming import import_streamed
from pseudocore.data.table_files import SUFFIXES, is_table, read_table
from pseudocore.store.files import reading as opening

SYSTEM_FOLDER = Path("/usr/share/datasets")


class Found(NamedTuple):
    name: str
    where: str | None
    """A path, `built in`, or None when the set is known but not here."""


def load(data: str | Path, *, root: Path | None = None, reading: Reading = AS_IT_IS) -> Dataset:
    """Read a data set.

    Args:
        data: A name (`digits`, `cifar10`, an imported set), or a path in any layout that this
            package reads.
        root: A folder to search for names first.
        reading: Columns of tables, gaps and sizes of images (`dataset` has these options too).
    """
    text = str(data)
    if isinstance(data, str) and _NAME.fullmatch(text):
        if text in _BUILTIN:
            return adapted(_BUILTIN[text](), reading)
        if (path := find(text, root=root)) is not None:
            return _read(path, text, reading)
        if text in _KNOWN or not Path(text).exists():
            raise _missing(text, root)
    path = Path(text).expanduser()
    if not path.exists():
        names = ", ".join(found.name for found in available(root))
        message = f"there is no file or folder {path}; give a path that exists or a name ({names})"
        raise DataError(message, code="missing-data", path=path)
    return _read(path, "", reading)


def find(name: str, *, root: Path | None = None) -> Path | None:
    """Where a set that is not built in lies, or None."""
    folders, _ = _KNOWN.get(name, ((), ""))
    files = (f"{name}{suffix}" for suffix in (".npz", *SUFFIXES))
    places = (*files, *folders, *(f"{name}/{folder}" for folder in folders), name)
    candidates = (folder / place for folder in search_path(root) for place in places)
    return next((path for path in candidates if _layout(path) is not None), None)


def available(root: Path | None = None) -> list[Found]:
    """Built-in sets, well-known sets and where they are, then what else is on the search path."""
    result = [Found(name, "built in") for name in _BUILTIN]
    known = {name: find(name, root=root) for name in _KNOWN}
    result += [Found(name, None if path is None else str(path)) for name, path in known.items()]
    others: dict[str, str] = {}
    for path in _contents(root):
        name = path.stem if path.is_file() else path.name
        is_new = name not in {*_KNOWN, *_BUILTIN, *others} and path not in known.values()
        if is_new and _NAME.fullmatch(name) and _layout(path) is not None:
            others[name] = str(path)
    return result + [Found(name, where) for name, where in sorted(others.items())]


def import_dataset(
    source: Path,
    name: str,
    root: Path | None = None,
    reading: Reading = AS_IT_IS,
    *,
    stream: bool = False,
    half: bool = False,
) -> Path:
    """Read a data set and keep it as `<root>/<name>.npz`, in place of an earlier import.

    Args:
        source: A path in any layout that this package reads.
        name: The name by which `load` will find it.
        root: Defaults to `user_folder()`.
        reading: As for `load`.
        stream: Copy it piece by piece into a folder of memory-mapped arrays, where it is larger than
            memory (`streaming.import_streamed`).
        half: Keep features in half precision there.

    Returns:
        The path of the copy.
    """
    if not _NAME.fullmatch(name):
        message = "use letters, digits, '-' and '_', beginning with a letter or digit"
        message = f"{name!r} cannot name a data set; {message}"
        raise ConfigError(message, code="invalid-name", name=name)
    if name in _BUILTIN:
        message = f"{name!r} is the name of a built-in data set; choose another"
        raise ConfigError(message, code="invalid-name", name=name)
    path = (Path(root) if root is not None else user_folder()) / f"{name}.npz"
    if stream:
        fields = ("drop", "missing", "resize", "task", "labels")
        reading.refuse(fields, str(source), "it is streamed as it is")
        folder = path.with_suffix("")
        found = import_streamed(Path(source), folder, target=reading.target, half=half)
        path.unlink(missing_ok=True)  # it would be found first
        return found
    if half:
        message = "half is of what is streamed (--stream); leave it out"
        raise ConfigError(message, code="unused-option", option="half")
    dataset = load(Path(source), reading=reading)
    arrays.write_npz(path, dataset)
    return path


def search_path(root: Path | None = None) -> list[Path]:
    """Folders in which names are looked for, first to last."""
    listed = os.environ.get("PSEUDOCORE_DATA", "").split(os.pathsep)
    folders = [Path(text).expanduser() for text in listed if text]
    return [*([Path(root)] if root is not None else []), *folders, user_folder(), SYSTEM_FOLDER]


def user_folder() -> Path:
    """Imported sets: `$XDG_DATA_HOME/pseudocore`, by default `~/.local/share/pseudocore`."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "pseudocore"


def _embeddings(path: Path, name: str, reading: Reading) -> Dataset:
    """One array and its labels; vectors are taken for features of a network."""
    data = assemble(arrays.read_array(path, reading.labels), name, reading)
    return replace(data, embedded=Embedded(path.name)) if len(data.shape) == 1 else data


class _Layout(NamedTuple):
    recognise: Callable[[Path], bool]
    read: Callable[[Path, str, Reading], Dataset]
    has_own_name: bool = False
    """Whether the reader knows what the set is called."""


def _fixed(read: Callable[[Path, str], Dataset]) -> Callable[[Path, str, Reading], Dataset]:
    """A reader of files that leave nothing open."""
    return lambda path, name, reading: adapted(read(path, name), reading)


def _pictures(
    read: Callable[[Path, str, int | None], Dataset],
) -> Callable[[Path, str, Reading], Dataset]:
    return lambda path, name, reading: adapted(read(path, name, reading.resize), reading)


_LAYOUTS = (
    _Layout(official.is_idx, _fixed(official.read_idx)),
    _Layout(official.is_cifar, _fixed(official.read_cifar), has_own_name=True),
    _Layout(official.is_svhn, _fixed(official.read_svhn), has_own_name=True),
    _Layout(pictures.is_tiny_imagenet, _pictures(pictures.read_tiny_imagenet), has_own_name=True),
    _Layout(arrays.is_npz, lambda path, name, how: assemble(arrays.read_npz(path), name, how)),
    _Layout(arrays.is_npy, lambda path, name, how: assemble(arrays.read_npy(path), name, how)),
    _Layout(arrays.is_array, _embeddings),
    _Layout(is_table, lambda path, name, how: assemble(read_table(path, how), name, how)),
    _Layout(pictures.is_class_folders, _pictures(pictures.read_class_folders)),
)


_IDX_FILES = ", ".join(official.IDX_FILES) + " (or .gz)"
_KNOWN = {
    "mnist": (("mnist", "MNIST/raw"), _IDX_FILES),
    "fashion-mnist": (("fashion-mnist", "FashionMNIST/raw"), _IDX_FILES),
    "cifar10": (
        ("cifar-10-batches-bin", "cifar-10-batches-py"),
        "the files of cifar-10-binary.tar.gz",
    ),
    "cifar100": (("cifar-100-binary", "cifar-100-python"), "the files of cifar-100-binary.tar.gz"),
    "svhn": (("svhn", "SVHN"), "train_32x32.mat and test_32x32.mat"),
    "tiny-imagenet": (("tiny-imagenet-200",), "the files of tiny-imagenet-200.zip"),
}
"""Where a set is unpacked, under a root or a folder of its name, and what to put there."""
_BUILTIN: dict[str, Callable[[], Dataset]] = {
    "digits": digits,
    "moons": moons,
    "logistic": logistic,
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def _read(path: Path, name: str, reading: Reading) -> Dataset:
    layout = _layout(path)
    if layout is None:
        message = (
            f"{path} is in no layout known here: .npz or .npy files (train_x, train_y, test_x, …),"
            " CSV, Parquet, MNIST idx, CIFAR, SVHN, Tiny-ImageNet, and class folders of pictures"
            " (docs/data.md)"
        )
        raise DataError(message, code="unknown-layout", path=path)
    if not name and not layout.has_own_name:
        name = legible(path.stem if path.is_file() else path.resolve().name)
    with opening(path, DataError):
        return layout.read(path, name, reading)


def _layout(path: Path) -> _Layout | None:
    """The first layout that recognises a file or folder; an unreadable one has none."""
    with suppress(OSError):
        if path.exists():
            return next((layout for layout in _LAYOUTS if layout.recognise(path)), None)
    return None


def _missing(name: str, root: Path | None) -> DataError:
    folders = search_path(root)
    looked = f"looked in {', '.join(map(str, folders))}"
    if name in _KNOWN:
        places, files = _KNOWN[name]
        advice = f"put {files} into {folders[0] / places[0]}, or point PSEUDOCORE_DATA elsewhere"
        return DataError(f"no {name} here ({looked}); {advice}", code="missing-data", name=name)
    names = [found.name for found in available(root)]
    message = f"unknown data set {name!r}{did_you_mean(name, names)}"
    message = f"{message} (known: {', '.join(names)}; {looked})"
    return DataError(message, code="unknown-data", name=name)


def _contents(root: Path | None) -> Iterator[Path]:
    """Everything directly inside the folders of the search path that can be listed."""
    for folder in search_path(root):
        with suppress(OSError):
            yield from sorted(folder.iterdir())
