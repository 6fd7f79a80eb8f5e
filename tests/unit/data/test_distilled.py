"""Distilled sets as others save them come back as the same points, in pixel units."""

import argparse
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pseudocore as pc
from pseudocore.core.types import Coreset, Dataset
from pseudocore.data.distilled import PUBLISHED
from pseudocore.data.limits import VARIABLE
from pseudocore.data.torch_files import read_torch
from pseudocore.store.png import encode_png, to_uint8

RNG = np.random.default_rng(0)
X = torch.from_numpy(RNG.integers(0, 256, (6, 3, 8, 8)).astype(np.uint8))
PIXELS = X / 255
Y = torch.arange(3).repeat_interleave(2)
SOFT = torch.from_numpy(RNG.dirichlet(np.ones(3), 6)).float()
MEAN, STD = (torch.tensor(part).view(3, 1, 1) for part in PUBLISHED["cifar10"])
NORMALISED = (PIXELS - MEAN) / STD
DATA = pc.dataset(
    RNG.integers(0, 256, (30, 3, 8, 8)).astype(np.uint8), np.arange(30) % 3, name="cifar10"
)
GREY = pc.dataset(RNG.integers(0, 256, (30, 8, 8)).astype(np.uint8), np.arange(30) % 3, name="mine")


def saved(path: Path, value: Any) -> Path:
    torch.save(value, path)
    return path


def archive(path: Path, **values: Any) -> Path:
    np.savez(path, **{name: np.asarray(value) for name, value in values.items()})
    return path


def mtt(folder: Path) -> Path:
    saved(folder / "labels_best.pt", Y)
    return saved(folder / "images_best.pt", NORMALISED)


def pictures(folder: Path, *, classes: bool = False) -> Path:
    for number, (image, label) in enumerate(zip(to_uint8(PIXELS), Y.tolist(), strict=True)):
        path = folder / (str(label) if classes else "") / f"{number:03d}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode_png(image))
    return folder


def soft_pictures(folder: Path) -> Path:
    np.save(pictures(folder) / "labels.npy", SOFT.numpy())
    return folder


def exported(folder: Path, name: str) -> Path:
    own = Coreset(PIXELS, SOFT, torch.full((6,), DATA.num_train / 6))
    own.save(folder / name, "png" if name == "png" else None)
    return folder / name


accuracies = {"ConvNet": [np.float64(0.5), np.float32(0.4)], "args": argparse.Namespace(lr=1)}
HARD: dict[str, Callable[[Path], Path]] = {
    "DC": lambda f: saved(f / "a.pt", {"data": [[NORMALISED, Y]], "accs_all_exps": accuracies}),
    "MTT": mtt,
    "a pair": lambda f: saved(f / "a.pt", (NORMALISED, Y)),
    "by name": lambda f: saved(f / "a.pth", {"images": NORMALISED, "labels": Y[:, None]}),
    "grouped by class": lambda f: saved(f / "a.pt", [NORMALISED.view(3, 2, 3, 8, 8), Y]),
    "pixels": lambda f: saved(f / "a.pt", [PIXELS, Y.double()]),
    "bytes": lambda f: saved(f / "a.pt", [X, Y]),
    "floats to 255": lambda f: saved(f / "a.pt", [X.float(), Y]),
    "one-hot": lambda f: saved(f / "a.pt", [PIXELS, torch.eye(3)[Y]]),
    "channels last": lambda f: archive(f / "a.npz", image=NORMALISED.permute(0, 2, 3, 1), label=Y),
    "flat": lambda f: archive(f / "a.npz", x=PIXELS.flatten(1), y=Y),
    "class folders": lambda f: pictures(f, classes=True),
}
SOFTLY: dict[str, Callable[[Path], Path]] = {
    "FRePo": lambda f: archive(f / "a.npz", image=NORMALISED, label=SOFT),
    "our npz": lambda f: exported(f, "a.npz"),
    "our pictures": lambda f: exported(f, "png"),
    "pictures and labels": soft_pictures,
}


