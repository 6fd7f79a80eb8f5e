"""Files that were damaged, forged or made for something else are refused by every verb that reads
them, and left alone.
"""

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

from pseudocore.core.types import Coreset
from pseudocore.store.coreset_file import load_coreset, save_coreset

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


def test_what_is_no_coreset_file_is_told_from_a_damaged_one(
    run: None, done: Done, refused: Refused
) -> None:
    done("export run out.npz")
    Path("notes.txt").write_text("Some thoughts about coresets.")
    for verb in ("evaluate {} --num-steps 2", "export {} again.npz"):
        sentence = refused(verb.format("out.npz"))
        assert "out.npz is no coreset file" in sentence
        assert "an archive, as export writes" in sentence
        assert "give a run or its coreset.safetensors" in sentence
        assert (
            "notes.txt is no coreset file, or a damaged one; give a run or its coreset.safetensors"
            in refused(verb.format("notes.txt"))
        )


VERBS = [
    EVALUATE,
    "report run",
    "export run out.npz",
    "export run out --format png",
    f"evaluate {FILE} --num-steps 2",
    f"export {FILE} out.npz",
]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_coreset_is_refused_by_every_verb(
    run: None, refused: Refused, own_world: Path, damage: str, verb: str
) -> None:
    FILE.write_bytes(damaged := DAMAGE[damage](FILE.read_bytes()))
    before = sorted(own_world.rglob("*"))
    assert "coreset.safetensors" in refused(verb)
    assert FILE.read_bytes() == damaged
    assert sorted(own_world.rglob("*")) == before


def test_a_coreset_file_alone_can_be_evaluated_and_exported(
    run: None, done: Done, own_world: Path
) -> None:
    of_run = json.loads(done(EVALUATE + " --json").out)
    received = FILE.rename("received.safetensors")
    before = sorted(own_world.rglob("*"))
    assert (
        json.loads(done("evaluate received.safetensors --seeds 1 --num-steps 2 --json").out)
        == of_run
    )
    said = done("evaluate received.safetensors --seeds 1 --num-steps 2")
    assert "not saved" in said.err
    assert sorted(own_world.rglob("*")) == before
    done("export received.safetensors out.npz")
    assert np.array_equal(np.load("out.npz")["x"], load_coreset(received).x.numpy())


def test_a_coreset_file_is_evaluated_as_its_maker_meant(
    run: None, done: Done, refused: Refused
) -> None:
    _forge(evaluate={"inference": "sgd", "num_steps": 2})
    assert "sgd" in done(f"evaluate {FILE} --seeds 1").out
    _forge(evaluate={"inference": "magic"})
    assert "magic" in refused(f"evaluate {FILE} --seeds 1")


def test_a_coreset_is_not_exported_onto_itself(run: None, refused: Refused) -> None:
    received = FILE.rename("received.safetensors")
    before = received.read_bytes()
    assert "is the coreset itself" in refused("export received.safetensors ./received.safetensors")
    assert received.read_bytes() == before


def _forge(**changes: Any) -> None:
    coreset = load_coreset(FILE)
    save_coreset(
        FILE,
        Coreset(
            coreset.x, coreset.y, coreset.weight, coreset.indices, {**coreset.provenance, **changes}
        ),
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"setup": 3}, ["setup = 3"]),
        ({"setup": {"data": "digits", "model": 3}}, ["model = 3 is not a text"]),
        ({"setup": {"data": "digits", "colour": "red"}}, ["unknown option 'colour'"]),
        ({"setup": {}}, ["does not say what data it stands for"]),
        (
            {"setup": {"data": "gone.npz"}},
            ["there is no file or folder gone.npz", "have moved", "--data"],
        ),
        ({"evaluate": "sgd"}, ["evaluate = 'sgd'"]),
        (
            {"evaluate": {"inference": "last-layer-vi", "num_step": 3}},
            ["unknown option 'num_step'", "num_steps"],
        ),
        ({"data_fingerprint": "0" * 64}, ["another 'digits'", "--data digits"]),
    ],
)
def test_a_forged_provenance_is_refused(
    run: None, refused: Refused, changes: dict[str, Any], words: list[str]
) -> None:
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


