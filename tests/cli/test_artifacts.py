"""Files that were damaged, forged or made for something else are refused by every verb that reads them, and left alone."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from pseudocore.core.types import Coreset
from pseudocore.store.artifact import load_coreset, save_coreset

Refused = Callable[[str], str]
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


@pytest.mark.parametrize("verb", [EVALUATE, "report run", "export run out.npz", "export run out --format png"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_coreset_is_refused_by_every_verb(run: None, refused: Refused, own_world: Path, damage: str, verb: str) -> None:
    FILE.write_bytes(damaged := DAMAGE[damage](FILE.read_bytes()))
    before = sorted(own_world.rglob("*"))
    assert "coreset.safetensors" in refused(verb)
    assert FILE.read_bytes() == damaged
    assert sorted(own_world.rglob("*")) == before


def _forge(**changes: Any) -> None:
    coreset = load_coreset(FILE)
    save_coreset(FILE, Coreset(coreset.x, coreset.y, coreset.weight, coreset.indices, {**coreset.provenance, **changes}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"setup": 3}, ["setup = 3"]),
        ({"setup": {"data": "digits", "model": 3}}, ["model = 3 is not a text"]),
        ({"setup": {"data": "digits", "colour": "red"}}, ["unknown option 'colour'"]),
        ({"setup": {}}, ["does not say what data it stands for"]),
        ({"setup": {"data": "gone.npz"}}, ["there is no file or folder gone.npz", "has moved", "--data"]),
        ({"evaluate": "sgd"}, ["evaluate = 'sgd'"]),
        ({"evaluate": {"inference": "last-layer-vi", "num_step": 3}}, ["unknown option 'num_step'", "num_steps"]),
        ({"data_fingerprint": "0" * 64}, ["another 'digits'", "--data digits"]),
    ],
)
def test_a_forged_provenance_is_refused(run: None, refused: Refused, changes: dict[str, Any], words: list[str]) -> None:
    _forge(**changes)
    sentence = refused(EVALUATE)
    for word in words:
        assert word in sentence


def test_naming_the_data_set_overrides_a_fingerprint(run: None, done: Done) -> None:
    _forge(data_fingerprint="0" * 64)
    done(f"{EVALUATE} --data digits")


def test_a_coreset_of_another_shape_is_refused(run: None, refused: Refused, npz: Npz) -> None:
    wide = np.random.default_rng(0).integers(0, 256, (40, 9, 9), dtype=np.uint8)
    sentence = refused(f"{EVALUATE} --data {npz('wide', train_x=wide, test_x=wide[:20])}")
    assert "(1, 8, 8)" in sentence
    assert "(1, 9, 9)" in sentence


def test_a_coreset_of_more_classes_is_refused(run: None, done: Done, refused: Refused, npz: Npz) -> None:
    assert "outside 0..3, the classes of 'four'" in refused(f"{EVALUATE} --data {npz('four')}")
    done("reduce vbpc digits --out soft --ipc 1 --model convnet-wide --width 4 --num-steps 1 --batch-size 16")
    assert "10 classes but 'four' has 4" in refused("evaluate soft --seeds 1 --num-steps 2 --data four.npz")


def test_a_damaged_manifest_and_configuration_are_refused(run: None, refused: Refused) -> None:
    manifest = Path("run/manifest.json").read_text()
    for text in ("", "{", "[]", "{}", manifest.replace('"schema": 1', '"schema": 99')):
        Path("run/manifest.json").write_text(text)
        for verb in (EVALUATE, "compare run", "report run", "export run out.npz"):
            assert "manifest" in refused(verb) or "later pseudocore" in refused(verb)
    Path("run/manifest.json").write_text(manifest)
    Path("run/config.toml").write_text("method = ")
    for verb in (EVALUATE, "compare run", "report run", "export run out.npz"):
        assert "config.toml" in refused(verb)


def test_a_damaged_evaluation_is_refused(run: None, refused: Refused) -> None:
    Path("run/evaluations").mkdir()
    for text in ("", "[1]", "{}", json.dumps({"inference": "sgd", "per_seed": 3})):
        Path("run/evaluations/sgd.json").write_text(text)
        assert "evaluat" in refused("compare run")


def test_a_result_that_cannot_be_kept_is_still_shown(run: None, cli: Callable[[str], Any]) -> None:
    Path("run/evaluations").write_text("a file where a folder should be")
    said = cli(f"{EVALUATE} --json")
    assert said.code == 2
    assert json.loads(said.out)["accuracy"]["mean"] >= 0
    assert said.err.count("\n") == 1
    assert "cannot write run/evaluations" in said.err


def test_exports_that_cannot_be_written_are_refused(run: None, refused: Refused) -> None:
    Path("file").write_text("x")
    assert "cannot write file/x.npz" in refused("export run file/x.npz")
    assert "is not empty" in refused("export run run --format png")
    assert "cannot write gone/report.html" in refused("report run --out gone/report.html")


def test_features_cannot_become_pictures(done: Done, refused: Refused) -> None:
    done("reduce uniform moons --out run --ipc 2")
    assert "export it as npz instead" in refused("export run out --format png")
