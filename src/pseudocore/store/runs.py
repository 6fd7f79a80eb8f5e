"""A RUN: the folder that holds one reduction from its first step to its last evaluation.

`coreset.safetensors`, `config.toml` (the merged truth), `metrics.jsonl`, `manifest.json`,
`evaluations/<name>.json`, `continual/<name>.json`, and `checkpoint.safetensors` while it lives;
`.replaced` while it replaces another. Anything else in the folder belongs to somebody else and is
left alone.
"""

import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.types import Coreset
from pseudocore.store import strict_json, toml
from pseudocore.store.checkpoints import CHECKPOINT_FILE, CheckpointFile
from pseudocore.store.coreset_file import CORESET_FILE, load_coreset, save_coreset
from pseudocore.store.files import StrPath, write_bytes, writing
from pseudocore.store.lock import LOCK_FILE, Lock
from pseudocore.store.manifest import (
    MANIFEST_FILE,
    check_entries,
    is_anothers,
    is_manifest,
    new_manifest,
    now,
    read_manifest,
)
from pseudocore.store.metrics import METRICS_FILE, MetricsFile
from pseudocore.store.overwrite import (
    CONFIG_FILE,
    CONTINUAL,
    EVALUATIONS,
    json_files,
    settle,
    stash,
)


class Run:
    """A run folder. `create` gives one to write, locked against other writers; `open` gives one to
    read and evaluate.
    """

    def __init__(
        self, path: Path, config: dict[str, Any], manifest: dict[str, Any], lock: Lock | None = None
    ) -> None:
        self.path = path
        self.config = config
        self.manifest = manifest
        self.checkpoints = CheckpointFile(path / CHECKPOINT_FILE, _digest(config))
        self._metrics = MetricsFile(path / METRICS_FILE)
        self._lock = lock
        self.gave_way = False
        """Whether this run ended before it had saved anything, and the one it was to replace is
        back in its place.
        """

    @classmethod
    def create(
        cls,
        path: StrPath,
        config: Mapping[str, Any],
        *,
        resume: bool = False,
        overwrite: bool = False,
        command: str = "",
    ) -> "Run":
        """Start a run in a new or empty folder, take up the one that is there (`resume`), or
        replace it (`overwrite`).

        Resuming a finished run gives it back with `finished` set and changes nothing. A replaced
        run stays aside until the new one has its coreset, and comes back when the new one ends
        without so much as a checkpoint.
        """
        if resume and overwrite:
            raise ConfigError("--resume and --overwrite exclude each other; give one of them")
        path = Path(path)
        given = toml.loads(toml.dumps(config))  # as it will be read back
        _refuse_stranger(path)
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
        lock = Lock(path)
        try:
            settle(path)
            if resume and (path / MANIFEST_FILE).exists():
                return cls._resume(path, given, lock)
            if overwrite:
                stash(path)
            _refuse_run(path)
            write_bytes(path / CONFIG_FILE, toml.dumps(given).encode())
            manifest = new_manifest(command)
            strict_json.write(
                path / MANIFEST_FILE, manifest
            )  # last: from here on the folder is a run
            return cls(path, given, manifest, lock)
        except BaseException:
            settle(path)
            lock.release()
            raise

    @classmethod
    def open(cls, path: StrPath) -> "Run":
        """The run in a folder, for reading it and for adding evaluations."""
        path = Path(path)
        if not os.path.isdir(path):
            raise RunError(
                f"{path} is a file, not the folder of a run"
                if os.path.exists(path)
                else f"there is no folder {path}"
            )
        if not (path / MANIFEST_FILE).exists():
            raise RunError(f"{path} is not a run: it holds no {MANIFEST_FILE}")
        manifest = read_manifest(
            path / MANIFEST_FILE
        )  # first: what is no run has no configuration to miss
        return cls(path, _stored_config(path), manifest)

    @classmethod
    def _resume(cls, path: Path, given: dict[str, Any], lock: Lock) -> "Run":
        manifest = read_manifest(path / MANIFEST_FILE)
        check_entries(manifest, path / MANIFEST_FILE)
        stored = _stored_config(path)
        if differences := _differences(stored, given):
            raise RunError(
                f"cannot resume {path} with another configuration ({'; '.join(differences)}); pass --overwrite to start again"
            )
        run = cls(path, stored, manifest, lock)
        if not run.finished:
            run.update_manifest(
                status="running", reason="", resumed=[*manifest.get("resumed", []), now()]
            )
        return run

    @property
    def finished(self) -> bool:
        return bool(self.manifest["status"] == "finished")

    def update_manifest(self, **entries: Any) -> None:
        """Add or replace entries of the manifest, atomically."""
        manifest = {**self.manifest, **entries}
        strict_json.write(self.path / MANIFEST_FILE, manifest)
        self.manifest = manifest

    def finish(self, status: str, reason: str = "", **entries: Any) -> None:
        """Write how the run ended, drop the checkpoint of a finished one and let go of the folder."""
        self.update_manifest(status=status, reason=reason, ended=now(), **entries)
        if status == "finished":
            self.checkpoints.clear()
        self.close()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append one line to the metrics."""
        self._metrics.append(step, values)

    def truncate_metrics(self, step: int) -> None:
        """Drop the lines after `step` and a torn last one: a resumed run logs these steps again."""
        self._metrics.truncate(step)

    def metrics(self) -> list[dict[str, Any]]:
        return self._metrics.read()

    def save_coreset(self, coreset: Coreset) -> None:
        save_coreset(self.path / CORESET_FILE, coreset)

    def coreset(self) -> Coreset:
        if (
            self.manifest.get("status") in ("interrupted", "running")
            and not (self.path / CORESET_FILE).exists()
        ):
            raise RunError(_not_yet(self.path, self.manifest))
        return load_coreset(self.path)

    def save_evaluation(self, name: str, evaluation: Mapping[str, Any]) -> None:
        """Keep one evaluation under a name; the same name again replaces it."""
        _save(self.path / EVALUATIONS, name, evaluation)

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """Every evaluation kept so far, by name."""
        return {file.stem: strict_json.read(file) for file in json_files(self.path / EVALUATIONS)}

    def save_continual(self, name: str, stages: Mapping[str, Any]) -> None:
        """Keep what class-incremental learning gave under a name; the same name again replaces it."""
        _save(self.path / CONTINUAL, name, stages)

    def continual(self) -> dict[str, dict[str, Any]]:
        """Everything class-incremental learning gave so far, by name."""
        return {file.stem: strict_json.read(file) for file in json_files(self.path / CONTINUAL)}

    def close(self) -> None:
        """Let other processes write into the folder; reading goes on."""
        if self._lock is not None and self._lock.release.alive:
            self.gave_way = settle(self.path)
            self._lock.release()

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _refuse_stranger(path: Path) -> None:
    """Refuse a folder with files in it that no run of ours has left; our lock or manifest tells."""
    with writing(path):
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file; a run needs a folder, choose another --out")
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    ours = not is_anothers(path / MANIFEST_FILE) if MANIFEST_FILE in names else LOCK_FILE in names
    if names and not (ours and (LOCK_FILE in names or is_manifest(path / MANIFEST_FILE))):
        raise RunError(
            f"{path} is not empty and holds no run of pseudocore; its files are left alone, choose another --out"
        )


def _refuse_run(path: Path) -> None:
    if (path / MANIFEST_FILE).exists():
        raise RunError(
            f"{path} already holds a run; pass --resume to continue it or --overwrite to replace it"
        )
    if left := [
        name for name in (CORESET_FILE, CHECKPOINT_FILE, METRICS_FILE) if (path / name).exists()
    ]:
        raise RunError(
            f"{path} holds the {left[0]} of a run that has lost its {MANIFEST_FILE}; pass --overwrite to start again"
        )


def _save(folder: Path, name: str, table: Mapping[str, Any]) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        raise ConfigError(
            f"{name!r} cannot name an evaluation; use letters, digits, '.', '_' and '-'"
        )
    with writing(folder):
        folder.mkdir(exist_ok=True)
    strict_json.write(folder / f"{name}.json", table)


def _not_yet(path: Path, manifest: Mapping[str, Any]) -> str:
    """Why a run has no coreset, and the command that goes on with it; not whatever else a
    stranger's manifest calls its command.
    """
    interrupted = manifest["status"] == "interrupted"
    why = (
        (manifest.get("reason") or "interrupted")
        if interrupted
        else "it is still running, or was killed"
    )
    try:
        words = shlex.split(str(manifest.get("command", "")))
    except ValueError:  # a manifest that somebody has edited
        words = []
    resuming = shlex.join(
        [*(word for word in words if word not in ("--resume", "--overwrite")), "--resume"]
    )
    is_ours = words[:2] == ["pseudocore", "reduce"]
    return f"{path} has no coreset yet ({why}); go on with: {resuming if is_ours else 'the command that made it, and --resume'}"


def _stored_config(path: Path) -> dict[str, Any]:
    try:
        return toml.read(path / CONFIG_FILE)
    except ConfigError as error:
        raise RunError(f"the run in {path} has lost its configuration: {error}") from error


def _differences(stored: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    old, new = dict(_flat(stored)), dict(_flat(given))
    return [
        f"{key}: stored {old.get(key, 'nothing')}, given {new.get(key, 'nothing')}"
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    ]


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Dotted keys and the text of their values: text, because nan differs from itself and true
    equals 1.
    """
    flat: list[tuple[str, str]] = []
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            flat += _flat(value, f"{prefix}{name}.")
        else:
            flat.append((prefix + name, repr(value)))
    return flat


def _digest(config: Mapping[str, Any]) -> str:
    return hashlib.blake2b(
        strict_json.encode(config, sort_keys=True).encode(), digest_size=16
    ).hexdigest()
