"""A folder of experts: read by rows, checked by rows, refused when it is not what it should be."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pseudocore.core.errors import PseudocoreError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import preprocessing as whiten
from pseudocore.models.dense import Linear
from pseudocore.store.expert_folder import Expert, ExpertFolder, Shard, traits
from pseudocore.store.folders import differences
from pseudocore.store.run_folder import Run

NUM_PARAMETERS = 3 * 2 + 2


@pytest.fixture
def problem() -> Problem:
    x, y = Rng(0).normal(12, 3), torch.arange(12) % 2
    data = Dataset("dozen", Examples(x, y), Examples(x[:4], y[:4]), 2)
    return Problem(data, Linear().build((3,), 2), whiten.make("standard", data))


def identity(problem: Problem, **changes: Any) -> dict[str, Any]:
    return {**traits(problem), "training": {"lr": 0.01}, "seed": 0, "storage": "float32", **changes}


def expert(number: int, num_epochs: int = 3) -> Expert:
    theta = Rng(number)("theta").normal(num_epochs + 1, NUM_PARAMETERS)
    return Expert(theta, [1.0 / epoch for epoch in range(1, num_epochs + 1)], theta[-1], None)


def rows(*places: tuple[int, int]) -> tuple[Tensor, Tensor]:
    experts, epochs = zip(*places, strict=True)
    return torch.tensor(experts), torch.tensor(epochs)


@contextmanager
def refusal(code: str, words: str | None = None, **fields: Any) -> Iterator[None]:
    with pytest.raises(PseudocoreError, match=words) as caught:
        yield
    assert caught.value.code == code
    assert fields.items() <= caught.value.fields.items()


@pytest.fixture
def folder(problem: Problem, tmp_path: Path) -> ExpertFolder:
    """Three experts of three epochs, closed."""
    command = "pseudocore experts dozen --epochs 3 --out buffer"
    with ExpertFolder.create(tmp_path / "buffer", identity(problem), command=command) as made:
        for number in range(3):
            made.write(number, expert(number))
    return ExpertFolder.open(made.path)


# --- reading


def test_what_is_written_is_read(folder: ExpertFolder, problem: Problem) -> None:
    found = folder.mapped(problem)
    assert (found.num_experts, found.num_epochs) == (3, 3)
    expected = torch.stack([expert(2).theta[0], expert(0).theta[3], expert(2).theta[0]])
    assert torch.equal(found.at(*rows((2, 0), (0, 3), (2, 0))), expected)
    assert torch.equal(found.load(1)[2], torch.stack(list(expert(2).theta[:2])))
    assert found.load(1).shape == (3, 2, NUM_PARAMETERS)
    assert found.num_bytes(1) == 3 * 2 * NUM_PARAMETERS * 4
    assert folder.losses(1) == expert(1).losses
    assert folder.size() == sum(file.stat().st_size for file in folder.path.glob("*.safetensors"))
    double = folder.mapped(replace(problem, dtype=torch.float64))
    assert double.at(*rows((0, 1))).dtype == torch.float64


def test_what_was_read_is_a_copy(folder: ExpertFolder, problem: Problem) -> None:
    found = folder.mapped(problem)
    found.at(*rows((0, 1))).zero_()
    assert torch.equal(found.at(*rows((0, 1)))[0], expert(0).theta[1])


def test_experts_count_as_far_as_each_has_come(folder: ExpertFolder, problem: Problem) -> None:
    folder.write(1, expert(1, num_epochs=2))
    folder.write(4, expert(4))  # beyond a gap
    found = folder.mapped(problem)
    assert (found.num_experts, found.num_epochs) == (3, 2)
    assert (found.first(1).num_experts, found.first(1).num_epochs) == (1, 3)
    assert folder.epochs() == {0: 3, 1: 2, 2: 3, 4: 3}


def test_reading_a_row_touches_only_its_bytes(tmp_path: Path) -> None:
    """Resident pages of the file's mapping, by the operating system's account, out of 48 MiB; it
    maps some neighbours along.
    """
    theta = torch.arange(48 * 2**18, dtype=torch.float32).view(48, -1)  # 1 MiB a row
    ExpertFolder(tmp_path, {}).write(0, Expert(theta, [0.0] * 47, theta[-1], None))
    path = tmp_path / "expert-0000.safetensors"
    shard = Shard(path, 0)
    opened = resident(path)
    for epoch in (10, 30):
        assert torch.equal(shard.row(epoch), theta[epoch])
    assert opened <= 2**20
    assert 2 * 2**20 <= resident(path) - opened <= 12 * 2**20
    for epoch in range(48):
        shard.row(epoch)
    assert resident(path) >= 47 * 2**20, "the count counts what it should"


def test_a_rounded_snapshot_keeps_the_exact_end(tmp_path: Path) -> None:
    last, velocity = Rng(0).normal(2, 5, dtype=torch.float64)
    folder = ExpertFolder(tmp_path, {})
    folder.write(0, Expert(torch.stack([last, last]).bfloat16(), [0.5], last, velocity))
    read = folder.read(0)
    assert read.theta[0].dtype == torch.bfloat16
    assert torch.equal(read.last, last)
    assert read.velocity is not None
    assert torch.equal(read.velocity, velocity)


# --- damage


def test_a_flipped_bit_is_found_where_it_is(folder: ExpertFolder, problem: Problem) -> None:
    file = folder.path / "expert-0001.safetensors"
    content = bytearray(file.read_bytes())
    content[-NUM_PARAMETERS * 4 - 1] ^= 1  # the last byte but one row: epoch 2
    file.write_bytes(content)
    found = folder.mapped(problem)
    assert torch.equal(found.at(*rows((1, 1), (1, 3))), torch.stack(list(expert(1).theta))[[1, 3]])
    for _ in range(2):
        with refusal("damaged-expert", "epoch 2 .*; delete the file and run the same"):
            found.at(*rows((1, 2)))
    with refusal("damaged-expert", path=file):
        folder.read(1)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-5]), "truncated"),
        (lambda file: file.write_bytes(b""), "truncated"),
        (lambda file: file.write_text("hello" * 99), "truncated"),
        (lambda file: file.write_bytes(file.with_stem("expert-0002").read_bytes()), "number 1"),
        (lambda file: save_file({"theta": torch.zeros(4, 8)}, file), "not written by pseudocore"),
    ],
    ids=["cut short", "emptied", "text", "another's", "of no kind"],
)
def test_a_damaged_shard_is_refused(
    folder: ExpertFolder, problem: Problem, damage: Callable[[Path], object], words: str
) -> None:
    damage(folder.path / "expert-0001.safetensors")
    for read in (lambda: folder.mapped(problem), lambda: folder.read(1), folder.epochs):
        with refusal("damaged-expert", words):
            read()


def test_networks_of_another_size_are_refused(folder: ExpertFolder, problem: Problem) -> None:
    folder.write(1, Expert(torch.zeros(4, 5), [0.0] * 3, torch.zeros(5), None))
    with refusal("damaged-expert"):
        folder.mapped(problem)


# --- what fits


class _Named:
    """As much of a model as is asked."""

    num_parameters = 11

    def describe(self) -> dict[str, Any]:
        return {"name": "linear", "num_parameters": self.num_parameters}


def test_experts_fit_their_data_model_and_preprocessing(
    folder: ExpertFolder, problem: Problem
) -> None:
    data = problem.data
    copy = Dataset("copy", data.train, data.test, 2)
    other = Dataset("other", Examples(data.train.x + 1, data.train.y), data.test, 2)
    assert folder.mapped(replace(problem, data=copy)).num_experts == 3
    with refusal("experts-do-not-fit", "on other data, 'dozen' and not this 'other'"):
        folder.mapped(replace(problem, data=other))
    found = ["model.num_parameters: stored 8, given 11"]
    with refusal("experts-do-not-fit", differences=found):
        folder.mapped(replace(problem, model=_Named()))  # type: ignore[arg-type]
    with refusal("experts-do-not-fit", r"preprocess\.kind: stored 'standard', given 'none'"):
        folder.mapped(replace(problem, preprocess=whiten.make("none", data)))


def test_descriptions_differ_in_words() -> None:
    one = {"a": {"b": 1, "c": [0.5, 0.25]}, "d": None, "e": True}
    near = {"a": {"b": 1, "c": [0.5000001, 0.25]}, "d": None, "e": True}
    assert differences(one, near, tolerance=1e-4) == []
    assert differences(one, {"a": {"b": 2, "c": [0.5]}, "e": 1}) == [
        "a.b: stored 1, given 2",
        "a.c: stored [0.5, 0.25], given [0.5]",
        "e: stored True, given 1",
    ]


def test_the_command_that_trains_on(folder: ExpertFolder) -> None:
    assert folder.command(7) == "pseudocore experts dozen --out buffer --epochs 7"
    folder.manifest["command"] = "pseudocore experts dozen --epochs=3 --overwrite --out 'my buffer'"
    assert folder.command(9) == "pseudocore experts dozen --out 'my buffer' --epochs 9"


# --- the folder


def test_opening_something_else(tmp_path: Path, problem: Problem, folder: ExpertFolder) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    Run.create(tmp_path / "run", {"seed": 0}).close()
    for name, code in {
        "missing": "not-a-folder",
        "file": "not-a-folder",
        "empty": "no-manifest",
        "run": "foreign-folder",
    }.items():
        with refusal(code):
            ExpertFolder.open(tmp_path / name)
    ExpertFolder.create(tmp_path / "begun", identity(problem)).close()
    with refusal("foreign-folder", kind="pseudocore experts"):
        Run.open(tmp_path / "begun")
    with refusal("no-experts"):
        ExpertFolder.open(tmp_path / "begun").mapped(problem)
    (tmp_path / "begun/manifest.json").write_text('{"kind": "pseudocore experts", "schema": 1}')
    with refusal("damaged-manifest"):
        ExpertFolder.open(tmp_path / "begun")
    manifest = json.loads((folder.path / "manifest.json").read_text())
    (folder.path / "manifest.json").write_text(json.dumps({**manifest, "schema": 2}))
    with refusal("later-schema"):
        ExpertFolder.open(folder.path)


def test_experts_trained_alike_are_resumed(folder: ExpertFolder, problem: Problem) -> None:
    with ExpertFolder.create(folder.path, identity(problem)) as again:
        assert again.epochs() == {0: 3, 1: 3, 2: 3}
        assert again.manifest["command"] == folder.manifest["command"]
    assert ExpertFolder.is_alike(folder.path, identity(problem))
    assert ExpertFolder.is_alike(folder.path, identity(problem, data="another name of the same"))


def test_experts_trained_otherwise_are_not_mixed(folder: ExpertFolder, problem: Problem) -> None:
    other = identity(problem, training={"lr": 0.02}, seed=1)
    found = ["training.lr: stored 0.01, given 0.02", "seed: stored 0, given 1"]
    with refusal("other-experts", differences=found):
        ExpertFolder.create(folder.path, other)
    assert not ExpertFolder.is_alike(folder.path, other)
    (folder.path / "notes.txt").write_text("mine")
    with ExpertFolder.create(folder.path, other, overwrite=True) as new:
        assert new.epochs() == {}
        assert new.identity["seed"] == 1
    assert (folder.path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_folders_are_left_alone(tmp_path: Path, problem: Problem, overwrite: bool) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_text("")
    Run.create(tmp_path / "run", {"seed": 0}).close()
    (tmp_path / "file").write_text("")
    codes = {"photos": "foreign-folder", "run": "foreign-folder", "file": "not-a-folder"}
    for name, code in codes.items():
        with refusal(code):
            ExpertFolder.create(tmp_path / name, identity(problem), overwrite=overwrite)


def test_shards_without_a_manifest_are_not_adopted(folder: ExpertFolder, problem: Problem) -> None:
    (folder.path / "manifest.json").unlink()
    with refusal("experts-without-manifest"):
        ExpertFolder.create(folder.path, identity(problem))
    assert not ExpertFolder.is_alike(folder.path, identity(problem))
    with ExpertFolder.create(folder.path, identity(problem), overwrite=True) as new:
        assert new.epochs() == {}


def test_one_writer_at_a_time(folder: ExpertFolder, problem: Problem) -> None:
    with ExpertFolder.create(folder.path, identity(problem)), refusal("locked"):
        ExpertFolder.create(folder.path, identity(problem))
    ExpertFolder.create(folder.path, identity(problem)).close()


def test_a_full_disk(folder: ExpertFolder, full_disk: AbstractContextManager[None]) -> None:
    before = {file.name: file.read_bytes() for file in folder.path.iterdir()}
    with full_disk, refusal("unwritable-file"):
        folder.write(1, expert(9))
    assert {file.name: file.read_bytes() for file in folder.path.iterdir()} == before
    folder.reserve(10)
    with refusal("disk-full"):
        folder.reserve(2**60)


def resident(path: Path) -> int:
    """Bytes of a file's mappings that this process has touched."""
    total, is_own = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_own = line.endswith(str(path))
        elif is_own and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total
