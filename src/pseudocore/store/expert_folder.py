"""Expert buffers: a folder of trained networks, one safetensors shard an expert, shared by every
method that needs them.

`manifest.json` says what the networks were trained on and how, `expert-0000.safetensors` and so on
hold them (`store/expert_shards.py`). A buffer of other data, another network or other preprocessing
is refused. `docs/experts.md` is the format's page.
"""

import itertools
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from pseudocore.core.errors import ArtifactError, RunError
from pseudocore.core.problem import Problem
from pseudocore.store.expert_shards import (
    WAY_OUT,
    Kept,
    MappedExperts,
    Shard,
    read_shard,
    write_shard,
)
from pseudocore.store.files import (
    StrPath,
    decode_json,
    encode_json,
    partial_of,
    reserve,
    write_json,
    writing,
)
from pseudocore.store.folders import MANIFEST_FILE, ManifestFolder, differences

Storage = Literal["float32", "bfloat16"]

_TOLERANCE = 1e-4
"""Of floats, because a mean computed on a GPU is that of a CPU up to rounding."""
_TRAITS = ("data_fingerprint", "model", "preprocess")


def traits(problem: Problem) -> dict[str, Any]:
    """What decides whether experts fit a problem."""
    data = problem.data
    described = {"model": problem.model.describe(), "preprocess": problem.preprocess.describe()}
    return {"data": data.name, "data_fingerprint": data.fingerprint, **described}


class ExpertFolder(ManifestFolder):
    """A buffer of experts. `create` gives one to write, locked against other writers; `open` gives
    one to read.
    """

    kind = "pseudocore experts"
    noun = "experts"
    entries: ClassVar = {"identity": dict}

    @classmethod
    def create(
        cls,
        path: StrPath,
        identity: Mapping[str, Any],
        *,
        overwrite: bool = False,
        command: str = "",
    ) -> "ExpertFolder":
        """Start a buffer in a new or empty folder, go on with one that was trained alike, or
        replace it (`overwrite`).
        """
        path = Path(path)
        given = decode_json(encode_json(identity))  # as it will be read back
        lock = cls.claim(path)
        try:
            if overwrite:
                _remove_ours(path)
            if not (path / MANIFEST_FILE).exists():
                _refuse_remains(path)
                manifest = cls.new_manifest(command)
                write_json(path / MANIFEST_FILE, {**manifest, "identity": given})
            folder = cls(path, cls.read_manifest(path), lock)
            if found := _differences(folder.identity, given):
                raise RunError(
                    f"{path} holds experts that were trained otherwise ({'; '.join(found)}); "
                    "pass --overwrite to replace them, or choose another --out"
                )
            return folder
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: StrPath) -> "ExpertFolder":
        """The buffer in a folder, for reading."""
        path = Path(path)
        return cls(path, cls.read_manifest(path))

    @classmethod
    def is_alike(cls, path: StrPath, identity: Mapping[str, Any]) -> bool:
        """Whether a folder holds a buffer that `create` would go on with."""
        path = Path(path)
        if not cls.is_one(path):
            return False
        return not _differences(cls.open(path).identity, decode_json(encode_json(identity)))

    @property
    def dtype(self) -> torch.dtype:
        """What snapshots are stored in."""
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[self.identity["storage"]]

    @property
    def identity(self) -> dict[str, Any]:
        """What was trained on what, and how: all that decides the numbers."""
        identity: dict[str, Any] = self.manifest["identity"]
        return identity

    def command(self, num_epochs: int) -> str:
        """The command line that trains the experts on to that epoch."""
        words = shlex.split(
            self.manifest.get("command")
            or f"pseudocore experts DATA --out {shlex.quote(str(self.path))}"
        )
        kept = [
            word
            for before, word in itertools.pairwise(["", *words])
            if "--epochs" not in (before, word.partition("=")[0])
        ]
        return shlex.join(
            [*(word for word in kept if word != "--overwrite"), "--epochs", str(num_epochs)]
        )

    def check_fits(self, problem: Problem) -> None:
        """Refuse experts of other data, another network or other preprocessing than the problem's."""
        stored, given = self.identity, decode_json(encode_json(traits(problem)))
        found = differences(
            *(
                {name: words.get(name) for name in _TRAITS if name != "data_fingerprint"}
                for words in (stored, given)
            ),
            tolerance=_TOLERANCE,
        )
        if stored.get("data_fingerprint") != given["data_fingerprint"]:
            found.insert(
                0,
                f"they were trained on other data, {stored.get('data')!r} and not this {given['data']!r}: the fingerprints differ",
            )
        if found:
            raise RunError(
                f"the experts in {self.path} do not fit: {'; '.join(found)}; train others with pseudocore experts --out ANOTHER"
            )

    def epochs(self) -> dict[int, int]:
        """Epochs kept of every expert there is, by number."""
        return {
            number: Shard(self._file(number), number).num_epochs for number in _numbers(self.path)
        }

    def mapped(self, problem: Problem) -> MappedExperts:
        """The experts from the first to the last before a gap, after checking that they fit the
        problem.
        """
        self.check_fits(problem)
        leading = [number for place, number in enumerate(_numbers(self.path)) if place == number]
        shards = [Shard(self._file(number), number) for number in leading]
        if wrong := [
            shard for shard in shards if shard.num_parameters != problem.model.num_parameters
        ]:
            raise ArtifactError(
                f"{wrong[0].path} holds networks of {wrong[0].num_parameters} parameters; {WAY_OUT}"
            )
        return MappedExperts(self.path, shards, device=problem.device, dtype=problem.dtype)

    def write(self, number: int, kept: Kept) -> None:
        """Keep an expert, in place of an earlier one of its number; whole or not at all."""
        write_shard(self._file(number), number, kept)

    def read(self, number: int) -> Kept:
        """A whole expert, to go on with."""
        return read_shard(self._file(number), number)

    def losses(self, number: int) -> list[float]:
        """Training loss of every epoch of an expert."""
        return Shard(self._file(number), number).losses

    def reserve(self, num_bytes: int) -> None:
        """Refuse before training what the disk cannot hold."""
        advice = "keep fewer (--num, --epochs), store bfloat16, or choose another --out"
        reserve(self.path, num_bytes, advice)

    def size(self) -> int:
        """Bytes on disk."""
        return sum(self._file(number).stat().st_size for number in self.epochs())

    def _file(self, number: int) -> Path:
        return self.path / _name(number)


def _remove_ours(path: Path) -> None:
    # The manifest goes first: killed in the middle, what is left cannot be taken for a whole
    # buffer.
    for file in (path / MANIFEST_FILE, *(path / _name(number) for number in _numbers(path))):
        with writing(file):
            file.unlink(missing_ok=True)
            partial_of(file).unlink(missing_ok=True)


def _refuse_remains(path: Path) -> None:
    if left := _numbers(path):
        raise RunError(
            f"{path} holds {_name(left[0])} of experts that have lost their {MANIFEST_FILE}; pass "
            "--overwrite to start again",
            code="experts-without-manifest",
            path=path,
        )


def _differences(stored: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """In all but the name of the data, whose fingerprint tells."""
    return differences({**stored, "data": None}, {**given, "data": None}, tolerance=_TOLERANCE)


def _numbers(path: Path) -> list[int]:
    """Numbers of the experts there are, in order."""
    stems = [file.stem.removeprefix("expert-") for file in path.glob("expert-*.safetensors")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _name(number: int) -> str:
    return f"expert-{number:04d}.safetensors"
