"""A run: the folder of one reduction from its first step to its last evaluation.

`coreset.safetensors`, `config.toml` (the merged configuration), `metrics.jsonl`, `manifest.json`,
`evaluations/<name>.json`, `fidelity/<name>.json`, `continual/<name>.json`,
`checkpoint.safetensors` until the run has finished. Other files in the folder are left alone.
"""

import hashlib
import operator
import re
import shlex
import warnings
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.types import Coreset
from pseudocore.runtime import profiling
from pseudocore.store.coreset_file import CORESET_FILE, STASH, load_coreset, save_coreset
from pseudocore.store.files import (
    StrPath,
    decode_toml,
    encode_json,
    encode_toml,
    file_error,
    read_json,
    read_toml,
    refuse_link,
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
from pseudocore.store.stash import (
    CONFIG_FILE,
    CONTINUAL,
    EVALUATIONS,
    FIDELITY,
    FILES,
    RESULTS,
    readable,
    results_in,
    settle,
    stash,
)


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
        return CheckpointFile(self.path / CHECKPOINT_FILE, digest, self._metrics)

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
        """The run in a folder, for reading it and for adding evaluations.

        Where a run that was to overwrite it has no coreset yet, this is the stashed one.
        """
        path = readable(Path(path))
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
            for name in FILES:
                remove_partials(path / name)  # of a writer that was killed
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
        """Drop the lines after `step`, which a resumed run logs again, and an unfinished one.

        Warns where lines that the checkpoint counts are gone, as after a power failure.
        """
        num, expected = self._metrics.truncate(step), self.checkpoints.num_metrics
        if step and expected is not None and num < expected:
            file, lost = self.path / METRICS_FILE, expected - num
            message = f"{file} has lost {lost} of {expected} lines up to step {step}"
            warnings.warn(f"{message}; curves have a gap, the run is unaffected", stacklevel=2)
            self.update_manifest(lost_metrics=lost)

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
        _save_result(self.path / EVALUATIONS, name, evaluation)

    def seeds_file(self, name: str) -> Path:
        """Where an evaluation keeps its finished seeds while it works."""
        return self.path / EVALUATIONS / f".{name}.seeds"

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """All evaluations by name."""
        return {file.stem: read_json(file) for file in results_in(self.path / EVALUATIONS)}

    def save_fidelity(self, name: str, fidelity: Mapping[str, Any]) -> None:
        """Keep a distance to full-data inference under a name, in place of an earlier one."""
        _save_result(self.path / FIDELITY, name, fidelity)

    def fidelities(self) -> dict[str, dict[str, Any]]:
        """All distances to full-data inference by name."""
        return {file.stem: read_json(file) for file in results_in(self.path / FIDELITY)}

    def results(self) -> dict[str, dict[str, Any]]:
        """What was measured for each seed: evaluations, and distances to full-data inference."""
        distances = {f"{FIDELITY}/{name}": one for name, one in self.fidelities().items()}
        return {**self.evaluations(), **distances}

    def save_continual(self, name: str, stages: Mapping[str, Any]) -> None:
        """Keep a result of class-incremental learning under a name, in place of an earlier one."""
        _save_result(self.path / CONTINUAL, name, stages)

    def continual(self) -> dict[str, dict[str, Any]]:
        """All results of class-incremental learning by name."""
        return {file.stem: read_json(file) for file in results_in(self.path / CONTINUAL)}

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


def refuse_own_file(path: Path) -> None:
    """Refuse to write a page or a copy over a file that a run or an expert folder needs."""
    folder = path.parent.resolve()
    home = folder.parent if folder.name in (*RESULTS, STASH) else folder
    is_ours = (home / LOCK_FILE).exists() or Run.is_one(home)
    is_needed = (
        folder != home or path.name in (*FILES, LOCK_FILE) or path.match("expert-*.safetensors")
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
    refuse_link(folder)
    with writing(folder):
        folder.mkdir(exist_ok=True)
    write_json(folder / f"{name}.json", table)
