"""A run: the folder of one reduction from its first step to its last evaluation.

`coreset.safetensors`, `config.toml` (the merged configuration), `metrics.jsonl`, `manifest.json`,
`evaluations/<name>.json`, `fidelity/<name>.json`, `continual/<name>.json`,
`checkpoint.safetensors` until the run has finished. Other files in the folder are left alone.

A run that overwrites another stashes it in `.replaced` until the new one has its coreset. Files are
renamed, not copied, so a full disk cannot stop it. The manifest leaves first and returns last: a
folder without one was killed while its files moved, and the next `settle` completes the move.
"""

import hashlib
import operator
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.types import Coreset
from pseudocore.runtime import profiling
from pseudocore.store.coreset_file import CORESET_FILE, load_coreset, save_coreset
from pseudocore.store.files import (
    StrPath,
    decode_toml,
    encode_json,
    encode_toml,
    file_error,
    read_json,
    read_toml,
    remove_partials,
    write_bytes,
    write_json,
    writing,
)
from pseudocore.store.folders import (
    LOCK_FILE,
    MANIFEST_FILE,
    Lock,
    ManifestFolder,
    differences,
    now,
)
from pseudocore.store.run_files import CHECKPOINT_FILE, METRICS_FILE, CheckpointFile, MetricsFile

CONFIG_FILE = "config.toml"
_EVALUATIONS = "evaluations"
_FIDELITY = "fidelity"
_CONTINUAL = "continual"
_RESULTS = (_EVALUATIONS, _FIDELITY, _CONTINUAL)
_REPLACED = ".replaced"
_FILES = (MANIFEST_FILE, CHECKPOINT_FILE, CORESET_FILE, METRICS_FILE, CONFIG_FILE)


