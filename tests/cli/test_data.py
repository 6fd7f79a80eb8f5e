"""Data sets of one's own: found, imported, described; refused with the reason when nothing can be
made of them (every reason is in tests/unit/data).
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pseudocore.store.coreset_file import load_coreset

Refused = Callable[..., str]
Done = Callable[[str], Any]
Npz = Callable[..., str]

TINY = "--model convnet-wide --width 4 --num-steps 2 --batch-size 16 --ipc 1"

LABELS = np.arange(40) % 4
PIXELS = np.random.default_rng(1).random((40, 8, 8))
UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"train_y": np.where(LABELS == 2, 3, LABELS)}, "has the label 2 … no training example has"),
    ({"train_y": np.where(np.arange(40) == 0, np.inf, LABELS)}, "such as inf in row 1"),
    ({"train_y": LABELS[:30]}, "40 inputs but 30 labels"),
    ({"train_x": np.where(PIXELS > 0.999, np.nan, PIXELS), "test_x": PIXELS[:20]}, "inputs … NaN"),
    ({"train_x": np.full((40, 8, 8), 7, np.uint8)}, "is the same … nothing can be learned"),
    ({"test_x": np.zeros((20, 9, 9), np.uint8)}, "(1, 8, 8) … (1, 9, 9)"),
    ({"train_x": None}, "train_x, train_y, test_x, test_y"),
]


@pytest.mark.parametrize(("changes", "parts"), UNFIT)
def test_an_archive_no_run_can_be_made_of_is_refused(
    refused: Refused, npz: Npz, changes: dict[str, Any], parts: str
) -> None:
    path = npz("mine", **changes)
    for line in (
        f"reduce vbpc {path} --out run {TINY}",
        f"data info {path}",
        f"data import {path} a",
    ):
        refused(line, *parts.split(" … "))
    assert not Path("run").exists()
    assert not Path("home").exists()


def test_what_is_no_archive_is_refused_without_advice_to_load_unsafely(
    refused: Refused, npz: Npz
) -> None:
    Path("text.npz").write_text("no archive")
    Path("cut.npz").write_bytes(Path(npz("mine")).read_bytes()[:900])
    np.savez("objects.npz", train_x=np.array([{}] * 4, dtype=object), train_y=np.arange(4))
    reasons = {"text": "(it is no archive)", "objects": "(it holds Python objects)", "cut": ""}
    for name, reason in reasons.items():
        line = f"reduce vbpc {name}.npz --out run {TINY}"
        said = refused(line, f"{name}.npz cannot be read as an npz archive", reason)
        assert "pickle" not in said


def test_a_folder_of_class_folders_can_be_reduced(done: Done, refused: Refused) -> None:
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        Path("pets", label).mkdir(parents=True)
        for number in range(5):
            picture = Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8))
            picture.save(f"pets/{label}/{number}.png")
    assert "2 points in run" in done(f"reduce vbpc ./pets --out run {TINY}").out
    assert "cat, dog" in done("data info ./pets").out
    Image.new("L", (9, 8)).save("pets/dog/3.png")
    refused(f"reduce vbpc pets/ --out x {TINY}", "pets/dog/3.png is 9x8", "--resize SIZE")
    said = done("reduce uniform pets/ --out small --ipc 1 --resize 4 --model linear")
    assert "note: pets has no test half: 2 of 10 pictures are held out" in said.err
    assert load_coreset("small").x.shape == (2, 1, 4, 4)
    assert "accuracy" in done("evaluate small --seeds 1 --num-steps 2").out
    Path("pets/cat/0.png").write_bytes(b"not a picture")
    refused(f"reduce vbpc ./pets --out x {TINY}", "pets/cat/0.png cannot be read as a picture")


def test_a_table_with_texts_and_gaps(done: Done, refused: Refused) -> None:
    rows = [
        f"{i if i % 7 else ''},{'ab'[i % 3 == 0]},{i},{['no', 'yes'][i % 2]}" for i in range(40)
    ]
    Path("t.csv").write_text("size,kind,row,buys\n" + "\n".join(rows) + "\n")
    refused("reduce uniform t.csv --out run", "name the column of t.csv", "--target")
    refused("reduce uniform t.csv --target buy --out run", "did you mean 'buys'?")
    refused("reduce uniform t.csv --target buys --out run", "column 'size'", "row 1", "--missing")
    refused("reduce uniform digits --target buys --out run", "target has no effect on")
    line = "t.csv --target buys --drop row --missing impute"
    said = done(f"reduce uniform {line} --model linear --ipc 2 --out run")
    assert said.err.count("note: ") == 3
    assert load_coreset("run").x.shape == (4, 3)
    assert "accuracy" in done("evaluate run --seeds 1 --num-steps 2").out
    assert "no, yes" in (info := done(f"data info {line}").out)
    assert "column 'kind' is one-hot encoded (2 values)" in info
    done(f"data import {line.replace('csv', 'csv bought')}")
    imported = json.loads(done("data info bought --json").out)
    assert imported["fingerprint"] in info
    done("evaluate run --seeds 1 --num-steps 2 --data bought")


def test_imported_data_is_used_by_name(
    done: Done, refused: Refused, npz: Npz, own_world: Path
) -> None:
    source = npz("source")
    for name, why in {"digits": "built-in", "'a b'": "cannot name", "../x": "cannot name"}.items():
        refused(f"data import {source} {name}", why)
    said = done(f"data import {source} mine")
    assert str(own_world / "home" / "pseudocore" / "mine.npz") in said.out
    Path(source).unlink()
    assert "4 points in run" in done(f"reduce vbpc mine --out run {TINY}").out
    found = {one["name"]: one["where"] for one in json.loads(done("data list --json").out)}
    assert found["mine"].endswith("mine.npz")
    assert found["digits"] == "built in"


def test_an_import_that_cannot_be_written_is_refused(refused: Refused, npz: Npz) -> None:
    Path("home").write_text("a file where a folder should be")
    refused(f"data import {npz('source')} mine", "mine.npz: not a directory")


def test_the_search_path_has_several_folders(
    done: Done, npz: Npz, own_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = own_world / "store"
    store.mkdir()
    Path(npz("far")).rename(store / "far.npz")
    monkeypatch.setenv("PSEUDOCORE_DATA", f"{own_world / 'nowhere'}{os.pathsep}{store}")
    assert "4 points in run" in done(f"reduce vbpc far --out run {TINY}").out
    assert f"far              {store / 'far.npz'}" in done("data list").out


def test_info_describes_the_digits(done: Done) -> None:
    facts = json.loads(done("data info digits --json").out)
    expected = {"train": 1437, "test": 360, "shape": [1, 8, 8], "classes": 10}
    assert facts.items() >= (expected | {"smallest_class": 139, "largest_class": 146}).items()
    text = done("data info digits").out
    assert facts["fingerprint"] in text
    assert "smallest class   139" in text


def test_the_data_limit_is_a_flag_of_every_verb(
    refused: Refused, done: Done, npz: Npz, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSEUDOCORE_DATA_LIMIT", "1")  # put back, as the flag sets it
    path = npz("mine")
    refused(f"data info {path} --data-limit 0.000001", "--data-limit GIB")
    refused(f"data info {path} --data-limit=0.000001", "--data-limit GIB")
    refused(f"data info {path} --data-limit", "is not a number of GiB")
    done(f"data info {path} --data-limit 1")
