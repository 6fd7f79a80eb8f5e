"""A run that overwrites another stashes it in `.replaced` until the new one has its coreset.

Files are renamed, not copied, so a full disk cannot stop it. The manifest leaves first and returns
last: a folder without one was killed while its files moved, and the next `settle` completes the
move. Symbolic links inside the folder are not followed.
"""

import contextlib
import os
import shutil
import warnings
from collections.abc import Iterable
from pathlib import Path

from pseudocore.core.errors import RunError
from pseudocore.store.coreset_file import CORESET_FILE, STASH
from pseudocore.store.files import refuse_link, remove_partials, writing
from pseudocore.store.folders import MANIFEST_FILE, Lock
from pseudocore.store.run_files import CHECKPOINT_FILE, METRICS_FILE

CONFIG_FILE = "config.toml"
EVALUATIONS = "evaluations"
FIDELITY = "fidelity"
CONTINUAL = "continual"
RESULTS = (EVALUATIONS, FIDELITY, CONTINUAL)
FILES = (MANIFEST_FILE, CHECKPOINT_FILE, CORESET_FILE, METRICS_FILE, CONFIG_FILE)


def readable(path: Path) -> Path:
    """Where to read the run of a folder: in itself, or in its stash while the run that is to
    overwrite it has no coreset.
    """
    aside = path / STASH
    if aside.is_symlink() or not aside.is_dir():
        return path
    with contextlib.suppress(RunError), Lock(path):  # nobody writes: end what was interrupted
        settle(path)
    if (path / CORESET_FILE).exists() or not (aside / CORESET_FILE).exists():
        return path
    if not (aside / MANIFEST_FILE).exists():  # its files are on their way
        return path
    warnings.warn(
        f"{path} is being overwritten by a run without a coreset yet; the earlier run is read",
        stacklevel=3,
    )
    return aside


def stash(path: Path) -> None:
    """Put the run in a folder aside; remove one that was itself to overwrite another."""
    settle(path)
    aside = path / STASH
    with writing(path):
        if aside.exists():
            _remove_run(path)
        elif files := _own_files(path):
            aside.mkdir()
            _move(path, aside, files)


def settle(path: Path) -> bool:
    """Drop the stashed run once there is a coreset; restore it, and say so, if nothing is saved."""
    aside = path / STASH
    refuse_link(aside)
    if not aside.exists():
        return False
    has_manifest = (path / MANIFEST_FILE).exists()
    if has_manifest and (path / CORESET_FILE).exists():
        shutil.rmtree(aside, ignore_errors=True)
        return False
    if has_manifest and (path / CHECKPOINT_FILE).exists():
        return False
    with writing(path):
        if has_manifest:  # without one, the files here are the old run's, on their way
            _remove_run(path)
        _move(aside, path, reversed(_own_files(aside)))
        shutil.rmtree(aside)
    return True


def results_in(folder: Path) -> list[Path]:
    """The results in a folder; what a link leads to is not ours."""
    if folder.is_symlink():
        return []
    return sorted(file for file in folder.glob("*.json") if not file.name.startswith("."))


def _own_files(path: Path) -> list[Path]:
    """What a run has written into its folder, the manifest first."""
    results = (file for name in RESULTS for file in results_in(path / name))
    return [file for file in (*(path / name for name in FILES), *results) if os.path.lexists(file)]


def _remove_run(path: Path) -> None:
    for file in _own_files(path):
        file.unlink()
    _remove_partials(path)


def _move(source: Path, target: Path, files: Iterable[Path]) -> None:
    for file in files:
        place = target / file.relative_to(source)
        refuse_link(place.parent)
        place.parent.mkdir(exist_ok=True)
        os.replace(file, place)
    _remove_partials(source)


def _remove_partials(path: Path) -> None:
    for name in FILES:
        remove_partials(path / name)
