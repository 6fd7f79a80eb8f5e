"""Exports hold what the coreset holds, in formats that plain numpy, Pillow and csv read."""

import csv
import io
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pseudocore.core.types import Coreset
from pseudocore.store.export import encode_png, export_npz, export_pngs, to_uint8

Fails = Callable[..., Any]


def pictures(channels: int = 3, *, soft: bool = False, num: int = 3) -> Coreset:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(num, channels, 5, 4, generator=generator) * 1.4 - 0.2
    y = torch.randn(num, 2, generator=generator) if soft else torch.arange(num) % 2
    return Coreset(x, y, torch.linspace(0.1, 1, num), provenance={"seed": 1, "clip": float("inf")})


def test_npz_round_trip_without_pickle(tmp_path: Path) -> None:
    x, y = torch.randn(3, 2).bfloat16(), torch.tensor([0, 1, 1])
    coreset = Coreset(x, y, torch.ones(3), torch.tensor([7, 8, 9]), {"seed": 1})
    export_npz(coreset, tmp_path / "c.npz")
    with np.load(tmp_path / "c.npz", allow_pickle=False) as archive:
        assert set(archive) == {"x", "y", "weight", "indices", "provenance"}
        assert archive["x"].dtype == np.float32  # numpy has no bfloat16
        assert np.array_equal(archive["x"], x.float().numpy())
        assert np.array_equal(archive["y"], y)
        assert np.array_equal(archive["indices"], [7, 8, 9])
        assert json.loads(str(archive["provenance"])) == {"seed": 1}
    export_npz(pictures(), tmp_path / "c.npz")
    with np.load(tmp_path / "c.npz") as archive:
        assert "indices" not in archive


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("soft", [False, True])
def test_pictures_and_their_table(tmp_path: Path, channels: int, soft: bool) -> None:
    coreset, folder = pictures(channels, soft=soft), tmp_path / "new" / "folder"
    export_pngs(coreset, folder)
    with open(folder / "labels.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "label", "weight"] + (["soft_0", "soft_1"] if soft else [])
    assert len(rows) == 3
    for number, row in enumerate(rows):
        label = int(coreset.labels[number])
        assert row["file"] == f"{number:05d}_class{label}.png"
        assert int(row["label"]) == label
        assert float(row["weight"]) == float(coreset.weight[number])
        if soft:
            assert [float(row["soft_0"]), float(row["soft_1"])] == coreset.y[number].tolist()
        with Image.open(folder / row["file"]) as picture:
            shown = np.asarray(picture).reshape(5, 4, channels)
        expected = np.round(np.clip(coreset.x[number].numpy().transpose(1, 2, 0), 0, 1) * 255)
        assert np.array_equal(shown, expected)


@pytest.mark.parametrize("shape", [(2, 6), (2, 2, 4, 4), (3, 4, 4)])
def test_points_that_are_no_images_are_refused(
    tmp_path: Path, fails: Fails, shape: tuple[int, ...]
) -> None:
    coreset = Coreset(torch.randn(shape), torch.arange(shape[0]), torch.ones(shape[0]))
    with fails("not-an-image", str(shape[1:]), "1 or 3 channels; export npz instead"):
        export_pngs(coreset, tmp_path / "pictures")
    assert not (tmp_path / "pictures").exists()


def test_files_of_others_are_left_alone(tmp_path: Path, fails: Fails) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with fails("folder-not-empty"):
        export_pngs(pictures(), tmp_path)
    with fails("unwritable-file", "mine.txt"):
        export_pngs(pictures(), tmp_path / "mine.txt")
    with fails("foreign-file", "mine.txt"):
        export_npz(pictures(), tmp_path / "mine.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_full_disk_leaves_no_half_export(
    tmp_path: Path, fails: Fails, full_disk: AbstractContextManager[None]
) -> None:
    with full_disk:
        with fails("unwritable-file", "no space left on device"):
            export_pngs(pictures(), tmp_path / "pictures")
        with fails("unwritable-file", "no space left on device"):
            export_npz(pictures(), tmp_path / "c.npz")
    assert list((tmp_path / "pictures").iterdir()) == []
    assert [file.name for file in tmp_path.iterdir()] == ["pictures"]


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    colour=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(max_examples=40, deadline=None)
def test_pillow_reads_what_was_encoded(height: int, width: int, colour: bool, seed: int) -> None:
    shape = (3, height, width) if colour else (height, width)
    image = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    image = image.transpose(1, 2, 0) if colour else image  # not contiguous
    with Image.open(io.BytesIO(encode_png(image))) as picture:
        picture.load()  # checks the sums of every chunk
        assert picture.mode == ("RGB" if colour else "L")
        assert np.array_equal(np.asarray(picture), image)


@pytest.mark.parametrize("shape", [(2, 2, 4), (4,), (0, 3), (1, 2, 2, 3)])
def test_what_is_no_picture_is_refused(fails: Fails, shape: tuple[int, ...]) -> None:
    for image in (np.zeros(shape, np.uint8), np.zeros((2, 2))):
        with fails("not-an-image"):
            encode_png(image)  # type: ignore[arg-type]


def test_every_grey_level_survives_and_the_rest_is_clipped() -> None:
    levels = torch.arange(256).reshape(1, 1, 16, 16)
    assert np.array_equal(to_uint8(levels / 255), levels[0].numpy())
    edges = torch.tensor([-3.0, 1.5, 0.5 / 255 + 1e-4, 0.5 / 255 - 1e-4]).reshape(1, 1, 1, 4)
    assert to_uint8(edges).tolist() == [[[0, 255, 1, 0]]]


def test_channels_go_last() -> None:
    x = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    assert to_uint8(x).shape == (2, 4, 5, 3)
    assert to_uint8(x)[1, 2, 3, 0] == round(x[1, 0, 2, 3].item() * 255)
    assert to_uint8(torch.zeros(2, 1, 4, 5, dtype=torch.bfloat16)).shape == (2, 4, 5)
