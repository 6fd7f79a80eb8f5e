"""Data sets of one's own: found, imported, described; refused with the reason when nothing can be
made of them.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

Refused = Callable[..., str]
Done = Callable[[str], Any]
Npz = Callable[..., str]

TINY = "--model convnet-wide --width 4 --num-steps 2 --batch-size 16 --ipc 1"

LABELS = np.arange(40) % 4
PIXELS = np.random.default_rng(1).random((40, 8, 8))


def _with(array: np.ndarray, place: Any, value: float) -> np.ndarray:
    changed = array.copy()
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_y": np.where(LABELS == 2, 3, LABELS)}, ["no training examples of class 2"]),
        ({"train_y": _with(LABELS, 0, -2)}, ["labels from -2 to 3"]),
        ({"train_y": _with(LABELS, 0, -1)}, ["run from -1 to 3", "0..3"]),
        ({"train_y": _with(LABELS, 0, 9)}, ["no training examples of class 4"]),
        ({"train_y": LABELS + 0.5}, ["not whole numbers"]),
        ({"train_y": LABELS[:30]}, ["40 inputs but 30 labels"]),
        (
            {"train_x": _with(PIXELS, (3, 2, 2), np.nan), "test_x": PIXELS[:20]},
            ["1 of 40 inputs", "NaN"],
        ),
        ({"train_x": np.full((40, 8, 8), 7, np.uint8)}, ["is the same", "nothing can be learned"]),
        ({"train_x": PIXELS * 300}, ["float images in 0..1"]),
        ({"test_x": np.zeros((20, 9, 9), np.uint8)}, ["(1, 8, 8)", "(1, 9, 9)"]),
        ({"test_x": None}, ["only one of test_x and test_y"]),
        ({"train_x": None}, ["train_x, train_y, test_x, test_y"]),
        ({"train_x": np.zeros((0, 8, 8), np.uint8), "train_y": LABELS[:0]}, ["is empty"]),
    ],
)
def test_an_archive_no_run_can_be_made_of_is_refused(
    refused: Refused, npz: Npz, changes: dict[str, Any], words: list[str]
) -> None:
    path = npz("mine", **changes)
    for line in (
        f"reduce vbpc {path} --out run {TINY}",
        f"data info {path}",
        f"data import {path} mine",
    ):
        sentence = refused(line)
        for word in words:
            assert word in sentence
    assert not Path("run").exists()
    assert not Path("home").exists()


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 and then nothing"])
def test_a_file_that_is_no_archive_is_refused(refused: Refused, content: bytes) -> None:
    Path("mine.npz").write_bytes(content)
    refused(f"reduce vbpc mine.npz --out run {TINY}", "mine.npz cannot be read as an npz archive")


def test_numpys_advice_to_load_unsafely_is_not_passed_on(refused: Refused) -> None:
    Path("text.npz").write_text("no archive")
    np.savez("objects.npz", train_x=np.array([{}] * 4, dtype=object), train_y=np.arange(4))
    for file, reason in {
        "text.npz": "it is no archive",
        "objects.npz": "it holds Python objects",
    }.items():
        sentence = refused(
            f"data info {file}", f"npz archive of plain arrays ({reason}); numpy.savez"
        )
        assert "pickle" not in sentence


def test_a_cut_archive_is_refused(refused: Refused, npz: Npz) -> None:
    whole = Path(npz("mine")).read_bytes()
    Path("mine.npz").write_bytes(whole[: len(whole) // 2])
    refused(f"reduce vbpc mine.npz --out run {TINY}", "mine.npz cannot be read as an npz archive")


def test_a_missing_file_and_an_unknown_layout_are_refused(refused: Refused) -> None:
    refused(f"reduce vbpc gone.npz --out run {TINY}", "there is no file or folder gone.npz")
    Path("notes.txt").write_text("hello")
    refused(f"reduce vbpc notes.txt --out run {TINY}", "notes.txt is in no layout known here")


def _pictures(folder: Path, sizes: dict[str, tuple[int, int]]) -> None:
    rng = np.random.default_rng(0)
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, size[::-1], dtype=np.uint8)).save(path)


def test_pictures_of_several_sizes_are_refused_by_name(refused: Refused) -> None:
    sizes = {f"{label}/{number}.png": (8, 8) for label in ("cat", "dog") for number in range(5)}
    _pictures(Path("pets"), {**sizes, "dog/3.png": (9, 8)})
    refused(f"reduce vbpc pets/ --out run {TINY}", "pets/dog/3.png is 9x8", "resize")


def test_a_folder_of_class_folders_can_be_reduced(done: Done) -> None:
    _pictures(
        Path("pets"),
        {f"{label}/{number}.png": (8, 8) for label in ("cat", "dog") for number in range(5)},
    )
    assert "2 points in run" in done(f"reduce vbpc ./pets --out run {TINY}").out
    assert "cat, dog" in done("data info ./pets").out


def test_an_unreadable_folder_is_a_sentence(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pictures(
        Path("pets"),
        {f"{label}/{number}.png": (8, 8) for label in ("cat", "dog") for number in range(5)},
    )
    Path("pets/cat/0.png").write_bytes(b"not a picture")
    refused(f"reduce vbpc ./pets --out run {TINY}", "pets/cat/0.png cannot be read as a picture")


def test_imported_data_is_used_by_name(done: Done, npz: Npz, own_world: Path) -> None:
    said = done(f"data import {npz('source')} mine")
    assert str(own_world / "home" / "pseudocore" / "mine.npz") in said.out
    Path("source.npz").unlink()
    assert "4 points in run" in done(f"reduce vbpc mine --out run {TINY}").out
    found = {one["name"]: one["where"] for one in json.loads(done("data list --json").out)}
    assert found["mine"].endswith("mine.npz")
    assert found["digits"] == "built in"


def test_the_search_path_has_several_folders(
    done: Done, npz: Npz, own_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npz("far")
    (own_world / "store").mkdir()
    (own_world / "far.npz").rename(own_world / "store" / "far.npz")
    monkeypatch.setenv(
        "PSEUDOCORE_DATA", f"{own_world / 'nowhere'}{os.pathsep}{own_world / 'store'}"
    )
    assert "4 points in run" in done(f"reduce vbpc far --out run {TINY}").out
    assert "far              " + str(own_world / "store" / "far.npz") in done("data list").out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("digits", "built-in"),
        ("'a b'", "cannot name a data set"),
        ("../x", "cannot name a data set"),
    ],
)
def test_a_name_that_cannot_be_given_is_refused(
    refused: Refused, npz: Npz, name: str, words: str
) -> None:
    refused(f"data import {npz('source')} {name}", words)


def test_an_import_that_cannot_be_written_is_refused(
    refused: Refused, npz: Npz, own_world: Path
) -> None:
    (own_world / "home").write_text("a file where a folder should be")
    refused(f"data import {npz('source')} mine", "mine.npz: not a directory")


def test_info_describes_the_digits(done: Done) -> None:
    facts = json.loads(done("data info digits --json").out)
    assert (facts["train"], facts["test"], facts["shape"], facts["classes"]) == (
        1437,
        360,
        [1, 8, 8],
        10,
    )
    assert (facts["smallest_class"], facts["largest_class"]) == (139, 146)
    text = done("data info digits").out
    assert facts["fingerprint"] in text
    assert "smallest class   139" in text
