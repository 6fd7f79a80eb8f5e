"""A small valid file of every format that a stranger could send, and what reads it."""

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import pseudocore as pc
from pseudocore import api
from pseudocore.assembly import presets
from pseudocore.core.problem import Problem
from pseudocore.core.types import Coreset
from pseudocore.data import Reading, load
from pseudocore.evaluation.tables import comparison
from pseudocore.features import backbone
from pseudocore.features.embed import embed
from pseudocore.models.dense import Linear
from pseudocore.store.coreset_file import load_coreset, save_coreset
from pseudocore.store.expert_folder import ExpertFolder
from pseudocore.store.png import encode_png
from pseudocore.store.run_folder import Run
from pseudocore.testing import small_problem
from pseudocore.workflows import references
from pseudocore.workflows.distilled import read_distilled
from pseudocore.workflows.references import reference


class Reader(NamedTuple):
    """A reader of a file or folder."""

    write: Callable[[Path], Path]
    """Makes a valid one in an empty folder, and says where."""
    read: Callable[[Path], object]


_RNG = np.random.default_rng(0)
X, Y = _RNG.integers(0, 255, (12, 4, 4)).astype(np.uint8), np.arange(12) % 2


def _npz(folder: Path) -> Path:
    np.savez_compressed(folder / "set.npz", train_x=X, train_y=Y, test_x=X[:4], test_y=Y[:4])
    return folder / "set.npz"


def _npy(folder: Path) -> Path:
    np.save(folder / "set.npy", X.reshape(12, 16).astype(np.float32))
    np.save(folder / "labels.npy", Y)
    return folder / "set.npy"


def _read_npy(path: Path) -> None:
    load(path, reading=Reading(labels=str(path.with_name("labels.npy"))))


def _csv(folder: Path) -> Path:
    lines = [f"{a:.3f},{b},{'xy'[label]}" for a, b, label in zip(X[:, 0, 0], X[:, 1, 1], Y)]  # noqa: B905
    (folder / "set.csv").write_text("\n".join(["size,weight,label", *lines]) + "\n")
    return folder / "set.csv"


def _parquet(folder: Path) -> Path:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"a": X[:, 0, 0].astype(float), "b": X[:, 1, 1], "label": Y})
    parquet.write_table(table, folder / "set.parquet")
    return folder / "set.parquet"