@pytest.mark.parametrize("form", HARD)
def test_hard(form: str, tmp_path: Path) -> None:
    read = pc.read_distilled(HARD[form](tmp_path), DATA)
    torch.testing.assert_close(read.x, PIXELS)
    assert torch.equal(read.y, Y)
    torch.testing.assert_close(read.weight, torch.full((6,), 24 / 6))  # 24 of 30 train


@pytest.mark.parametrize("form", SOFTLY)
def test_soft(form: str, tmp_path: Path) -> None:
    read = pc.read_distilled(SOFTLY[form](tmp_path), DATA)
    torch.testing.assert_close(read.x, PIXELS)
    torch.testing.assert_close(read.y, SOFT)
    torch.testing.assert_close(read.weight, torch.full((6,), 24 / 6))


def test_one_of_several_sets(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {"data": [[NORMALISED, Y], [NORMALISED.flip(0), Y]]})
    torch.testing.assert_close(pc.read_distilled(path, DATA, number=1).x, PIXELS.flip(0))


def test_labels_in_order_and_apart(tmp_path: Path) -> None:
    path = saved(tmp_path / "syn.pt", NORMALISED)
    assert torch.equal(pc.read_distilled(path, DATA, labels="in-order").y, Y)
    labels = saved(tmp_path / "soft.pt", {"soft_labels": SOFT})
    torch.testing.assert_close(pc.read_distilled(path, DATA, labels=labels).y, SOFT)


def test_units(tmp_path: Path) -> None:
    """By mean and deviation given, or the data's own; learned pixels may leave 0 to 1."""
    grey = PIXELS[:, :1]
    path = saved(tmp_path / "a.pt", [(grey - 0.4) / 0.2, Y])
    torch.testing.assert_close(pc.read_distilled(path, GREY, mean=[0.4], std=[0.2]).x, grey)
    x = GREY.train.x / 255
    path = saved(tmp_path / "b.pt", [(grey - x.mean()) / x.std(correction=0), Y])
    torch.testing.assert_close(pc.read_distilled(path, GREY, units="standard").x, grey)
    path = saved(tmp_path / "c.pt", [3 * grey, Y])
    torch.testing.assert_close(pc.read_distilled(path, GREY, units="pixels").x, 3 * grey)


def test_real_numbers_stay_as_they_are(tmp_path: Path) -> None:
    """FRePo's targets and DATM's logits: outputs for last-layer-vi, logits for the others."""
    path = saved(tmp_path / "a.pt", [PIXELS, 3 * SOFT - 1])
    read = pc.read_distilled(path, DATA)
    torch.testing.assert_close(read.y, 3 * SOFT - 1)
    torch.testing.assert_close(read.targets, (3 * SOFT - 1).softmax(1))


def test_features(tmp_path: Path) -> None:
    data = pc.dataset(RNG.normal(size=(20, 4)), np.arange(20) % 2)
    path = saved(tmp_path / "a.pt", [5 * torch.ones(2, 4), torch.tensor([0, 1])])
    assert torch.equal(pc.read_distilled(path, data).x, 5 * torch.ones(2, 4))


def test_it_is_evaluated_as_any_coreset(tmp_path: Path) -> None:
    read = pc.read_distilled(HARD["DC"](tmp_path), DATA)
    scores = pc.evaluate(read, DATA, inference="sgd", model="linear", seeds=1, num_steps=5)
    assert 0 <= scores.metrics["accuracy"]["mean"] <= 1


class Evil:
    def __reduce__(self) -> Any:
        return (open, ("evil", "w"))


def mapped(path: Path, value: Any) -> Path:
    path.write_bytes(pickle.dumps(value))
    return path


