"""A regression on the command line: from a table to scores, files and a page."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Cli = Callable[[str], Any]


@pytest.fixture
def table() -> str:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = 50 + 10 * x @ [1.0, -2.0] + 5 * rng.normal(size=60)
    rows = [["a", "b", "y"], *[[*one, round(target)] for one, target in zip(x, y, strict=True)]]
    with Path("table.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return "table.csv --target y"


def test_from_a_table_to_scores(done: Cli, table: str) -> None:
    linear = "--task regression --model linear --points 8"
    done(f"reduce psvi {table} {linear} --num-steps 50 --out one")
    done(f"reduce uniform {table} {linear} --target-noise 6 --out two")
    config = Path("two/config.toml").read_text()
    assert 'task = "regression"' in config
    assert "target_noise = 6.0" in config
    said = done("evaluate one --seeds 2 --fidelity")
    assert "last-layer-vi  rmse" in said.out
    assert "coverage_90" in said.out
    assert {"rmse", "nll", "crps"} <= json.loads(done("evaluate two --seeds 1 --json").out).keys()
    assert "fidelity_w2" in json.loads(done("fidelity one --json").out)
    assert "RMSE" in done("compare one two").out
    done("report one two --out page.html")
    page = Path("page.html").read_text()
    assert "RMSE" in page
    assert "Soft labels" not in page
    done("export one points.csv")
    done("export one points.csv")  # over its own export
    done("export one points.npz")
    assert Path("points.csv").read_text().startswith("target,weight,a,b\n")
    with np.load("points.npz") as arrays:
        assert arrays["y"].shape == (8,)
        assert "probabilities" not in arrays


def test_what_a_data_set_is_told_to_be(done: Cli, refused: Callable[..., str], table: str) -> None:
    assert "target mean" in done(f"data info {table} --task regression").out
    done("data import table.csv own --target y --task regression")
    assert "regression" in done("data info own").out
    refused("reduce dm own --out run", "dm is for classes, and the targets of this data set are")
    refused(
        "reduce uniform own --task classification --out run",
        "too many for classes; for numbers say",
    )
