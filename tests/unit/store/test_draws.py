"""Draws on disk come back bit for bit, and reading one reads no other file."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudocore.core.rng import Rng
from pseudocore.store.draws import DrawsFolder

Fails = Callable[..., Any]


def theta(number: int) -> Tensor:
    return Rng(number).normal(2, 5, dtype=torch.float64)


@pytest.fixture
def folder(tmp_path: Path) -> DrawsFolder:
    draws = DrawsFolder(tmp_path / "draws")
    for number in range(4):
        draws.append(theta(number), {"accept": torch.tensor([0.1, 0.2]) * number})
    return draws


def file(folder: DrawsFolder, number: int) -> Path:
    return folder.path / f"draw-{number:06d}.safetensors"


def test_draws_come_back_bit_for_bit(folder: DrawsFolder) -> None:
    accept = torch.arange(4)[:, None] * torch.tensor([0.1, 0.2])
    for draws in (folder, DrawsFolder(folder.path)):
        assert len(draws) == 4
        assert all(torch.equal(draws[number], theta(number)) for number in range(4))
        assert torch.equal(draws[-1], theta(3))
        assert torch.equal(draws.trace("accept"), accept)
        assert [one.shape for one in list(draws)] == [(2, 5)] * 4
    with pytest.raises(IndexError, match="there are 4 draws"):
        folder[4]


def test_damage_is_found_when_a_draw_is_read(folder: DrawsFolder, fails: Fails) -> None:
    shutil.copy(file(folder, 1), file(folder, 3))
    data = bytearray(file(folder, 1).read_bytes())
    data[-3] ^= 1
    file(folder, 1).write_bytes(data)
    file(folder, 0).write_bytes(b"damaged")
    assert torch.equal(folder[2], theta(2))
    for number, words in {0: "safetensors", 1: "do not match the digest", 3: "is not draw"}.items():
        with fails("damaged-file", file(folder, number), words):
            folder[number]


def test_draws_after_a_checkpoint_are_dropped(folder: DrawsFolder, fails: Fails) -> None:
    folder.truncate(2)
    assert len(folder) == len(DrawsFolder(folder.path)) == 2
    folder.append(theta(9), {})
    assert torch.equal(folder[2], theta(9))
    with fails("missing-draws", "holds 3 draws, but the checkpoint counts 7"):
        folder.truncate(7)


def test_draws_after_a_gap_do_not_count(folder: DrawsFolder) -> None:
    file(folder, 1).unlink()
    assert len(DrawsFolder(folder.path)) == 1


def test_a_chain_too_large_for_the_disk_is_refused(folder: DrawsFolder, fails: Fails) -> None:
    with fails("disk-full", "MiB are needed; keep fewer"):
        folder.reserve(10**6, 10**12)
    folder.reserve(10, 100)
