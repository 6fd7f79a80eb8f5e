"""Frozen networks: their features are computed once, kept, and reduced like any data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pseudocore as pc
from pseudocore.cli.main import main
from pseudocore.core.types import Dataset
from pseudocore.features import backbone
from pseudocore.features.embed import embed
from pseudocore.testing.problems import few_digits


class Counted(nn.Module):
    """Random features of digits, with dropout that only training mode has; counts its images."""

    def __init__(self, seed: int = 0, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer, self.dropout, self.images = nn.Linear(64, width), nn.Dropout(0.5), 0

    def forward(self, x: Tensor) -> Tensor:
        self.images += len(x)
        return self.dropout(self.layer(x.flatten(1)).relu())


@pytest.fixture
def data() -> Dataset:
    return few_digits()


NUM = 160
"""Images of both halves."""


def test_three_runs_compute_the_features_once(data: Dataset) -> None:
    network = Counted()
    for method in ("uniform", "vbpc", "herding"):
        options = {"num_steps": 2} if method == "vbpc" else {}
        run = pc.reduce(method, data, features=network, per_class=1, **options)
    assert network.images == NUM
    assert network.training
    with torch.no_grad():
        expected = network.eval()(data.train.x.float() / 255)
    assert run.problem.dataset.train.x.equal(expected)
    assert run.problem.model.describe()["name"] == "linear"
    network.layer.weight.data[0, 0] += 1.0  # another network
    pc.reduce("uniform", data, features=network, per_class=1)
    assert network.images == 2 * NUM + len(expected)


def test_made_points_know_the_nearest_training_point_of_their_class(data: Dataset) -> None:
    run = pc.reduce("vbpc", data, features=Counted(), per_class=2, num_steps=3)
    problem, coreset = run.problem, run.coreset
    near = coreset.nearest
    assert near is not None
    assert data.train.y[near].equal(coreset.labels)
    points, every = problem.inputs(coreset.x), problem.inputs(problem.train_x)
    for point, label, found in zip(points, coreset.labels, near, strict=True):
        same = (data.train.y == label).nonzero().flatten()
        assert found == same[(every[same] - point).norm(dim=1).argmin()]
    chosen = pc.reduce("herding", data, features=Counted(), per_class=2).coreset
    assert chosen.nearest is chosen.indices is not None


def test_inference_and_evaluation_of_features(data: Dataset) -> None:
    network = Counted(width=64)
    run = pc.reduce("uniform", data, features=network, per_class=8)
    scores = pc.evaluate(run, inference="last-layer-vi", seeds=1)
    assert scores.metrics["accuracy"]["mean"] > 0.6
    features = run.problem.dataset.test.x
    assert pc.infer(run.coreset)(features).shape == (40, 10)


def test_ready_features_in_memory_and_in_files(
    data: Dataset, tmp_path: Path, fails: Callable[..., Any]
) -> None:
    ready = embed(data, Counted())
    np.savez(tmp_path / "ready.npz", train=ready.train.x.numpy(), test=ready.test.x.numpy())
    for features in ((ready.train.x, ready.test.x.numpy()), str(tmp_path / "ready.npz")):
        run = pc.reduce("uniform", data, features=features, per_class=1)
        assert run.problem.dataset.train.x.equal(ready.train.x)
    with fails("unfit-arrays", "(120, h)", "(40, 16)"):
        embed(data, (ready.test.x, ready.train.x))


def called(words: list[str]) -> Any:
    with pytest.raises(SystemExit) as error:
        main(words)
    return error.value.code


def test_an_embedding_file_and_its_labels(
    data: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ready = embed(data, Counted())
    np.save(tmp_path / "e.npy", ready.train.x.numpy())
    np.save(tmp_path / "labels.npy", data.train.y.numpy())
    command = ["reduce", "uniform", str(tmp_path / "e.npy"), "--out", str(tmp_path / "run")]
    assert called([*command, "--labels", str(tmp_path / "labels.npy"), "--ipc", "2"]) == 0
    assert len(pc.load(tmp_path / "run")) == 20
    assert called(["evaluate", str(tmp_path / "run"), "--seeds", "1"]) == 0
    capsys.readouterr()
    assert called([*command, "--overwrite"]) == 2
    assert "--labels y.npy" in capsys.readouterr().err


def test_weights_come_from_a_file(tmp_path: Path, data: Dataset, fails: Callable[..., Any]) -> None:
    network, other = Counted(0), Counted(1)
    torch.save(network.state_dict(), tmp_path / "w.pt")
    filled = embed(data, other, weights=str(tmp_path / "w.pt"))
    assert filled.train.x.equal(embed(data, network).train.x)
    with fails("features", "does not fit", "2 of another shape"):
        embed(data, Counted(width=3), weights=str(tmp_path / "w.pt"))
    (tmp_path / "w.pt").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with fails("unreadable-weights"):
        embed(data, other, weights=str(tmp_path / "w.pt"))


def test_a_library_makes_the_network_without_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., Any]
) -> None:
    class Full(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 1), nn.Linear(4, 9)

        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[1:] == (3, 224, 224)
            out: Tensor = self.fc(self.conv(x).mean((2, 3)))
            return out

    class Library:
        get_model = staticmethod(lambda name, weights: Full())

    full = Full()
    torch.save(full.state_dict(), tmp_path / "w.pt")
    monkeypatch.setattr(backbone, "optional_module", lambda *words: Library)
    data = few_digits()
    part = data.train._replace(x=data.train.x[:2], y=torch.tensor([0, 1]))
    few = Dataset("few", part, part, 2)
    found = embed(few, "torchvision:full", weights=str(tmp_path / "w.pt"))
    grey = few.train.x.float() / 255
    mean, sd = (torch.tensor(one).view(3, 1, 1) for one in backbone.IMAGENET)
    large = torch.nn.functional.interpolate(
        grey.expand(-1, 3, -1, -1), (224, 224), mode="bicubic", antialias=True
    ).clamp(0, 1)
    expected = full.conv((large - mean) / sd).mean((2, 3))
    torch.testing.assert_close(found.train.x, expected.detach())
    with fails("features", "nothing is downloaded"):
        embed(few, "timm:resnet18")


def test_what_cannot_be_features_is_refused(data: Dataset, fails: Callable[..., Any]) -> None:
    with fails("features", "pooling and flattening"):
        embed(data, nn.Conv2d(1, 2, 3))
    with fails("features", "fails on inputs of shape (1, 8, 8)"):
        embed(data, nn.Linear(3, 2))
    with fails("weights-without-network"):
        pc.reduce("uniform", data, feature_weights="w.pt")
    run = pc.reduce("uniform", "digits", features=Counted(), per_class=1)
    with fails("custom-features", "not run just because a file names it"):
        pc.evaluate(run.coreset, seeds=1)
