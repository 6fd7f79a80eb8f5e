"""Exports hold what the coreset holds, in formats that plain numpy, Pillow and csv read."""

import csv
import io
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pseudocore.core.types import Contract, Coreset, DataSpec
from pseudocore.store.coreset_file import load_coreset
from pseudocore.store.export import export_csv, export_npz, export_pngs
from pseudocore.store.png import encode_png, to_uint8

Fails = Callable[..., Any]


def pictures(channels: int = 3, *, soft: bool = False, num: int = 3) -> Coreset:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(num, channels, 5, 4, generator=generator) * 1.4 - 0.2
    y = torch.randn(num, 2, generator=generator) if soft else torch.arange(num) % 2
    return Coreset(x, y, torch.linspace(0.1, 1, num), provenance={"seed": 1, "clip": float("inf")})


def test_npz_holds_labels_and_probabilities_without_pickle(tmp_path: Path) -> None:
    x, y = torch.randn(3, 2).bfloat16(), torch.tensor([0, 1, 1])
    coreset = Coreset(x, y, torch.ones(3), torch.tensor([7, 8, 9]), {"seed": 1})
    export_npz(coreset, tmp_path / "c.npz")
    with np.load(tmp_path / "c.npz", allow_pickle=False) as archive:
        names = {"x", "y", "probabilities", "weight", "class_names", "indices", "provenance"}
        assert set(archive) == names
        assert archive["x"].dtype == np.float32  # numpy has no bfloat16
        assert np.array_equal(archive["x"], x.float().numpy())
        assert np.array_equal(archive["y"], y)
        assert np.array_equal(archive["probabilities"], np.eye(2)[y])
        assert np.array_equal(archive["indices"], [7, 8, 9])
        assert json.loads(str(archive["provenance"])) == {"seed": 1}
    soft = pictures(soft=True)
    export_npz(soft, tmp_path / "c.npz")
    with np.load(tmp_path / "c.npz") as archive:
        assert "indices" not in archive
        assert np.array_equal(archive["y"], soft.labels)
        assert np.array_equal(archive["probabilities"], soft.y.softmax(1))
        assert np.array_equal(archive["raw_targets"], soft.y)
    distributions = replace(soft, y=soft.y.softmax(1))
    export_npz(distributions, tmp_path / "c.npz")
    with np.load(tmp_path / "c.npz") as archive:
        assert "raw_targets" not in archive
        assert np.array_equal(archive["probabilities"], distributions.y)


def named(coreset: Coreset, *names: str) -> Coreset:
    """The coreset as one made for data with these class names."""
    data = DataSpec("data", coreset.x.shape[1:], torch.uint8, len(names), 9, names)
    contract = Contract(
        data=data, model={}, preprocess={}, prior={"kind": "fan-in", "scale": 1.0}, total_weight=1.0
    )
    return replace(coreset, contract=contract)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("soft", [False, True])
