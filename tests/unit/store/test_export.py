"""Exports hold what the coreset holds, in formats that plain numpy, pillow and csv read."""

import csv
import json
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.types import Coreset
from pseudocore.store.export import export_npz, export_pngs


def pictures(channels: int = 3, *, soft: bool = False, num: int = 3) -> Coreset:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(num, channels, 5, 4, generator=generator) * 1.4 - 0.2
    y = torch.randn(num, 2, generator=generator) if soft else torch.arange(num) % 2
    return Coreset(x, y, torch.linspace(0.1, 1, num), provenance={"seed": 1, "clip": float("inf")})


def test_npz_round_trip_without_pickle(tmp_path: Path) -> None:
    coreset = Coreset(
        torch.randn(3, 2),
        torch.tensor([0, 1, 1]),
        torch.ones(3),
        torch.tensor([7, 8, 9]),
        {"seed": 1},
    )
    export_npz(coreset, tmp_path / "c.npz")
    with np.load(tmp_path / "c.npz", allow_pickle=False) as archive:
        assert set(archive) == {"x", "y", "weight", "indices", "provenance"}
        assert np.array_equal(archive["x"], coreset.x.numpy())
        assert np.array_equal(archive["y"], [0, 1, 1])
        assert np.array_equal(archive["indices"], [7, 8, 9])
        assert json.loads(str(archive["provenance"])) == {"seed": 1}
    export_npz(pictures(), tmp_path / "c.npz")
    with np.load(tmp_path / "c.npz") as archive:
        assert "indices" not in archive


def test_npz_widens_what_numpy_lacks(tmp_path: Path) -> None:
    x = torch.randn(2, 3).bfloat16()
    export_npz(Coreset(x, torch.tensor([0, 1]), torch.ones(2)), tmp_path / "c.npz")
    with np.load(tmp_path / "c.npz") as archive:
        assert archive["x"].dtype == np.float32
        assert np.array_equal(archive["x"], x.float().numpy())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("soft", [False, True])
def test_pictures_and_their_table(tmp_path: Path, channels: int, soft: bool) -> None:
    coreset = pictures(channels, soft=soft)
    export_pngs(coreset, tmp_path / "new" / "folder")
    with open(tmp_path / "new" / "folder" / "labels.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "label", "weight"] + (["soft_0", "soft_1"] if soft else [])
    assert len(rows) == 3
    for number, row in enumerate(rows):
        label = int(coreset.y[number].argmax()) if soft else int(coreset.y[number])
        assert row["file"] == f"{number:05d}_class{label}.png"
        assert int(row["label"]) == label
        assert float(row["weight"]) == float(coreset.weight[number])
        if soft:
            assert [float(row["soft_0"]), float(row["soft_1"])] == coreset.y[number].tolist()
        with Image.open(tmp_path / "new" / "folder" / row["file"]) as picture:
            shown = np.asarray(picture).reshape(5, 4, channels)
        expected = np.round(np.clip(coreset.x[number].numpy().transpose(1, 2, 0), 0, 1) * 255)
        assert np.array_equal(shown, expected)


def test_what_is_no_image_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    features = Coreset(torch.randn(2, 6), torch.tensor([0, 1]), torch.ones(2))
    with pytest.raises(ConfigError, match=r"shape \(6,\).*export npz"):
        export_pngs(features, tmp_path / "pictures")
    with pytest.raises(ConfigError, match="1 or 3 channels"):
        export_pngs(pictures(2), tmp_path / "pictures")
    assert not (tmp_path / "pictures").exists()


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="is not empty"):
        export_pngs(pictures(), tmp_path)
    with pytest.raises(RunError, match=r"cannot write .*mine\.txt"):
        export_pngs(pictures(), tmp_path / "mine.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_a_full_disk_leaves_no_half_export(
    tmp_path: Path, full_disk: AbstractContextManager[None]
) -> None:
    with full_disk:
        with pytest.raises(RunError, match="no space left on device"):
            export_pngs(pictures(), tmp_path / "pictures")
        with pytest.raises(RunError, match="no space left on device"):
            export_npz(pictures(), tmp_path / "c.npz")
    assert list((tmp_path / "pictures").iterdir()) == []
    assert [file.name for file in tmp_path.iterdir()] == ["pictures"]
