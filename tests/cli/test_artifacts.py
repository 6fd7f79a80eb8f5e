"""Files that were damaged, forged or made for something else are refused by every verb that reads
them, and left alone.
"""

import dataclasses
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from pseudocore.store.coreset_file import load_coreset, save_coreset

Refused = Callable[..., str]
Done = Callable[[str], Any]
Npz = Callable[..., str]

FILE = Path("run/coreset.safetensors")
EVALUATE = "evaluate run --seeds 1 --num-steps 2"


@pytest.fixture
def run(done: Done) -> None:
    done("reduce uniform digits --out run --ipc 1 --model convnet-wide --width 4")


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "garbage": lambda data: np.random.default_rng(0).bytes(4096),
    "header of 10^12 bytes": lambda data: struct.pack("<Q", 10**12) + data[8:],
    "header of 2^64 - 1 bytes": lambda data: b"\xff" * 8 + data[8:],
    "one bit flipped": lambda data: data[:-3] + bytes([data[-3] ^ 4]) + data[-2:],
    "another program's": lambda data: save({"x": torch.zeros(3)}),
}


def test_what_is_no_coreset_file_is_distinguished_from_a_damaged_one(
    run: None, done: Done, refused: Refused
) -> None:
    done("export run out.npz")
    Path("notes.txt").write_text("Some thoughts about coresets.")
    for verb in ("evaluate {} --num-steps 2", "export {} again.npz"):
        refused(verb.format("out.npz"), "out.npz is no coreset file", "an archive")
        refused(verb.format("notes.txt"), "notes.txt is no coreset file, or a damaged one; give a")


READERS = (EVALUATE, "report run", "export run out.npz")
OF_FILES = (f"evaluate {FILE} --num-steps 2", f"export {FILE} out.npz")


@pytest.mark.parametrize("verb", [*READERS, *OF_FILES, "export run out --format png"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_coreset_is_refused_by_every_verb(
    run: None, refused: Refused, own_world: Path, damage: str, verb: str
) -> None:
    FILE.write_bytes(damaged := DAMAGE[damage](FILE.read_bytes()))
    before = sorted(own_world.rglob("*"))
    refused(verb, "coreset.safetensors")
    assert FILE.read_bytes() == damaged
    assert sorted(own_world.rglob("*")) == before


def test_a_coreset_file_alone_can_be_evaluated_and_exported(
    run: None, done: Done, own_world: Path
) -> None:
    of_run = done(f"{EVALUATE} --json").out
    received = FILE.rename("received.safetensors")
    before = sorted(own_world.rglob("*"))
    line = EVALUATE.replace("run", "received.safetensors")
    assert done(f"{line} --json").out == of_run
    assert "not saved" in done(line).err
    assert sorted(own_world.rglob("*")) == before
    done("export received.safetensors out.npz")
    assert np.array_equal(np.load("out.npz")["x"], load_coreset(received).x.numpy())


def test_a_coreset_file_is_evaluated_as_its_maker_meant(
    run: None, done: Done, refused: Refused
) -> None:
    _forge(evaluate={"inference": "sgd", "num_steps": 2})
    assert "sgd" in done(f"evaluate {FILE} --seeds 1").out
    _forge(evaluate={"inference": "magic"})
    refused(f"evaluate {FILE} --seeds 1", "magic")


def _forge(**changes: Any) -> None:
    """A file without a contract, which would come before the provenance."""
    coreset = load_coreset(FILE)
    provenance = {**coreset.provenance, **changes}
    save_coreset(FILE, dataclasses.replace(coreset, provenance=provenance, contract=None))


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"setup": 3}, "setup = 3"),
        ({"setup": {"data": "digits", "model": 3}}, "model = 3 is not a string"),
        ({"setup": {"data": "digits", "colour": "red"}}, "unknown option 'colour'"),
        ({"setup": {}}, "does not say what data it stands for"),
        ({"setup": {"data": "gone.npz"}}, "no file or folder gone.npz … has moved … --data"),
        ({"evaluate": "sgd"}, "evaluate = 'sgd'"),
        ({"evaluate": {"num_step": 3}}, "unknown option 'num_step' … num_steps"),
        ({"data_fingerprint": "0" * 64}, "another 'digits' … --data digits"),
    ],
)
def test_a_forged_provenance_is_refused(
    run: None, refused: Refused, changes: dict[str, Any], parts: str
) -> None:
    _forge(**changes)
    refused(EVALUATE, *parts.split(" … "))


def test_data_that_a_coreset_does_not_fit_is_refused(
    run: None, done: Done, refused: Refused, npz: Npz
) -> None:
    _forge(data_fingerprint="0" * 64)
    done(f"{EVALUATE} --data digits")
    wide = np.random.default_rng(0).integers(0, 256, (40, 9, 9), dtype=np.uint8)
    data = npz("wide", train_x=wide, test_x=wide[:20])
    refused(f"{EVALUATE} --data {data}", "(1, 8, 8)", "(1, 9, 9)")
    refused(f"{EVALUATE} --data {npz('four')}", "outside 0..3, the classes of 'four'")
    done("reduce vbpc digits --out soft --ipc 1 --model linear --num-steps 1 --batch-size 16")
    refused("evaluate soft --seeds 1 --num-steps 2 --data four.npz", "10 classes but 'four' has 4")


