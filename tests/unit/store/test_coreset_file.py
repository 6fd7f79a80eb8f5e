"""Coresets on disk: whole and usable, or refused with the file's name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from pseudocore.core.errors import ArtifactError
from pseudocore.core.types import Coreset
from pseudocore.store.coreset_file import load_coreset, save_coreset, write_tensors


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("chosen", [False, True])
def test_coreset_round_trip(tmp_path: Path, soft: bool, chosen: bool) -> None:
    x = torch.randn(4, 1, 2, 3, generator=torch.Generator().manual_seed(0))
    y = torch.eye(4)[:, :2] - 0.5 if soft else torch.tensor([0, 1, 0, 1])
    indices = torch.tensor([5, 2, 9, 0]) if chosen else None
    provenance = {
        "method": "bpc-fkl",
        "config": {"lr": 0.1, "clip": float("inf")},
        "seed": 3,
        "shape": [1, 2],
    }
    save_coreset(
        tmp_path / "coreset.safetensors", Coreset(x, y, torch.arange(1.0, 5), indices, provenance)
    )
    for path in (tmp_path, tmp_path / "coreset.safetensors", str(tmp_path)):
        back = load_coreset(path)
        assert torch.equal(back.x, x)
        assert torch.equal(back.y, y)
        assert back.y.dtype == y.dtype
        assert torch.equal(back.weight, torch.arange(1.0, 5))
        assert (None if back.indices is None else back.indices.tolist()) == (
            None if indices is None else indices.tolist()
        )
        assert back.provenance == provenance
    plain = load_file(tmp_path / "coreset.safetensors")
    assert torch.equal(plain["x"], x)
    assert plain.keys() == {"x", "y", "weight"} | ({"indices"} if chosen else set())


def sound() -> dict[str, Tensor]:
    return {"x": torch.ones(2, 3), "y": torch.tensor([0, 1]), "weight": torch.ones(2)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.full((2, 3), float("nan"))}, "x holds NaN"),
        ({"weight": torch.tensor([1.0, float("inf")])}, "weight holds NaN or infinite"),
        ({"weight": torch.tensor([1.0, -1.0])}, "non-negative"),
        ({"weight": torch.ones(3)}, "disagree about its size"),
        ({"y": torch.ones(2)}, "labels must be integers"),
        ({"x": torch.tensor(1.0)}, "x must be an array"),
        ({"y": torch.tensor(1)}, "y must be an array"),
        (
            {"weight": torch.ones(2, dtype=torch.complex64)},
            "weight must be an array of real numbers",
        ),
        (
            {
                "x": torch.ones(0, 3),
                "y": torch.zeros(0, dtype=torch.int64),
                "weight": torch.ones(0),
            },
            "at least one point",
        ),
    ],
)
def test_a_file_that_holds_no_usable_coreset_is_refused(
    tmp_path: Path, changes: dict[str, Tensor], message: str
) -> None:
    write_tensors(
        tmp_path / "bad", {**sound(), **changes}, kind="coreset", header={"provenance": {}}
    )
    with pytest.raises(ArtifactError, match=message) as caught:
        load_coreset(tmp_path / "bad")
    assert str(tmp_path / "bad") in str(caught.value)


def test_an_incomplete_coreset_is_refused(tmp_path: Path) -> None:
    tensors = sound()
    write_tensors(
        tmp_path / "bad",
        {"x": tensors["x"], "weight": tensors["weight"]},
        kind="coreset",
        header={"provenance": {}},
    )
    with pytest.raises(ArtifactError, match="it lacks y"):
        load_coreset(tmp_path / "bad")
    write_tensors(tmp_path / "bad", tensors, kind="coreset", header={"provenance": [1]})
    with pytest.raises(ArtifactError, match="provenance"):
        load_coreset(tmp_path / "bad")
    write_tensors(tmp_path / "bad", tensors, kind="checkpoint", header={})
    with pytest.raises(ArtifactError, match="holds 'checkpoint', not 'coreset'"):
        load_coreset(tmp_path / "bad")
    with pytest.raises(ArtifactError, match=r"holds no coreset\.safetensors"):
        load_coreset(tmp_path)
