"""Draws on disk: what goes in comes out, and nothing but its own file is read."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pseudocore.core.errors import ArtifactError, RunError
from pseudocore.core.rng import Rng
from pseudocore.store.draws import DrawsFolder


def theta(number: int) -> Tensor:
    return Rng(number).normal(2, 5, dtype=torch.float64)


@pytest.fixture
def folder(tmp_path: Path) -> DrawsFolder:
    draws = DrawsFolder(tmp_path / "draws")
    for number in range(4):
        draws.append(theta(number), {"accept": torch.tensor([0.1, 0.2]) * number})
    return draws


def test_draws_come_back_bit_for_bit(folder: DrawsFolder) -> None:
    for draws in (folder, DrawsFolder(folder.path)):
        assert len(draws) == 4
        assert all(torch.equal(draws[number], theta(number)) for number in range(4))
        assert torch.equal(draws[-1], theta(3))
        assert torch.equal(
            draws.trace("accept"), torch.arange(4)[:, None] * torch.tensor([0.1, 0.2])
        )
        assert [one.shape for one in list(draws)] == [(2, 5)] * 4


def test_reading_a_draw_reads_no_other(folder: DrawsFolder) -> None:
    for number in (0, 1, 3):
        (folder.path / f"draw-{number:06d}.safetensors").write_bytes(b"damaged")
    assert torch.equal(folder[2], theta(2))
    with pytest.raises(ArtifactError, match="draw-000001"):
        folder[1]


def test_a_changed_byte_is_found(folder: DrawsFolder) -> None:
    file = folder.path / "draw-000002.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    with pytest.raises(ArtifactError, match="do not match the digest"):
        folder[2]


def test_a_draw_under_another_number_is_found(folder: DrawsFolder) -> None:
    shutil.copy(folder.path / "draw-000001.safetensors", folder.path / "draw-000002.safetensors")
    with pytest.raises(ArtifactError, match="is not draw number 2"):
        folder[2]


def test_draws_after_a_checkpoint_are_dropped(folder: DrawsFolder) -> None:
    folder.truncate(2)
    assert len(folder) == len(DrawsFolder(folder.path)) == 2
    folder.append(theta(9), {})
    assert torch.equal(folder[2], theta(9))
    with pytest.raises(RunError, match=r"holds 3 draws, but the checkpoint counts 7"):
        folder.truncate(7)


def test_draws_after_a_gap_do_not_count(folder: DrawsFolder) -> None:
    (folder.path / "draw-000001.safetensors").unlink()
    assert len(DrawsFolder(folder.path)) == 1


def test_there_is_no_draw_beyond_the_last(folder: DrawsFolder) -> None:
    with pytest.raises(IndexError, match="there are 4 draws"):
        folder[4]


def test_a_disk_too_small_is_refused_at_once(folder: DrawsFolder) -> None:
    with pytest.raises(RunError, match="MiB are needed; keep fewer"):
        folder.reserve(10**6, 10**12)
    folder.reserve(10, 100)
