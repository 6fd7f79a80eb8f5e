"""A folder of experts: trained networks, one safetensors shard each, shared by every method that
learns from them.

`manifest.json` says what they were trained on and how. `expert-0000.safetensors` and so on hold
`theta` (epochs + 1, parameters), row 0 the initialisation, with a digest of every row. Where
training on from the last row would not be exact (it was rounded, or there is momentum) also `last`
and `velocity` (parameters,). A snapshot is mapped into memory and checked against its own digest;
nothing else is read. `docs/experts.md` is the format's page.
"""

import hashlib
import itertools
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pseudocore.core.errors import ArtifactError, RunError
from pseudocore.core.problem import Problem
from pseudocore.store.coreset_file import read_tensors, write_tensors
from pseudocore.store.files import (
    StrPath,
    decode_json,
    encode_json,
    reading,
    remove_partials,
    reserve,
    write_json,
    writing,
)
from pseudocore.store.folders import MANIFEST_FILE, ManifestFolder, differences

Storage = Literal["float32", "bfloat16"]

_KIND = "expert"
_TOLERANCE = 1e-4
"""Of floats, because a mean computed on a GPU is that of a CPU up to rounding."""


class Expert(NamedTuple):
    theta: Tensor | Sequence[Tensor]  # snapshots (epochs + 1, parameters), or a sequence of them
    losses: list[float]  # training loss of every epoch
    last: Tensor  # (parameters,) after the last epoch, exactly
    velocity: Tensor | None  # (parameters,) after the last epoch, with momentum


