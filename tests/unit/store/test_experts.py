"""A buffer of experts on disk: read by rows, checked by rows, refused when it is not what it should
be.
"""

import json
import re
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pseudocore.core.errors import ArtifactError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import preprocessing as whiten
from pseudocore.models.dense import Linear
from pseudocore.store.expert_folder import ExpertFolder, traits
from pseudocore.store.expert_shards import Kept, Shard, write_shard
from pseudocore.store.folders import differences
from pseudocore.store.run_folder import Run

NUM_PARAMETERS = 3 * 2 + 2


@pytest.fixture
def problem() -> Problem:
    x = Rng(0).normal(12, 3)
    data = Dataset(
        "dozen", Examples(x, torch.arange(12) % 2), Examples(x[:4], torch.arange(4) % 2), 2
    )
    return Problem(data, Linear().build((3,), 2), whiten.make("standard", data))


def identity(problem: Problem, **changes: Any) -> dict[str, Any]:
    return {**traits(problem), "training": {"lr": 0.01}, "seed": 0, "storage": "float32", **changes}


def kept(number: int, num_epochs: int = 3) -> Kept:
    theta = Rng(number)("theta").normal(num_epochs + 1, NUM_PARAMETERS)
    return Kept(theta, [1.0 / epoch for epoch in range(1, num_epochs + 1)], theta[-1], None)


def rows(*places: tuple[int, int]) -> tuple[Tensor, Tensor]:
    return torch.tensor([expert for expert, _ in places]), torch.tensor(
        [epoch for _, epoch in places]
    )


@pytest.fixture
def buffer(problem: Problem, tmp_path: Path) -> ExpertFolder:
    """Three experts of three epochs, closed."""
    with ExpertFolder.create(
        tmp_path / "buffer",
        identity(problem),
        command="pseudocore experts dozen --epochs 3 --out buffer",
    ) as folder:
        for number in range(3):
            folder.write(number, kept(number))
    return ExpertFolder.open(folder.path)


# --- reading
# ----------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(buffer: ExpertFolder, problem: Problem) -> None:
    experts = buffer.mapped(problem)
    assert (experts.num_experts, experts.num_epochs) == (3, 3)
    at = experts.at(*rows((2, 0), (0, 3), (2, 0)))
    assert torch.equal(at, torch.stack([kept(2).theta[0], kept(0).theta[3], kept(2).theta[0]]))
    assert torch.equal(
        experts.load(1), torch.stack([kept(number).theta[:2] for number in range(3)])
    )
    assert experts.num_bytes(1) == 3 * 2 * NUM_PARAMETERS * 4
    assert buffer.losses(1) == kept(1).losses
    assert buffer.size() == sum(file.stat().st_size for file in buffer.path.glob("*.safetensors"))


def test_what_was_read_is_the_readers_own(buffer: ExpertFolder, problem: Problem) -> None:
    experts = buffer.mapped(problem)
    experts.at(*rows((0, 1))).zero_()
    assert torch.equal(experts.at(*rows((0, 1)))[0], kept(0).theta[1])


def test_experts_come_in_the_problems_type(buffer: ExpertFolder, problem: Problem) -> None:
    assert (
        buffer.mapped(replace(problem, dtype=torch.float64)).at(*rows((0, 1))).dtype
        == torch.float64
    )


def test_they_count_as_far_as_each_of_them_has_come(buffer: ExpertFolder, problem: Problem) -> None:
    buffer.write(1, kept(1, num_epochs=2))
    buffer.write(4, kept(4))  # beyond a gap
    experts = buffer.mapped(problem)
    assert (experts.num_experts, experts.num_epochs) == (3, 2)
    assert (experts.first(1).num_experts, experts.first(1).num_epochs) == (1, 3)
    assert buffer.epochs() == {0: 3, 1: 2, 2: 3, 4: 3}


def test_reading_a_pair_touches_only_its_bytes(tmp_path: Path) -> None:
    """Resident pages of the file's mapping, by the operating system's account, out of 48 MiB; it
    maps some neighbours along.
    """
    size = 2**18  # 1 MiB a row
    path = tmp_path / "large.safetensors"
    theta = torch.arange(48 * size, dtype=torch.float32).view(48, size)
    write_shard(path, 0, Kept(theta, [0.0] * 47, theta[-1], None))
    shard = Shard(path, 0)
    opened = resident(path)
    for epoch in (10, 30):
        assert torch.equal(shard.row(epoch), theta[epoch])
    touched = resident(path) - opened
    assert opened <= 2**20
    assert 2 * 2**20 <= touched <= 12 * 2**20
    for epoch in range(48):
        shard.row(epoch)
    assert resident(path) >= 47 * 2**20, "the count counts what it should"


def test_a_snapshot_that_was_rounded_keeps_where_it_was(tmp_path: Path) -> None:
    last, velocity = Rng(0).normal(5, dtype=torch.float64), Rng(1).normal(5, dtype=torch.float64)
    folder = ExpertFolder(tmp_path, {})
    folder.write(0, Kept(torch.stack([last, last]).bfloat16(), [0.5], last, velocity))
    read = folder.read(0)
    assert read.theta.dtype == torch.bfloat16
    assert torch.equal(read.last, last)
    assert read.velocity is not None
    assert torch.equal(read.velocity, velocity)