def test_pictures_and_their_table(tmp_path: Path, channels: int, soft: bool) -> None:
    coreset, folder = pictures(channels, soft=soft), tmp_path / "new" / "folder"
    export_pngs(coreset, folder)
    with open(folder / "labels.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "label", "weight", "p_0", "p_1"]
    assert len(rows) == 3
    expected_p = coreset.y.softmax(1) if soft else torch.eye(2)[coreset.y]
    for number, row in enumerate(rows):
        label = int(coreset.labels[number])
        assert row["file"] == f"{number:05d}_class{label}.png"
        assert int(row["label"]) == label
        assert float(row["weight"]) == float(coreset.weight[number])
        assert [float(row["p_0"]), float(row["p_1"])] == expected_p[number].tolist()
        with Image.open(folder / row["file"]) as picture:
            shown = np.asarray(picture).reshape(5, 4, channels)
        expected = np.round(np.clip(coreset.x[number].numpy().transpose(1, 2, 0), 0, 1) * 255)
        assert np.array_equal(shown, expected)


def test_a_table_reads_back_exactly(tmp_path: Path) -> None:
    encoding = [{"name": "age"}, {"name": "kind", "values": ["u", "v"]}]
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    y = torch.randn(3, 2, generator=torch.Generator().manual_seed(1))
    points = Coreset(x, y, torch.tensor([0.1, 0.2, 0.3]), provenance={"encoding": encoding})
    coreset = named(points, "no", "yes")
    coreset.save(tmp_path / "c.csv")
    frame = pd.read_csv(tmp_path / "c.csv")
    titles = ["label", "class", "weight", "p_no", "p_yes", "age", "kind=u", "kind=v"]
    assert list(frame) == titles
    assert list(frame["class"]) == [["no", "yes"][label] for label in coreset.labels]
    assert np.array_equal(frame.iloc[:, 5:].to_numpy(np.float32), x)
    assert np.array_equal(frame[["p_no", "p_yes"]].to_numpy(np.float32), y.softmax(1))
    for library in ("pandas", "polars"):
        made = coreset.to_frame(library)  # type: ignore[arg-type]
        assert list(made.columns) == titles
        assert np.array_equal(made["kind=v"].to_numpy().astype(np.float32), x[:, 2])
    pictured = pictures().to_frame()
    assert list(pictured)[4:] == [f"x{place}" for place in range(60)]
    assert np.array_equal(pictured.iloc[:, 4:].to_numpy(np.float32), pictures().x.flatten(1))


def test_a_feature_called_as_a_column_of_ours_is_kept_apart() -> None:
    provenance = {"encoding": [{"name": "weight"}, {"name": "age"}]}
    points = Coreset(torch.ones(1, 2), torch.tensor([0]), torch.ones(1), provenance=provenance)
    assert list(points.to_frame()) == ["label", "weight", "p_0", "feature weight", "age"]


@pytest.mark.parametrize("encoding", [3, [3], [{"name": "a", "values": 3}], [{"name": "a"}] * 2])
def test_a_forged_encoding_names_nothing(encoding: Any) -> None:
    points = Coreset(torch.ones(1, 3), torch.tensor([0]), torch.ones(1))
    assert points.with_provenance(encoding=encoding).feature_names == ()


@pytest.mark.parametrize("channels", [1, 3, 2])
def test_hugging_face_and_back(tmp_path: Path, channels: int) -> None:
    coreset = named(pictures(channels, soft=True), "cat", "dog")
    coreset.to_hf().save_to_disk(tmp_path / "there")
    read = datasets.load_from_disk(tmp_path / "there")
    assert read.features["label"].names == ["cat", "dog"]
    assert read["label"][:] == coreset.labels.tolist()
    back = read.with_format("torch")
    assert torch.equal(torch.stack([row["x"] for row in back]), coreset.x)
    assert torch.equal(back["weight"][:], coreset.weight)
    assert torch.equal(back["p_dog"][:], coreset.y.softmax(1)[:, 1])
    assert json.loads(read.info.description)["seed"] == 1
    if channels == 2:
        assert "image" not in read.features
    else:
        shown = np.stack([np.asarray(image) for image in read["image"]])
        assert np.array_equal(shown, to_uint8(coreset.x))


def test_hugging_face_of_features() -> None:
    points = Coreset(torch.randn(4, 2), torch.tensor([0, 1, 1, 0]), torch.ones(4))
    made = points.to_hf()
    assert made.column_names == ["label", "weight", "p_0", "p_1", "x0", "x1"]
    assert made.with_format("torch")["x1"][:].tolist() == points.x[:, 1].tolist()


SUFFIXES = [
    ("c.txt", None, "must end in .safetensors, .npz, .csv"),
    ("c", None, "--format png"),
    ("c.png", None, "--format png"),
    ("c.csv", "npz", "must end in .npz to hold npz"),
    ("c", "npz", "must end in .npz to hold npz"),
    ("c.npz", "png", "must be a folder, without a suffix"),
    ("c.npz", "tar", "cannot hold 'tar'; the formats are safetensors, npz, csv, png"),
]


@pytest.mark.parametrize(("name", "format", "part"), SUFFIXES)
def test_a_suffix_of_another_format_is_refused(
    tmp_path: Path, fails: Fails, name: str, format: Any, part: str
) -> None:
    with fails("wrong-format", name, part):
        pictures().save(tmp_path / name, format)
    assert list(tmp_path.iterdir()) == []


def test_a_suffix_says_what_to_write(tmp_path: Path) -> None:
    coreset = pictures()
    coreset.save(tmp_path / "c.safetensors")
    assert torch.equal(load_coreset(tmp_path / "c.safetensors").x, coreset.x)
    coreset.save(tmp_path / "c.NPZ")
    assert np.array_equal(np.load(tmp_path / "c.NPZ")["x"], coreset.x)
    coreset.save(tmp_path / "c", "png")
    assert len(list((tmp_path / "c").glob("*.png"))) == 3
    for _ in range(2):  # an earlier export is replaced
        coreset.save(tmp_path / "c.csv")


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch, fails: Fails) -> None:
    for name, call in (("pandas", "to_frame"), ("datasets", "to_hf")):
        monkeypatch.setitem(sys.modules, name, None)
        with fails("missing-package", f"this needs {name}", "pip install"):
            getattr(pictures(), call)()
    with fails("unknown-choice", "there are pandas and polars"):
        pictures().to_frame("dask")  # type: ignore[arg-type]


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
    for write in (export_npz, export_csv):
        with fails("foreign-file", "mine.txt"):
            write(pictures(), tmp_path / "mine.txt")
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