def test_a_damaged_manifest_and_configuration_are_refused(run: None, refused: Refused) -> None:
    manifest = Path("run/manifest.json").read_text()
    for text in ("", "{", "[]", "{}", manifest.replace('"schema": 1', '"schema": 99')):
        Path("run/manifest.json").write_text(text)
        for verb in (*READERS, "compare run"):
            assert "manifest" in refused(verb) or "later pseudocore" in refused(verb)
    Path("run/manifest.json").write_text(manifest)
    Path("run/config.toml").write_text("method = ")
    for verb in (*READERS, "compare run"):
        refused(verb, "config.toml")


def test_a_damaged_evaluation_is_refused(run: None, refused: Refused) -> None:
    Path("run/evaluations").mkdir()
    for text in ("", "[1]", "{}", json.dumps({"inference": "sgd", "per_seed": 3})):
        Path("run/evaluations/sgd.json").write_text(text)
        refused("compare run", "evaluat")


def test_a_result_that_cannot_be_kept_is_still_shown(run: None, cli: Callable[[str], Any]) -> None:
    Path("run/evaluations").write_text("a file where a folder should be")
    said = cli(f"{EVALUATE} --json")
    assert said.code == 2
    assert json.loads(said.out)["accuracy"]["mean"] >= 0
    assert said.err.count("\n") == 1
    assert "cannot write run/evaluations" in said.err


def test_an_evaluation_that_cannot_be_shown_is_still_kept(run: None) -> None:
    command = [sys.executable, "-m", "pseudocore", *EVALUATE.split()]
    with open("/dev/full", "w") as full:
        said = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert said.returncode == 2
    assert said.stderr.endswith("system refused: [Errno 28] No space left on device\n")
    (kept,) = Path("run/evaluations").iterdir()
    assert kept.name == "last-layer-vi.num_steps-2.json"


def test_what_else_is_asked_for_is_kept_under_a_name_of_its_own(run: None, done: Done) -> None:
    robust = [f"--severity 1 --num-robust {num}" for num in (5, 6)]
    for words in ("", "--published", "--landscape", "--num-robust 5", *robust):
        done(f"{EVALUATE} {words}")
    names = [file.name for file in Path("run/evaluations").iterdir()]
    assert len(names) == 5  # without --severity or --ood, --num-robust changes nothing
    for part in ("published-yes.", "landscape-yes.", "num_robust-5.", "num_robust-6."):
        assert any(part in name for name in names)
    rows = json.loads(done("compare run --json").out)
    assert len(rows) == 3  # the first three measured the same networks
    assert "published_nll" in rows[0]["metrics"]


OWN = "coreset.safetensors manifest.json config.toml evaluations/sgd.json .pseudocore.lock"


@pytest.mark.parametrize("file", [*OWN.split(), "../run/manifest.json"])
def test_a_file_of_a_run_is_never_taken_for_a_place_to_write_to(
    run: None, refused: Refused, own_world: Path, file: str
) -> None:
    (own_world / "run/evaluations").mkdir()
    (own_world / "run/evaluations/sgd.json").write_text("{}")
    before = (own_world / "run" / file).read_bytes()
    for verb in ("export run", "report run --out", "continual run --out", "bench --out"):
        refused(f"{verb} run/{file}", "is left alone; name another file")
    assert (own_world / "run" / file).read_bytes() == before


def test_what_is_not_ours_is_not_written_over(
    run: None, done: Done, refused: Refused, npz: Npz
) -> None:
    mine = Path(npz("mine"))
    Path("mine.toml").write_text("[setup]")
    before = mine.read_bytes(), FILE.read_bytes()
    refused(f"export run {mine}", "mine.npz exists and is no export")
    refused("report run --out mine.toml", "mine.toml exists and is no HTML page")
    refused("testbed --method bpc-fkl --size 5 --out run", "run holds a run")
    refused(f"export {FILE} ./{FILE}", "is left alone")
    received = FILE.rename("received.safetensors")
    refused("export received.safetensors ./received.safetensors", "is the coreset itself")
    assert (mine.read_bytes(), received.read_bytes()) == before
    assert Path("mine.toml").read_text() == "[setup]"
    for _ in range(2):  # but one's own may be made again, in a run too
        done("export received.safetensors run/points.npz")


def test_exports_that_cannot_be_written_are_refused(
    run: None, refused: Refused, done: Done
) -> None:
    Path("file").write_text("x")
    refused("export run file/x.npz", "cannot write file/x.npz")
    refused("export run run --format png", "is not empty")
    refused("export run picture.png", "--format png writes a folder")
    refused("export run table.csv --format npz", "must end in .npz to hold npz")
    done("export run table.csv")
    assert Path("table.csv").read_text().startswith("label,class,weight,p_0,p_1,")
    refused("report run --out gone/report.html", "cannot write gone/report.html")
    done("reduce uniform moons --out moons --ipc 2")
    refused("export moons out --format png", "export npz instead")
