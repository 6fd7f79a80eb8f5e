"""`adopt` and `rank`: somebody's distilled set from its file to its scores."""

import json
from pathlib import Path
from typing import Any

import torch

from pseudocore.data import load


def test_from_a_file_to_scores(done: Any) -> None:
    data = load("digits")
    index = torch.cat([(data.train.y == label).nonzero()[:3, 0] for label in range(10)])
    x = data.train.x[index].float()
    x = x / 255 if data.dtype == torch.uint8 else x
    torch.save({"data": [[(x - 0.3) / 0.4, data.train.y[index]]]}, "theirs.pt")
    said = done("adopt theirs.pt digits --out theirs.safetensors --mean .3 --std .4")
    assert "30 points, labels hard" in said.err
    flags = "--inference sgd --num-steps 20 --model linear --seeds 1"
    assert json.loads(done(f"evaluate theirs.safetensors {flags} --json").out)["accuracy"]
    said = done(f"rank theirs.safetensors {flags} --augment crop")
    assert "label-robust score" in said.out
    found = json.loads(done(f"rank theirs.safetensors {flags} --json").out)
    assert 0 < found["metrics"]["lrs"]["mean"] < 1


def test_refused(refused: Any) -> None:
    torch.save([torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])], "theirs.pt")
    refused("adopt theirs.pt moons --out points.npz", "must end in .safetensors")
    refused("adopt theirs.pt moons --out a.safetensors --mean x --std 1", "not numbers")
    refused("adopt theirs.pt digits --out a.safetensors", "theirs.pt", "shape")
    refused("adopt none.pt moons --out a.safetensors", "none.pt")


def test_of_a_table(done: Any) -> None:
    rows = [f"{n % 7},{'uv'[n % 2]},{['no', 'yes'][n % 2]}" for n in range(40)]
    Path("mine.csv").write_text("\n".join(["a,b,y", *rows]))
    torch.save([torch.rand(4, 3), torch.tensor([0, 1, 0, 1])], "theirs.pt")
    done("adopt theirs.pt mine.csv --target y --out theirs.safetensors")
    done("evaluate theirs.safetensors --seeds 1 --model linear")