def _idx(folder: Path) -> Path:
    for name, n in (("train", 12), ("t10k", 4)):
        images = bytes([0, 0, 8, 3]) + struct.pack(">3I", n, 4, 4) + X[:n].tobytes()
        labels = bytes([0, 0, 8, 1]) + struct.pack(">I", n) + Y[:n].astype(np.uint8).tobytes()
        (folder / f"{name}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels, mtime=0))
    return folder


_PIXELS = _RNG.integers(0, 255, (100, 3072)).astype(np.uint8)


def _cifar_binary(folder: Path) -> Path:
    rows = b"".join(bytes([n % 10]) + row.tobytes() for n, row in enumerate(_PIXELS[:10]))
    for name in [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]:
        (folder / f"{name}.bin").write_bytes(rows)
    return folder


def _cifar_pickle(folder: Path) -> Path:
    table = {b"data": _PIXELS, b"fine_labels": [*range(100)], b"coarse_labels": [0] * 100}
    for name in ("train", "test"):
        (folder / name).write_bytes(pickle.dumps(table, protocol=2))
    names = {b"fine_label_names": [b"c%d" % n for n in range(100)]}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
    return folder


def _svhn(folder: Path) -> Path:
    import scipy.io

    for name in ("train", "test"):
        x, y = _PIXELS[:10].reshape(32, 32, 3, 10), np.arange(1, 11)[:, None]
        arrays = {"X": x, "y": y}
        scipy.io.savemat(folder / f"{name}_32x32.mat", arrays, do_compression=name == "train")
    return folder


def _pictures(folder: Path) -> Path:
    from PIL import Image

    for label in ("cat", "dog"):
        (folder / label).mkdir()
        for number, suffix in enumerate(("png", "jpg", "bmp", "gif", "tif", "webp")):
            path = folder / label / f"{number}.{suffix}"
            if suffix == "png":
                path.write_bytes(encode_png(np.stack([X[number]] * 3, 2)))
            else:
                Image.fromarray(np.stack([X[number]] * 3, 2)).save(path)
    return folder


def _torch(folder: Path) -> Path:
    images = torch.rand(4, 1, 8, 8)
    saved = {"data": [[images, torch.tensor([0, 1, 2, 3])]], "accs_all_exps": {"a": [0.1]}}
    torch.save(saved, folder / "theirs.pt")
    return folder / "theirs.pt"


def _distilled(folder: Path) -> Path:
    points = _RNG.random((4, 8, 8, 1)).astype(np.float32)
    np.savez(folder / "theirs.npz", image=points, label=np.eye(10, dtype=np.float32)[:4])
    return folder / "theirs.npz"


def _features(folder: Path) -> Path:
    rows = _RNG.random((12, 3)).astype(np.float32)
    np.savez_compressed(folder / "features.npz", train=rows, test=rows[:4])
    return folder / "features.npz"


def _read_features(path: Path) -> None:
    whole = pc.dataset(X, Y, test=(X[:4], Y[:4]), name="small")
    embed(whole, path)


def _weights(folder: Path) -> Path:
    torch.save(torch.nn.Linear(3, 2).state_dict(), folder / "weights.pt")
    return folder / "weights.pt"


def _read_weights(path: Path) -> None:
    backbone.load(torch.nn.Linear(3, 2), str(path), torch.device("cpu"))


def _coreset(folder: Path) -> Path:
    x = torch.rand(4, 1, 8, 8)
    made = Coreset(x, torch.arange(4), torch.full((4,), 3.0), None, {"method": "uniform"})
    save_coreset(folder / "coreset.safetensors", made)
    return folder / "coreset.safetensors"


def _run(folder: Path) -> Path:
    run = folder / "run"
    small: dict[str, Any] = {"model": "linear", "per_class": 1}
    result = pc.reduce("dm", "digits", num_steps=2, out=run, **small)
    scores = pc.evaluate(result, inference="sgd", num_steps=2, seeds=2)
    Run.open(run).save_evaluation("sgd", scores)
    return run


def _read_run(path: Path) -> None:
    run = Run.open(path)
    run.coreset()
    run.metrics()
    comparison([(run.config, scores) for scores in run.evaluations().values()])


def _problem() -> Problem:
    return small_problem(model=Linear())


def _reference(folder: Path) -> Path:
    short = {"num_burn": 2, "num_draws": 3, "num_chains": 1, "num_leapfrog": 2}
    references.save(folder / "reference.safetensors", reference(_problem(), "hmc", **short))
    return folder / "reference.safetensors"


def _read_reference(path: Path) -> None:
    problem = _problem()
    found = references.load(path, problem)
    found.predictions(problem.data.test.x)


def _toml(folder: Path) -> Path:
    (folder / "own.toml").write_text(
        'method = "dm"\nseed = 1\n\n[setup]\ndata = "digits"\nmodel = "linear"\n\n'
        "[options]\nper_class = 1\nimage_lr = 0.5\n"
    )
    return folder / "own.toml"


def _read_preset(path: Path) -> None:
    api.Reduction.from_config(presets.read(str(path)))


def _experts(folder: Path) -> Path:
    pc.train_experts("digits", out=folder / "experts", model="linear", num=1, epochs=1)
    return folder / "experts"


def _read_experts(path: Path) -> None:
    experts = ExpertFolder.open(path)
    for number in experts.epochs():
        experts.read(number)
        experts.losses(number)


def _load(path: Path) -> object:
    return load(path)


def _read_table(path: Path) -> None:
    load(path, reading=Reading(target="label"))


READERS = {
    "npz": Reader(_npz, _load),
    "npy": Reader(_npy, _read_npy),
    "csv": Reader(_csv, _read_table),
    "parquet": Reader(_parquet, _read_table),
    "idx": Reader(_idx, _load),
    "cifar-binary": Reader(_cifar_binary, _load),
    "cifar-pickle": Reader(_cifar_pickle, _load),
    "svhn": Reader(_svhn, _load),
    "pictures": Reader(_pictures, _load),
    "torch": Reader(_torch, lambda path: read_distilled(path, "digits")),
    "distilled": Reader(_distilled, lambda path: read_distilled(path, "digits")),
    "features": Reader(_features, _read_features),
    "weights": Reader(_weights, _read_weights),
    "coreset": Reader(_coreset, load_coreset),
    "run": Reader(_run, _read_run),
    "reference": Reader(_reference, _read_reference),
    "preset": Reader(_toml, _read_preset),
    "experts": Reader(_experts, _read_experts),
}