# --- damage
# -----------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_found_where_it_is(buffer: ExpertFolder, problem: Problem) -> None:
    file = buffer.path / "expert-0001.safetensors"
    content = bytearray(file.read_bytes())
    content[-NUM_PARAMETERS * 4 - 1] ^= 1  # the last byte but one row: epoch 2
    file.write_bytes(content)
    experts = buffer.mapped(problem)
    assert torch.equal(experts.at(*rows((1, 1), (1, 3))), kept(1).theta[[1, 3]])
    for _ in range(2):
        with pytest.raises(
            ArtifactError,
            match=r"expert-0001.safetensors is damaged: epoch 2 .* delete the file and run",
        ):
            experts.at(*rows((1, 2)))
    with pytest.raises(ArtifactError, match=r"damaged.*delete the file"):
        buffer.read(1)


class Harm(NamedTuple):
    name: str
    do: Any
    words: str


HARMS = [
    Harm(
        "cut short",
        lambda file: file.write_bytes(file.read_bytes()[:-5]),
        r"truncated, damaged .* delete the file",
    ),
    Harm("emptied", lambda file: file.write_bytes(b""), r"truncated, damaged"),
    Harm("text", lambda file: file.write_text("hello" * 99), r"truncated, damaged"),
    Harm(
        "another's",
        lambda file: file.write_bytes((file.parent / "expert-0002.safetensors").read_bytes()),
        r"is not expert number 1",
    ),
    Harm("of no kind", lambda file: write_plain(file), r"was not written by pseudocore"),
]


def write_plain(file: Path) -> None:
    from safetensors.torch import save_file

    save_file({"theta": torch.zeros(4, NUM_PARAMETERS)}, file)


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.name)
def test_a_damaged_shard_is_a_sentence(buffer: ExpertFolder, problem: Problem, harm: Harm) -> None:
    harm.do(buffer.path / "expert-0001.safetensors")
    for read in (lambda: buffer.mapped(problem), lambda: buffer.read(1), buffer.epochs):
        with pytest.raises(ArtifactError, match=harm.words):
            read()


def test_networks_of_another_size_are_refused(buffer: ExpertFolder, problem: Problem) -> None:
    buffer.write(1, Kept(torch.zeros(4, 5), [0.0] * 3, torch.zeros(5), None))
    with pytest.raises(ArtifactError, match="holds networks of 5 parameters"):
        buffer.mapped(problem)


# --- what fits
# --------------------------------------------------------------------------------------------------------


def test_experts_of_other_data_model_or_preprocessing_do_not_fit(
    buffer: ExpertFolder, problem: Problem
) -> None:
    data = problem.data
    other = Dataset("other", Examples(data.train.x + 1, data.train.y), data.test, 2)
    with pytest.raises(
        RunError, match=r"do not fit: they were trained on other data, 'dozen' and not this 'other'"
    ):
        buffer.mapped(replace(problem, data=other))
    with pytest.raises(RunError, match=r"do not fit: model\.num_parameters: stored 8, given 11"):
        buffer.mapped(replace(problem, model=_Named(11)))  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"preprocess\.kind: stored 'standard', given 'none'"):
        buffer.mapped(replace(problem, preprocess=whiten.make("none", data)))


class _Named:
    """As much of a model as is asked."""

    def __init__(self, num_parameters: int) -> None:
        self.num_parameters = num_parameters

    def describe(self) -> dict[str, Any]:
        return {"name": "linear", "num_parameters": self.num_parameters}


def test_the_same_data_under_another_name_fits(buffer: ExpertFolder, problem: Problem) -> None:
    again = Dataset("copy", problem.data.train, problem.data.test, 2)
    assert buffer.mapped(replace(problem, data=again)).num_experts == 3


def test_descriptions_differ_in_words() -> None:
    one = {"a": {"b": 1, "c": [0.5, 0.25]}, "d": None, "e": True}
    assert (
        differences(
            one, {"a": {"b": 1, "c": [0.5000001, 0.25]}, "d": None, "e": True}, tolerance=1e-4
        )
        == []
    )
    assert differences(one, {"a": {"b": 2, "c": [0.5]}, "e": 1}) == [
        "a.b: stored 1, given 2",
        "a.c: stored [0.5, 0.25], given [0.5]",
        "e: stored True, given 1",
    ]


def test_the_command_that_trains_on(buffer: ExpertFolder) -> None:
    assert buffer.command(7) == "pseudocore experts dozen --out buffer --epochs 7"
    buffer.manifest["command"] = "pseudocore experts dozen --epochs=3 --overwrite --out 'my buffer'"
    assert buffer.command(9) == "pseudocore experts dozen --out 'my buffer' --epochs 9"


# --- the folder
# -------------------------------------------------------------------------------------------------------