def test_a_coreset_of_more_classes_is_refused(
    run: None, done: Done, refused: Refused, npz: Npz
) -> None:
    assert "outside 0..3, the classes of 'four'" in refused(f"{EVALUATE} --data {npz('four')}")
    done(
        "reduce vbpc digits --out soft --ipc 1 --model convnet-wide --width 4 --num-steps 1 --batch-size 16"
    )
    assert "10 classes but 'four' has 4" in refused(
        "evaluate soft --seeds 1 --num-steps 2 --data four.npz"
    )


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


def test_what_is_not_ours_is_not_written_over(
    run: None, done: Done, refused: Refused, npz: Callable[..., str]
) -> None:
    mine = Path(npz("mine"))
    Path("mine.toml").write_text("[setup]")
    before = mine.read_bytes()
    assert "mine.npz exists and is no export" in refused(f"export run {mine}")
    assert "mine.toml exists and is no HTML page" in refused("report run --out mine.toml")
    assert "run holds a run" in refused("testbed --method bpc-fkl --size 5 --out run")
    assert (mine.read_bytes(), Path("mine.toml").read_text()) == (before, "[setup]")
    assert "--format png writes a folder" in refused("export run picture.png")
    for _ in range(2):  # but one's own may be made again
        done("export run points.npz")


def test_exports_that_cannot_be_written_are_refused(run: None, refused: Refused) -> None:
    Path("file").write_text("x")
    assert "cannot write file/x.npz" in refused("export run file/x.npz")
    assert "is not empty" in refused("export run run --format png")
    assert "cannot write gone/report.html" in refused("report run --out gone/report.html")


def _full_screen(line: str) -> subprocess.CompletedProcess[str]:
    with open("/dev/full", "w") as full:
        return subprocess.run(
            [sys.executable, "-m", "pseudocore", *line.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )


def test_an_evaluation_that_cannot_be_shown_is_still_kept(run: None) -> None:
    said = _full_screen(EVALUATE)
    assert (said.returncode, said.stderr) == (
        2,
        "pseudocore: the operating system refused: [Errno 28] No space left on device\n",
    )
    assert [file.name for file in Path("run/evaluations").iterdir()] == [
        "last-layer-vi.num_steps-2.json"
    ]


def test_what_else_is_asked_for_is_kept_under_a_name_of_its_own(run: None, done: Done) -> None:
    for words in (
        "",
        "--published",
        "--landscape",
        "--num-robust 5",
        "--severity 1 --num-robust 5",
        "--severity 1 --num-robust 6",
    ):
        done(f"{EVALUATE} {words}")
    words = ("", "published-yes.", "landscape-yes.", "num_robust-5.", "num_robust-6.")
    names = [file.name for file in Path("run/evaluations").iterdir()]
    assert len(names) == 5  # without --severity or --ood, --num-robust changes nothing
    assert all(any(word in name for name in names) for word in words)
    rows = json.loads(done("compare run --json").out)
    assert len(rows) == 3  # the first three measured the same networks
    assert "published_nll" in rows[0]["metrics"]


@pytest.mark.parametrize(
    "file",
    [
        "coreset.safetensors",
        "manifest.json",
        "config.toml",
        "evaluations/sgd.json",
        ".pseudocore.lock",
        "../run/manifest.json",
    ],
)
def test_a_file_of_a_run_is_never_taken_for_a_place_to_write_to(
    run: None, refused: Refused, own_world: Path, file: str
) -> None:
    (own_world / "run/evaluations").mkdir()
    (own_world / "run/evaluations/sgd.json").write_text("{}")
    before = (own_world / "run" / file).read_bytes()
    for verb in ("export run", "report run --out", "continual run --out", "bench --out"):
        assert "is left alone; name another file" in refused(f"{verb} run/{file}")
    assert (own_world / "run" / file).read_bytes() == before


def test_other_files_in_a_run_can_be_written(run: None, done: Done) -> None:
    done("export run run/points.npz")
    done("export run run/points.npz")


def test_features_cannot_become_pictures(done: Done, refused: Refused) -> None:
    done("reduce uniform moons --out run --ipc 2")
    assert "export npz instead" in refused("export run out --format png")
