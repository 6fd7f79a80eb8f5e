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
    monkeypatch.setenv("PSEUDOCORE_CACHE", str(tmp_path / "shelf"))
    return tmp_path / "shelf"


def test_selectors_share_one_network(done: Done, cache: Path) -> None:
    done(f"reduce craig digits --ipc 2 {QUICK} --out a")
    (kept,) = cache.glob("*.safetensors")
    written = kept.stat().st_mtime_ns
    for name in ("lcmat-s", "entropy", "forgetting", "glister-val"):
        done(f"reduce {name} digits --ipc 1 {QUICK} --out {name}")
    assert [file.stat().st_mtime_ns for file in cache.glob("*.safetensors")] == [written]
    done(f"reduce entropy digits --ipc 1 {QUICK} --seed 1 --out b")
    assert len(list(cache.glob("*.safetensors"))) == 2


def test_what_came_off_the_shelf_is_what_was_put_there(done: Done, cache: Path) -> None:
    done(f"reduce lcmat-s digits --ipc 3 {QUICK} --out first")
    done(f"reduce lcmat-s digits --ipc 3 {QUICK} --out second")
    for file in cache.glob("*.safetensors"):
        file.write_bytes(b"damaged")
    done(f"reduce lcmat-s digits --ipc 3 {QUICK} --out third")
    first, *others = (pseudocore.load(name).indices for name in ("first", "second", "third"))
    assert first is not None
    for other in others:
        assert other is not None
        assert first.tolist() == other.tolist()


def test_a_share_of_the_training_set(done: Done) -> None:
    assert "20 points" in done(f"reduce craig digits --fraction 0.014 {QUICK} --out a").out
    coreset = pseudocore.load("a")
    assert coreset.y.bincount().tolist() == [2] * 10
    assert coreset.weight.sum() == 1437


def test_all_classes_together(done: Done) -> None:
    assert "20 points" in done(f"reduce entropy digits --ipc 2 --no-balanced {QUICK} --out a").out
    assert pseudocore.load("a").y.bincount(minlength=10).tolist() != [2] * 10


def test_more_than_a_class_has_is_refused(refused: Refused, npz: Callable[..., str]) -> None:
    refused(
        f"reduce lcmat-s {npz('small')} --ipc 11 {QUICK} --out run",
        "11 points per class were asked for",
    )
    refused(
        f"reduce glister-val {npz('small')} --ipc 10 {QUICK} --out run",
        "leaves none of them to validate on",
    )


def test_a_network_that_diverges_is_refused(refused: Refused) -> None:
    options = "--pretrain-optimiser sgd --pretrain-step-size 1e30"
    line = f"reduce craig digits --ipc 1 {QUICK} {options} --out run"
    refused(line, "diverged in pre-training; a smaller --pretrain-step-size usually helps")


def test_the_best_moment_is_printed_beside_the_last(done: Done) -> None:
    done("reduce uniform digits --ipc 1 --model mlp --width 8 --out run")
    said = done(
        "evaluate run --inference sgd --num-steps 6 --num-moments 3 --seeds 1 --published"
    ).out
    assert "published_accuracy" in said


def test_margin_needs_something_to_decide_between(
    refused: Refused, npz: Callable[..., str]
) -> None:
    data = npz("one", train_y=np.zeros(40, int), test_y=np.zeros(20, int))
    assert (
        refused(f"reduce margin {data} --ipc 1 --model linear --out run")
        == "margin needs two classes or more to decide between"
    )