REFUSED: dict[str, tuple[str, Dataset, dict[str, Any], Callable[[Path], Path]]] = {
    "code": ("unfit-file", DATA, {}, lambda f: saved(f / "a.pt", [PIXELS, Y, Evil()])),
    "a pickle": ("unfit-file", DATA, {}, lambda f: mapped(f / "a.pt", Evil())),
    "damaged": ("unfit-file", DATA, {}, lambda f: mapped(f / "a.pt", [1])),
    "sparse": ("unfit-file", DATA, {}, lambda f: saved(f / "a.pt", [PIXELS.to_sparse(), Y])),
    "numpy inside": ("unknown-layout", DATA, {}, lambda f: saved(f / "a.pt", {"x": X.numpy()})),
    "a number": ("unknown-layout", DATA, {}, lambda f: saved(f / "a.pt", 3)),
    "nothing": ("unknown-layout", DATA, {}, lambda f: saved(f / "a.pt", {})),
    "no folder": ("unknown-layout", DATA, {}, lambda f: f),
    "no file": ("unreadable-file", DATA, {}, lambda f: f / "a.pt"),
    "other suffix": ("unknown-layout", DATA, {}, lambda f: mapped(f / "a.pkl", 3)),
    "no labels": ("no-labels", DATA, {}, lambda f: saved(f / "a.pt", PIXELS)),
    "fewer labels": ("lengths-differ", DATA, {}, lambda f: saved(f / "a.pt", [PIXELS, Y[:5]])),
    "other classes": ("coreset-labels", DATA, {}, lambda f: saved(f / "a.pt", [PIXELS, Y + 1])),
    "other width": ("coreset-labels", DATA, {}, lambda f: saved(f / "a.pt", [PIXELS, SOFT[:, :2]])),
    "other shape": ("coreset-shape", DATA, {}, lambda f: saved(f / "a.pt", [PIXELS[..., :4], Y])),
    "unknown units": ("unknown-units", GREY, {}, lambda f: saved(f / "a.pt", [PIXELS[:, :1] - 1, Y])),
    "NaN": ("not-finite", DATA, {}, lambda f: saved(f / "a.pt", [PIXELS / 0 * 0, Y])),
    "no such set": ("out-of-range", DATA, {"number": 2}, mtt),
    "a regression": (
        "needs-classes",
        pc.dataset(RNG.normal(size=(20, 2)), RNG.normal(size=20)),
        {},
        lambda f: saved(f / "a.pt", [torch.zeros(2, 2), Y[:2]]),
    ),
    "mean alone": ("invalid-options", DATA, {"mean": [0.1]}, mtt),
    "one mean": ("invalid-options", DATA, {"mean": [0.1], "std": [1.0]}, mtt),
    "not balanced": (
        "not-balanced", DATA, {"labels": "in-order"}, lambda f: saved(f / "a.pt", PIXELS[:5])
    ),
    "a class too many": (
        "coreset-classes", DATA, {}, lambda f: (pictures(f, classes=True) / "x").mkdir() or f
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, tmp_path: Path, fails: Callable[..., Any]) -> None:
    code, data, options, make = REFUSED[case]
    with fails(code):
        pc.read_distilled(make(tmp_path), data, **options)
    assert not Path("evil").exists()


def test_size_is_checked_before_memory_is_taken(
    tmp_path: Path, fails: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(1 / 1024))  # 1 MiB
    huge = torch.zeros(1).expand(6, 3, 8, 100_000)
    with fails("data-limit"):
        pc.read_distilled(saved(tmp_path / "a.pt", [huge, Y]), DATA)
    path = saved(tmp_path / "b.pt", [torch.zeros(10**6), Y])
    with (
        zipfile.ZipFile(path) as archive,
        zipfile.ZipFile(tmp_path / "c.pt", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for one in archive.infolist():
            small.writestr(one.filename, archive.read(one))
    assert (tmp_path / "c.pt").stat().st_size < 10**5
    with fails("data-limit"):
        read_torch(tmp_path / "c.pt")