class Run(ManifestFolder):
    """A run folder: `create` gives one to write, locked against others; `open` one to read."""

    kind = "pseudocore run"
    noun = "run"
    entries: ClassVar = {
        "status": str,
        "reason": str,
        "command": str,
        "resumed": list,
        "seconds": int | float,
        "num_steps": int,
        "points": int,
        "cost": dict,
        "experts": dict,
    }

    def __init__(
        self, path: Path, config: dict[str, Any], manifest: dict[str, Any], lock: Lock | None = None
    ) -> None:
        super().__init__(path, manifest, lock)
        self.config = config
        self.was_restored = False
        """Whether this run ended without a checkpoint, and the one it was to overwrite is back."""

    @cached_property
    def checkpoints(self) -> CheckpointFile:
        text = encode_json(self.config, sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return CheckpointFile(self.path / CHECKPOINT_FILE, digest)

    @cached_property
    def _metrics(self) -> MetricsFile:
        return MetricsFile(self.path / METRICS_FILE)

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
        """Start a run in a new or empty folder, resume the one that is there, or overwrite it.

        Resuming a finished run changes nothing. An overwritten run is stashed until the new one has
        its coreset, and restored when the new one ends without a checkpoint.
        """
        if resume and overwrite:
            message = "--resume and --overwrite exclude each other; give one of them"
            raise ConfigError(message, code="conflicting-options")
        path = Path(path)
        given = decode_toml(encode_toml(config))  # as it will be read back
        lock = cls.claim(path)
        try:
            settle(path)
            if resume and (path / MANIFEST_FILE).exists():
                return cls._resume(path, given, lock)
            if overwrite:
                stash(path)
            _refuse_run(path)
            write_bytes(path / CONFIG_FILE, encode_toml(given).encode())
            manifest = cls.new_manifest(command, status="running", reason="")
            write_json(path / MANIFEST_FILE, manifest)  # last: from here on the folder is a run
            return cls(path, given, manifest, lock)
        except BaseException:
            settle(path)
            lock.release()
            raise

    @classmethod
    def open(cls, path: StrPath) -> "Run":
        """The run in a folder, for reading it and for adding evaluations."""
        path = Path(path)
        manifest = cls.read_manifest(path)
        return cls(path, _stored_config(path), manifest)

    @classmethod
    def _resume(cls, path: Path, given: dict[str, Any], lock: Lock) -> "Run":
        manifest = cls.read_manifest(path)
        try:
            profiling.from_table(manifest.get("cost", {}))
            operator.index(manifest.get("experts", {}).get("num_experts", 0))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            message = "is damaged: its cost or its experts are not what a run has written"
            file = path / MANIFEST_FILE
            raise file_error(file, message, "damaged-manifest", RunError) from error
        stored = _stored_config(path)
        if found := differences(stored, given):
            message = (
                f"with another configuration ({'; '.join(found)}); pass --overwrite to start again"
            )
            raise RunError(f"cannot resume {path} {message}", code="another-config", path=path)
        run = cls(path, stored, manifest, lock)
        if not run.finished:
            resumed = [*manifest.get("resumed", []), now()]
            run.update_manifest(status="running", reason="", resumed=resumed)
        return run

    @property
    def finished(self) -> bool:
        return bool(self.manifest["status"] == "finished")

    def update_manifest(self, **entries: Any) -> None:
        """Add or replace entries of the manifest, atomically."""
        manifest = {**self.manifest, **entries}
        write_json(self.path / MANIFEST_FILE, manifest)
        self.manifest = manifest

    def finish(self, status: str, reason: str = "", **entries: Any) -> None:
        """Write how the run ended, drop the checkpoint of a finished one and release the folder."""
        self.update_manifest(status=status, reason=reason, ended=now(), **entries)
        if status == "finished":
            self.checkpoints.clear()
        self.close()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append one line to the metrics."""
        self._metrics.append(step, values)

    def truncate_metrics(self, step: int) -> None:
        """Drop the lines after `step`, which a resumed run logs again, and an unfinished one."""
        self._metrics.truncate(step)

    def metrics(self) -> list[dict[str, Any]]:
        return self._metrics.read()

    def save_coreset(self, coreset: Coreset) -> None:
        save_coreset(self.path / CORESET_FILE, coreset)

    def coreset(self) -> Coreset:
        has_ended = self.manifest["status"] not in ("interrupted", "running")
        if not has_ended and not (self.path / CORESET_FILE).exists():
            raise file_error(self.path, self._unfinished(), "no-coreset-yet", RunError)
        return load_coreset(self.path)

    def save_evaluation(self, name: str, evaluation: Mapping[str, Any]) -> None:
        """Keep an evaluation under a name, in place of an earlier one."""
        _save_result(self.path / _EVALUATIONS, name, evaluation)

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """All evaluations by name."""
        return {file.stem: read_json(file) for file in _results(self.path / _EVALUATIONS)}

    def save_fidelity(self, name: str, fidelity: Mapping[str, Any]) -> None:
        """Keep a distance to full-data inference under a name, in place of an earlier one."""
        _save_result(self.path / _FIDELITY, name, fidelity)

    def fidelities(self) -> dict[str, dict[str, Any]]:
        """All distances to full-data inference by name."""
        return {file.stem: read_json(file) for file in _results(self.path / _FIDELITY)}

    def results(self) -> dict[str, dict[str, Any]]:
        """What was measured for each seed: evaluations, and distances to full-data inference."""
        distances = {f"{_FIDELITY}/{name}": one for name, one in self.fidelities().items()}
        return {**self.evaluations(), **distances}

    def save_continual(self, name: str, stages: Mapping[str, Any]) -> None:
        """Keep a result of class-incremental learning under a name, in place of an earlier one."""
        _save_result(self.path / _CONTINUAL, name, stages)

    def continual(self) -> dict[str, dict[str, Any]]:
        """All results of class-incremental learning by name."""
        return {file.stem: read_json(file) for file in _results(self.path / _CONTINUAL)}

    def close(self) -> None:
        if self._lock is not None and self._lock.release.alive:
            self.was_restored = settle(self.path)
        super().close()

    def _unfinished(self) -> str:
        reason = "it is still running, or was killed"
        if self.manifest["status"] == "interrupted":
            reason = self.manifest.get("reason") or "interrupted"
        try:
            words = shlex.split(self.manifest.get("command", ""))
        except ValueError:  # an edited manifest
            words = []
        resuming = "the command that made it and --resume"
        if words[:2] == ["pseudocore", "reduce"]:
            kept = [word for word in words if word not in ("--resume", "--overwrite")]
            resuming = shlex.join([*kept, "--resume"])
        return f"has no coreset yet ({reason}); resume with: {resuming}"


def stash(path: Path) -> None:
    """Put the run in a folder aside; remove one that was itself to overwrite another."""
    settle(path)
    aside = path / _REPLACED
    with writing(path):
        if aside.exists():
            _remove_run(path)
        elif files := _own_files(path):
            aside.mkdir()
            _move(path, aside, files)


def settle(path: Path) -> bool:
    """Drop the stashed run once there is a coreset; restore it, and say so, if nothing is saved."""
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
        if has_manifest:  # without one, the files here are the old run's, on their way
            _remove_run(path)
        _move(aside, path, reversed(_own_files(aside)))
        shutil.rmtree(aside)
    return True


def refuse_own_file(path: Path) -> None:
    """Refuse to write a page or a copy over a file that a run or an expert folder needs."""
    folder = path.parent.resolve()
    home = folder.parent if folder.name in (*_RESULTS, _REPLACED) else folder
    is_ours = (home / LOCK_FILE).exists() or Run.is_one(home)
    is_needed = (
        folder != home or path.name in (*_FILES, LOCK_FILE) or path.match("expert-*.safetensors")
    )
    if is_ours and is_needed and path.exists():
        message = f"belongs to what {path.parent} holds and is left alone; name another file"
        raise file_error(path, message, "own-file", RunError)


def _refuse_run(path: Path) -> None:
    if (path / MANIFEST_FILE).exists():
        message = "already holds a run; pass --resume to continue it or --overwrite to replace it"
        raise file_error(path, message, "existing-run", RunError)
    for name in (CORESET_FILE, CHECKPOINT_FILE, METRICS_FILE):
        if (path / name).exists():
            message = f"holds the {name} of a run without its {MANIFEST_FILE}"
            message = f"{message}; pass --overwrite to start again"
            raise file_error(path, message, "run-without-manifest", RunError)


def _stored_config(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path / CONFIG_FILE)
    except ConfigError as error:
        message = f"the run in {path} has lost its configuration: {error}"
        raise RunError(message, code="lost-config", path=path) from error


def _save_result(folder: Path, name: str, table: Mapping[str, Any]) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        message = f"{name!r} cannot name an evaluation; use letters, digits, '.', '_' and '-'"
        raise ConfigError(message, code="invalid-name", name=name)
    with writing(folder):
        folder.mkdir(exist_ok=True)
    write_json(folder / f"{name}.json", table)


def _results(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.json") if not file.name.startswith("."))


def _own_files(path: Path) -> list[Path]:
    """What a run has written into its folder, the manifest first."""
    results = (file for name in _RESULTS for file in _results(path / name))
    return [file for file in (*(path / name for name in _FILES), *results) if file.exists()]


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
        remove_partials(path / name)
