"""What a newcomer's data stumbled over: gaps under masks, lazy frames, columns in a mapping,
identifiers, frames to predict.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import pseudocore as pc

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 3)), np.arange(60) % 2
FRAME = {"a": X[:, 0], "b": X[:, 1], "y": Y}
Fails = Callable[..., Any]


def same(one: pc.Dataset, other: pc.Dataset) -> bool:
    return all(
        torch.equal(a, b) for a, b in zip((*one.train, *one.test), (*other.train, *other.test), strict=True)
    )  # fmt: skip


def test_masked_values_are_gaps(fails: Fails) -> None:
    masked = np.ma.masked_array(X, X > 2)
    assert masked.mask.any()
    with fails("not-finite"):
        pc.dataset(masked, Y)
    gaps = np.where(X > 2, np.nan, X)
    assert same(pc.dataset(masked, Y, missing="impute"), pc.dataset(gaps, Y, missing="impute"))
    assert same(pc.dataset(np.ma.masked_array(X, False), Y), pc.dataset(X, Y))
    with fails("unfit-arrays", "whole numbers"):
        pc.dataset(np.ma.masked_array([[1, 2], [3, 4]], [[1, 0], [0, 0]]), [0, 1])


def test_a_lazy_frame_is_collected() -> None:
    frame = pl.DataFrame(FRAME)
    assert same(pc.dataset(frame.lazy(), target="y"), pc.dataset(frame, target="y"))


def test_a_mapping_of_columns_is_a_table(fails: Fails) -> None:
    texts = {**FRAME, "c": ["u", "v", None] * 20}
    options: Any = {"target": "y", "missing": "impute"}
    assert same(pc.dataset(texts, **options), pc.dataset(pd.DataFrame(texts), **options))
    for wrong in ({**FRAME, "c": X}, {**FRAME, "c": Y[:5]}):
        with fails("unfit-column"):
            pc.dataset(wrong, target="y")


def test_an_identifier_is_no_category(fails: Fails) -> None:
    with fails("too-many-values", "'key'", "identifier", "drop"):
        pc.dataset({**FRAME, "key": [f"u{place}" for place in range(60)]}, target="y")


def test_an_array_without_labels(fails: Fails) -> None:
    with pytest.raises(TypeError, match="without labels"):
        pc.dataset(X)


def test_a_frame_to_predict_is_refused_in_a_sentence(fails: Fails) -> None:
    posterior = pc.infer(pc.reduce("uniform", (X, Y), per_class=2, model="linear"))
    with fails("input-type", "(n, 3)", "DataFrame", "to_numpy"):
        posterior.predict(pd.DataFrame(X))
