"""Data sets of Hugging Face: tables, pictures, splits, and names that the Hub would have to give."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

import pseudocore
from pseudocore.core.errors import ConfigError

Fails = Callable[..., Any]

RNG = np.random.default_rng(0)
PIXELS, Y = RNG.integers(0, 256, (12, 5, 4, 3), dtype=np.uint8), np.arange(12) % 3
WORDS = ["ant", "bee", "cow"]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test asks the network, whatever the environment allows."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def pictures(part: slice, **more: Any) -> Any:
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=WORDS)}
        | dict.fromkeys(more, datasets.Value("string"))
    )
    images = [Image.fromarray(one) for one in PIXELS[part]]
    return datasets.Dataset.from_dict({"img": images, "label": Y[part], **more}, features=features)


def test_pictures_with_class_labels() -> None:
    both = datasets.DatasetDict(train=pictures(slice(9)), test=pictures(slice(9, 12)))
    data = pseudocore.dataset(both)
    expected = pseudocore.dataset(PIXELS[:9], Y[:9], test=(PIXELS[9:], Y[9:]))
    assert (data.fingerprint, data.class_names) == (expected.fingerprint, tuple(WORDS))
    assert pseudocore.dataset(both, resize=4).shape == (3, 4, 4)


def test_a_validation_split_is_tested_on_and_other_columns_left_out() -> None:
    train = pictures(slice(9), caption=["x"] * 9)
    data = pseudocore.dataset({"train": train, "validation": pictures(slice(9, 12))}["train"])
    assert any("column 'caption' of the data set is left out" in note for note in data.notes)
    both = datasets.DatasetDict(train=pictures(slice(9)), validation=pictures(slice(9, 12)))
    data = pseudocore.dataset(both)
    assert len(data.test.y) == 3
    assert "its split validation is tested on" in data.notes[0]


def test_tables_go_by_their_target() -> None:
    columns = {"a": RNG.normal(size=12), "kind": ["u", "v"] * 6, "y": [WORDS[i] for i in Y]}
    table = datasets.Dataset.from_dict(columns)
    data = pseudocore.dataset(table, target="y")
    import pandas as pd

    assert data.fingerprint == pseudocore.dataset(pd.DataFrame(columns), "y").fingerprint
    assert data.class_names == tuple(WORDS)


def test_a_local_folder_by_its_name(tmp_path: Path) -> None:
    """The library reads a folder of CSV files under the name of its path."""
    (tmp_path / "mine").mkdir()
    rows = "".join(f"{i},{i % 2}\n" for i in range(10))
    (tmp_path / "mine" / "train.csv").write_text(f"x,y\n{rows}")
    data = pseudocore.dataset(f"hf://{tmp_path}/mine", target="y", test=([[3.0]], [1]))
    assert data.train.x.flatten().tolist() == list(range(10))


def test_what_the_hub_would_have_to_give_is_said(fails: Fails) -> None:
    with fails("unreachable-data", "hf://nobody/nothing cannot be read", "Hub cannot be reached"):
        pseudocore.dataset("hf://nobody/nothing")
    with fails("unreachable-data", "hf://nobody/nothing:config cannot be read"):
        pseudocore.reduce("uniform", "hf://nobody/nothing:config")


def test_a_file_cannot_make_data_be_fetched() -> None:
    """The provenance of a coreset may be a stranger's."""
    made = pseudocore.reduce("uniform", "moons", per_class=1, model="linear").coreset
    setup = {**made.provenance["setup"], "data": "hf://somebody/something"}
    with pytest.raises(ConfigError, match="not fetched just because a file names it") as caught:
        pseudocore.evaluate(made.with_provenance(setup=setup))
    assert caught.value.code == "remote-data"


def test_unfit_splits_are_refused(fails: Fails) -> None:
    with fails("no-train-split", "has the splits test, but no train"):
        pseudocore.dataset(datasets.DatasetDict(test=pictures(slice(9))))
    with fails("unfit-data", "load it without streaming"):
        pseudocore.dataset(pictures(slice(9)).to_iterable_dataset())
    with fails("missing-target", "columns: a, b"):
        pseudocore.dataset(datasets.Dataset.from_dict({"a": [1, 2], "b": [0, 1]}))
    gap = datasets.Dataset.from_dict(
        {"img": [None, Image.fromarray(PIXELS[0])], "label": [0, 1]},
        features=datasets.Features(
            {"img": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
        ),
    )
    with fails("missing-values", "row 1 of the data set has no picture"):
        pseudocore.dataset(gap)
    unlabelled = pictures(slice(9)).map(lambda row: {"label": -1})
    with fails("unknown-class", "has the label -1"):
        pseudocore.dataset(datasets.DatasetDict(train=pictures(slice(9)), test=unlabelled))