def test_opening_what_is_no_buffer(tmp_path: Path, problem: Problem) -> None:
    with pytest.raises(RunError, match=r"there is no folder .*missing"):
        ExpertFolder.open(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file, not a folder"):
        ExpertFolder.open(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="holds no experts: it has no manifest"):
        ExpertFolder.open(tmp_path / "empty")
    Run.create(tmp_path / "run", {"seed": 0}).close()
    with pytest.raises(RunError, match=r"holds no experts: the kind of its manifest"):
        ExpertFolder.open(tmp_path / "run")
    ExpertFolder.create(tmp_path / "begun", identity(problem)).close()
    with pytest.raises(
        RunError, match=r"holds no run: the kind of its manifest\.json is 'pseudocore experts'"
    ):
        Run.open(tmp_path / "begun")
    with pytest.raises(ArtifactError, match="holds no experts yet"):
        ExpertFolder.open(tmp_path / "begun").mapped(problem)
    (tmp_path / "begun/manifest.json").write_text('{"kind": "pseudocore experts", "schema": 1}')
    with pytest.raises(
        RunError,
        match=r"begun/manifest\.json is damaged: its identity is None",
    ):
        ExpertFolder.open(tmp_path / "begun")


def test_a_later_version_is_refused(buffer: ExpertFolder) -> None:
    manifest = json.loads((buffer.path / "manifest.json").read_text())
    (buffer.path / "manifest.json").write_text(json.dumps({**manifest, "schema": 2}))
    with pytest.raises(RunError, match="made by a later pseudocore"):
        ExpertFolder.open(buffer.path)


def test_a_buffer_trained_alike_is_gone_on_with(buffer: ExpertFolder, problem: Problem) -> None:
    with ExpertFolder.create(buffer.path, identity(problem)) as folder:
        assert folder.epochs() == {0: 3, 1: 3, 2: 3}
        assert folder.manifest["command"] == buffer.manifest["command"]
    assert ExpertFolder.is_alike(buffer.path, identity(problem))
    assert ExpertFolder.is_alike(buffer.path, identity(problem, data="another name of the same"))


def test_a_buffer_trained_otherwise_is_not_mixed_with(
    buffer: ExpertFolder, problem: Problem
) -> None:
    other = identity(problem, training={"lr": 0.02}, seed=1)
    with pytest.raises(
        RunError,
        match=r"trained otherwise \(training.lr: stored 0.01, given 0.02; seed: stored 0, given 1\); pass --overwrite",
    ):
        ExpertFolder.create(buffer.path, other)
    assert not ExpertFolder.is_alike(buffer.path, other)
    (buffer.path / "notes.txt").write_text("mine")
    with ExpertFolder.create(buffer.path, other, overwrite=True) as folder:
        assert folder.epochs() == {}
        assert folder.identity["seed"] == 1
    assert (buffer.path / "notes.txt").read_text() == "mine"


def test_what_is_not_ours_is_left_alone(tmp_path: Path, problem: Problem) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_text("")
    Run.create(tmp_path / "run", {"seed": 0}).close()
    (tmp_path / "file").write_text("")
    for name, words in {
        "photos": "holds no experts",
        "run": "holds no experts",
        "file": "is a file",
    }.items():
        for overwrite in (False, True):
            with pytest.raises(RunError, match=words):
                ExpertFolder.create(tmp_path / name, identity(problem), overwrite=overwrite)


def test_shards_without_a_manifest_are_not_adopted(buffer: ExpertFolder, problem: Problem) -> None:
    (buffer.path / "manifest.json").unlink()
    with pytest.raises(
        RunError,
        match=r"holds expert-0000.safetensors of experts that have lost their manifest.json; pass --overwrite",
    ):
        ExpertFolder.create(buffer.path, identity(problem))
    assert not ExpertFolder.is_alike(buffer.path, identity(problem))
    with ExpertFolder.create(buffer.path, identity(problem), overwrite=True) as folder:
        assert folder.epochs() == {}


def test_one_writer_at_a_time(buffer: ExpertFolder, problem: Problem) -> None:
    with (
        ExpertFolder.create(buffer.path, identity(problem)),
        pytest.raises(RunError, match="being written by another process"),
    ):
        ExpertFolder.create(buffer.path, identity(problem))
    ExpertFolder.create(buffer.path, identity(problem)).close()


def test_a_full_disk_leaves_what_was_there(
    buffer: ExpertFolder, full_disk: AbstractContextManager[None]
) -> None:
    before = {file.name: file.read_bytes() for file in buffer.path.iterdir()}
    with (
        full_disk,
        pytest.raises(
            RunError, match=r"cannot write .*expert-0001.safetensors: no space left on device"
        ),
    ):
        buffer.write(1, kept(9))
    assert {file.name: file.read_bytes() for file in buffer.path.iterdir()} == before


def test_more_than_the_disk_holds_is_refused_before_training(buffer: ExpertFolder) -> None:
    buffer.reserve(10)
    with pytest.raises(
        RunError,
        match=r"\d+ MiB free, \d+ MiB are needed; keep fewer \(--num, --epochs\)",
    ):
        buffer.reserve(2**60)


def resident(path: Path) -> int:
    """Bytes of a file's mappings that this process has touched."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total
