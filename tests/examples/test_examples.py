"""The scripts of examples/ run, each in an empty folder, and say what they promise."""

import importlib.util
import re
import runpy
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))
NEEDS = {
    "breast_cancer": "sklearn",
    "jpeg_folder": "PIL",
    "hugging_face": "datasets",
    "tensorboard_log": "tensorboard",
}


@pytest.fixture
def said(
    own_world: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> str:
    """What a script prints; skipped where an optional package is missing."""
    name = request.param
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"examples/{name}.py needs {NEEDS[name]}, which is not installed")
    torch.manual_seed(0)
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def accuracy(said: str) -> float:
    found = re.search(r"accuracy\s*↑?\s+(0?\.\d+|1\.0+)", said)
    assert found, said
    return float(found[1])


script = pytest.mark.parametrize


@script("said", ["breast_cancer"], indirect=True)
def test_breast_cancer(said: str) -> None:
    assert "'malignant'" in said
    assert accuracy(said) > 0.9


@script("said", ["csv_with_gaps"], indirect=True)
def test_csv_with_gaps(said: str) -> None:
    assert "'city=Bern'" in said
    assert "held out" in said
    assert accuracy(said) > 0.75
    assert Path("coreset.csv").read_text().count("\n") == 7


@script("said", ["jpeg_folder"], indirect=True)
def test_jpeg_folder(said: str) -> None:
    assert "[24, 10, 16]" in said
    assert accuracy(said) > 0.9
    assert len(list(Path("chosen").glob("*.png"))) == 10


@script("said", ["torch_loop"], indirect=True)
def test_torch_loop(said: str) -> None:
    assert accuracy(said) > 0.8


@script("said", ["hugging_face"], indirect=True)
def test_hugging_face(said: str) -> None:
    assert "ClassLabel(names=['cat', 'dog'])" in said
    assert accuracy(said) > 0.8


@script("said", ["tensorboard_log"], indirect=True)
def test_tensorboard_log(said: str) -> None:
    assert "'step': 30" in said
    assert list(Path("events").glob("events.out.tfevents*"))


@script("said", ["regression"], indirect=True)
def test_regression(said: str) -> None:
    noise = re.search(r"^noise (\d+\.\d)$", said, re.M)
    assert noise
    assert 23 < float(noise[1]) < 27
    uniform, psvi = map(float, re.findall(r"^RMSE\s*↓\s+([\d.]+)", said, re.M))
    assert psvi < 27 < uniform
    assert len(re.findall(r"^\d+ \(\d+ to \d+\), was \d+$", said, re.M)) == 3


@script("said", ["frozen_features"], indirect=True)
def test_frozen_features(said: str) -> None:
    assert "6 points of shape (144,)" in said
    assert accuracy(said) > 0.9


@script("said", ["own_network"], indirect=True)
def test_own_network(said: str) -> None:
    assert "torch.Size([40, 1562])" in said


def test_each_is_short_and_listed() -> None:
    listed = (FOLDER / "README.md").read_text()
    for path in SCRIPTS:
        assert len(path.read_text().splitlines()) <= 40, path
        assert f"`{path.name}`" in listed
