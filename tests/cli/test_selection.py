"""Selectors on the command line: budgets, the shared network, refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pseudocore

Refused = Callable[..., str]
Done = Callable[[str], Any]

QUICK = "--model mlp --width 8 --pretrain-epochs 1"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PSEUDOCORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_selectors_share_one_network(done: Done, cache: Path) -> None:
    done(f"reduce craig digits --ipc 2 {QUICK} --out a")
    (kept,) = cache.glob("*.safetensors")
    written = kept.stat().st_ino  # a new file at every writing
    for name in ("lcmat-s", "entropy", "forgetting", "glister-val"):
        done(f"reduce {name} digits --ipc 1 {QUICK} --out {name}")
    assert [file.stat().st_ino for file in cache.glob("*.safetensors")] == [written]
    done(f"reduce entropy digits --ipc 1 {QUICK} --seed 1 --out b")
    assert len(list(cache.glob("*.safetensors"))) == 2


def test_a_cached_network_selects_the_same_points(done: Done, cache: Path) -> None:
    found = []
    for name in ("trained", "cached", "damaged"):
        done(f"reduce lcmat-s digits --ipc 3 {QUICK} --out {name}")
        indices = pseudocore.load(name).indices
        assert indices is not None
        found.append(indices.tolist())
        if name == "cached":
            for file in cache.glob("*.safetensors"):
                file.write_bytes(b"damaged")
    assert found[0] == found[1] == found[2]


def test_budgets(done: Done) -> None:
    assert "20 points" in done(f"reduce craig digits --fraction 0.014 {QUICK} --out a").out
    assert pseudocore.load("a").y.bincount().tolist() == [2] * 10
    assert "23 points" in done(f"reduce entropy digits --points 23 {QUICK} --out c").out
    assert sorted(pseudocore.load("c").y.bincount().tolist()) == [2] * 7 + [3] * 3
    assert pseudocore.load("a").weight.sum() == 1437
    assert "20 points" in done(f"reduce entropy digits --ipc 2 --no-balanced {QUICK} --out b").out
    assert pseudocore.load("b").y.bincount(minlength=10).tolist() != [2] * 10


@pytest.mark.filterwarnings("default")
def test_classes_that_run_out_give_what_there_is(done: Done, npz: Callable[..., str]) -> None:
    said = done(f"reduce lcmat-s {npz('small')} --ipc 11 {QUICK} --out a")
    assert "warning: 11 points per class were asked for, but class 0 of" in said.err
    assert "40 points" in said.out


def test_refusals(refused: Refused, npz: Callable[..., str]) -> None:
    small = npz("small")
    one = npz("one", train_y=np.zeros(40, int), test_y=np.zeros(20, int))
    diverging = "--pretrain-optimiser sgd --pretrain-step-size 1e30"
    for line, sentence in {
        f"glister-val {small} --points 40 --no-balanced {QUICK}": "leaves none of them to validate on",
        f"uniform {small} --points 3": "a budget of 3 is less than one point for each",
        f"craig digits --ipc 1 {QUICK} {diverging}": "a smaller --pretrain-step-size usually helps",
        f"margin {one} --ipc 1 --model linear": "margin needs two classes or more",
    }.items():
        refused(f"reduce {line} --out {line.split()[0]}", sentence)


def test_the_best_moment_is_printed_beside_the_last(done: Done) -> None:
    done("reduce uniform digits --ipc 1 --model mlp --width 8 --out run")
    sgd = "--inference sgd --num-steps 6 --num-moments 3 --seeds 1"
    assert "published_accuracy" in done(f"evaluate run {sgd} --published").out