class Shard:
    """An open file of one expert; when it is replaced meanwhile, the old one is still read."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self._file: Any = self._read(lambda: safe_open(str(path), framework="pt", device="cpu"))
        record = self._record()
        self._theta: Any = self._read(lambda: self._file.get_slice("theta"))
        shape = self._theta.get_shape()
        self._digests: Any = record.get("digests")
        self.losses: list[float] = record.get("losses", [])
        if record.get("kind") != _KIND or record.get("number") != number or len(shape) != 2:
            raise self._damaged(f"is not expert number {number}")
        for entries, num in ((self._digests, shape[0]), (self.losses, shape[0] - 1)):
            if not isinstance(entries, list) or len(entries) != num:
                raise self._damaged("is damaged: each of its epochs needs a digest and a loss")
        self.num_epochs: int = shape[0] - 1
        self.num_parameters: int = shape[1]
        self._checked: set[int] = set()

    def row(self, epoch: int) -> Tensor:
        """Theta (parameters,) at the end of an epoch, still in the file's mapping and type: copy it
        before changing it.
        """
        theta: Tensor = self._read(lambda: self._theta[epoch])
        if epoch not in self._checked:
            if _row_digest(theta) != self._digests[epoch]:
                raise self._damaged(f"is damaged: epoch {epoch} does not match its digest")
            self._checked.add(epoch)
        return theta

    def _record(self) -> dict[str, Any]:
        try:
            record = decode_json((self._file.metadata() or {}).get("pseudocore", "null"))
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise self._damaged("was not written by pseudocore")
        return record

    def _read(self, read: Callable[[], Any]) -> Any:
        try:
            with reading(self.path):
                return read()
        except (SafetensorError, ValueError, RuntimeError, TypeError, KeyError) as error:
            what = f"is truncated, damaged or no safetensors file ({error})"
            raise self._damaged(what) from error

    def _damaged(self, what: str) -> ArtifactError:
        return _damaged(f"{self.path} {what}", self.path)


class MappedExperts:
    """`core.types.Experts` read from shards at every call; nothing is held in memory.

    All experts count up to the epoch that each of them has reached.
    """

    def __init__(
        self, folder: Path, shards: list[Shard], *, device: torch.device, dtype: torch.dtype
    ) -> None:
        if not shards:
            raise ArtifactError(
                f"{folder} holds no experts yet; run the pseudocore experts that fills it again",
                code="no-experts",
                path=folder,
            )
        self.folder = folder
        self.num_experts = len(shards)
        self.num_epochs = min(shard.num_epochs for shard in shards)
        self._shards, self._device, self._dtype = shards, device, dtype

    def at(self, expert: Tensor, epoch: Tensor) -> Tensor:
        places = zip(expert.tolist(), epoch.tolist(), strict=True)
        rows = [self._shards[number].row(place) for number, place in places]
        return torch.stack(rows).to(self._device, self._dtype)

    def first(self, num: int) -> "MappedExperts":
        """The first experts alone."""
        shards = self._shards[:num]
        return MappedExperts(self.folder, shards, device=self._device, dtype=self._dtype)

    def load(self, num_epochs: int) -> Tensor:
        """Snapshots (experts, num_epochs + 1, parameters) up to an epoch, on the device and in the
        type they are stored in.
        """
        epochs = range(num_epochs + 1)
        experts = [torch.stack([shard.row(epoch) for epoch in epochs]) for shard in self._shards]
        return torch.stack([one.to(self._device) for one in experts])

    def num_bytes(self, num_epochs: int) -> int:
        """Size of what `load` returns."""
        row = self._shards[0].row(0)
        return self.num_experts * (num_epochs + 1) * row.numel() * row.element_size()


class ExpertFolder(ManifestFolder):
    """A folder of experts. `create` gives one to write, locked against other writers; `open` gives
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
        """Start in a new or empty folder, resume one that was trained alike, or overwrite it.

        `identity` is all that decides the experts, `command` the command line that trains them.
        """
        path, given = Path(path), decode_json(encode_json(identity))  # as it will be read back
        lock = cls.claim(path)
        try:
            numbers = _numbers(path)
            if overwrite:
                # The manifest goes first: killed in the middle, no whole folder seems to be left.
                for name in (MANIFEST_FILE, *map(_name, numbers)):
                    with writing(path / name):
                        (path / name).unlink(missing_ok=True)
                        remove_partials(path / name)
            elif numbers and not (path / MANIFEST_FILE).exists():
                raise RunError(
                    f"{path} holds {_name(numbers[0])} of experts that have lost their "
                    f"{MANIFEST_FILE}; pass --overwrite to start again",
                    code="experts-without-manifest",
                    path=path,
                )
            if not (path / MANIFEST_FILE).exists():
                manifest = {**cls.new_manifest(command), "identity": given}
                write_json(path / MANIFEST_FILE, manifest)
            folder = cls(path, cls.read_manifest(path), lock)
            if found := _differences(folder.identity, given):
                raise RunError(
                    f"{path} holds experts that were trained otherwise ({'; '.join(found)}); "
                    "pass --overwrite to replace them, or choose another --out",
                    code="other-experts",
                    path=path,
                    differences=found,
                )
            return folder
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: StrPath) -> "ExpertFolder":
        """The folder at a path, for reading."""
        return cls(Path(path), cls.read_manifest(Path(path)))

    @classmethod
    def is_alike(cls, path: StrPath, identity: Mapping[str, Any]) -> bool:
        """Whether `create` would resume the folder."""
        if not cls.is_one(Path(path)):
            return False
        return not _differences(cls.open(path).identity, decode_json(encode_json(identity)))

    @property
    def dtype(self) -> torch.dtype:
        """The type snapshots are stored in."""
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[self.identity["storage"]]

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides the experts."""
        identity: dict[str, Any] = self.manifest["identity"]
        return identity

    def command(self, num_epochs: int) -> str:
        """The command line that trains the experts to that epoch."""
        default = f"pseudocore experts DATA --out {shlex.quote(str(self.path))}"
        words = shlex.split(self.manifest.get("command") or default)
        kept = [
            word
            for before, word in itertools.pairwise(["", *words])
            if "--epochs" not in (before, word.partition("=")[0]) and word != "--overwrite"
        ]
        return shlex.join([*kept, "--epochs", str(num_epochs)])

    def check_fits(self, problem: Problem) -> None:
        """Refuse experts of other data, another network or other preprocessing."""
        stored, given = self.identity, decode_json(encode_json(traits(problem)))
        names = ("model", "preprocess")
        compared = ({name: one.get(name) for name in names} for one in (stored, given))
        found = differences(*compared, tolerance=_TOLERANCE)
        if stored.get("data_fingerprint") != given["data_fingerprint"]:
            found = [
                f"they were trained on other data, {stored.get('data')!r} and not this "
                f"{given['data']!r}: the fingerprints differ",
                *found,
            ]
        if found:
            raise RunError(
                f"the experts in {self.path} do not fit: {'; '.join(found)}; train others with "
                "pseudocore experts --out ANOTHER",
                code="experts-do-not-fit",
                path=self.path,
                differences=found,
            )

    def epochs(self) -> dict[int, int]:
        """Number of epochs of every expert, by its number."""
        return {number: self._shard(number).num_epochs for number in _numbers(self.path)}

    def mapped(self, problem: Problem) -> MappedExperts:
        """The experts from the first to the last before a gap, checked to fit the problem."""
        self.check_fits(problem)
        numbers = [number for place, number in enumerate(_numbers(self.path)) if place == number]
        shards = [self._shard(number) for number in numbers]
        for shard in shards:
            if shard.num_parameters != problem.model.num_parameters:
                what = f"{shard.path} holds networks of {shard.num_parameters} parameters"
                raise _damaged(what, shard.path)
        return MappedExperts(self.path, shards, device=problem.device, dtype=problem.dtype)

    def write(self, number: int, expert: Expert) -> None:
        """Save an expert atomically, in place of an earlier one of its number."""
        theta = torch.stack(list(expert.theta))
        tensors = {"theta": theta}
        if expert.velocity is not None:
            tensors["velocity"] = expert.velocity
        if not torch.equal(theta[-1].to(expert.last), expert.last):
            tensors["last"] = expert.last
        digests = [_row_digest(row) for row in theta]
        header = {"number": number, "digests": digests, "losses": expert.losses}
        write_tensors(self.path / _name(number), tensors, kind=_KIND, header=header)

    def read(self, number: int) -> Expert:
        """A whole expert, every byte checked."""
        shard = self._shard(number)
        try:
            tensors, _ = read_tensors(shard.path, kind=_KIND)
        except ArtifactError as error:
            raise _damaged(str(error), shard.path) from error
        theta = tensors["theta"]
        return Expert(theta, shard.losses, tensors.get("last", theta[-1]), tensors.get("velocity"))

    def losses(self, number: int) -> list[float]:
        """Training loss of every epoch of an expert."""
        return self._shard(number).losses

    def reserve(self, num_bytes: int) -> None:
        """Refuse before training what the disk cannot hold."""
        advice = "keep fewer (--num, --epochs), store bfloat16, or choose another --out"
        reserve(self.path, num_bytes, advice)

    def size(self) -> int:
        """Bytes on disk."""
        return sum((self.path / _name(number)).stat().st_size for number in _numbers(self.path))

    def _shard(self, number: int) -> Shard:
        return Shard(self.path / _name(number), number)


def traits(problem: Problem) -> dict[str, Any]:
    """What decides whether experts fit a problem."""
    data = problem.data
    described = {"model": problem.model.describe(), "preprocess": problem.preprocess.describe()}
    return {"data": data.name, "data_fingerprint": data.fingerprint, **described}


def _differences(stored: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """In all but the name of the data, which has a fingerprint."""
    return differences({**stored, "data": None}, {**given, "data": None}, tolerance=_TOLERANCE)


def _numbers(path: Path) -> list[int]:
    """Numbers of the experts in a folder, in order."""
    stems = [file.stem.removeprefix("expert-") for file in path.glob("expert-*.safetensors")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _name(number: int) -> str:
    return f"expert-{number:04d}.safetensors"


def _row_digest(theta: Tensor) -> str:
    content = theta.contiguous().view(torch.uint8).numpy().data
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _damaged(what: str, path: Path) -> ArtifactError:
    advice = "delete the file and run the same pseudocore experts again to train that expert anew"
    return ArtifactError(f"{what}; {advice}", code="damaged-expert", path=path)
