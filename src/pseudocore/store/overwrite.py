"""A run that replaces another: the old one stands aside, in `.replaced`, until the new one has its
coreset.

Files are renamed, never copied, so a full disk stops nothing here. The manifest leaves first and
comes back last: whenever a process is killed, a folder without one is a run that was on its way,
and the next `settle` knows what to do.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from pseudocore.core.errors import RunError
from pseudocore.store.checkpoints import CHECKPOINT_FILE
from pseudocore.store.coreset_file import CORESET_FILE
from pseudocore.store.files import partial_of, writing
from pseudocore.store.lock import LOCK_FILE
from pseudocore.store.manifest import MANIFEST_FILE, is_manifest
from pseudocore.store.metrics import METRICS_FILE

CONFIG_FILE = "config.toml"
EVALUATIONS = "evaluations"
CONTINUAL = "continual"
_REPLACED = ".replaced"
_FILES = (MANIFEST_FILE, CHECKPOINT_FILE, CORESET_FILE, METRICS_FILE, CONFIG_FILE)


def stash(path: Path) -> None:
    """Put the run in a folder aside; one that was itself replacing another, and never had a
    coreset, is removed instead.
    """
    settle(path)
    aside = path / _REPLACED
    with writing(path):
        if aside.exists():
            _remove_run(path)
        elif _own_files(path):
            aside.mkdir()
            _move(path, aside, _own_files(path))


def settle(path: Path) -> bool:
    """Drop the run set aside when the new one has its coreset; bring it back, and say so, when the
    new one has not even a checkpoint.
    """
    aside = path / _REPLACED
    if not aside.exists():
        return False
    has_manifest = (path / MANIFEST_FILE).exists()
    if has_manifest and (path / CORESET_FILE).exists():
        shutil.rmtree(aside, ignore_errors=True)
        return False
    if has_manifest and (path / CHECKPOINT_FILE).exists():
        return False
    with writing(path):
        if (
            has_manifest
        ):  # else what is here belongs to the old run, which was still making way or coming back
            _remove_run(path)
        _move(aside, path, reversed(_own_files(aside)))
        shutil.rmtree(aside)
    return True


def refuse_own_file(path: Path) -> None:
    """Refuse to write a page or a copy in the place of a file that a run, or a buffer of experts,
    cannot do without.
    """
    folder = path.parent.resolve()
    home = folder.parent if folder.name in (EVALUATIONS, CONTINUAL, _REPLACED) else folder
    is_ours = (home / LOCK_FILE).exists() or is_manifest(home / MANIFEST_FILE)
    is_needed = (
        folder != home or path.name in (*_FILES, LOCK_FILE) or path.match("expert-*.safetensors")
    )
    if is_ours and is_needed and path.exists():
        raise RunError(
            f"{path} belongs to what is kept in {path.parent}, and is left alone; name another file"
        )


def json_files(folder: Path) -> list[Path]:
    """Results kept in a folder of a run."""
    return sorted(file for file in folder.glob("*.json") if not file.name.startswith("."))


def _own_files(path: Path) -> list[Path]:
    """What a run has written into its folder, the manifest first."""
    kept = (*json_files(path / EVALUATIONS), *json_files(path / CONTINUAL))
    return [file for file in (*(path / name for name in _FILES), *kept) if file.exists()]


def _remove_run(path: Path) -> None:
    for file in _own_files(path):
        file.unlink()
    _remove_partials(path)


def _move(source: Path, target: Path, files: Iterable[Path]) -> None:
    for file in files:
        place = target / file.relative_to(source)
        place.parent.mkdir(exist_ok=True)
        os.replace(file, place)
    _remove_partials(source)


def _remove_partials(path: Path) -> None:
    for name in _FILES:
        partial_of(path / name).unlink(missing_ok=True)
