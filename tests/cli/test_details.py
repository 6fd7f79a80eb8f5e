"""Second opinions and costs: in every file and in --json, on the screen only when asked for."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pseudocore.data import digits
from pseudocore.inference.choose import COLD

Done = Callable[[str], Any]
Refused = Callable[..., str]


@pytest.fixture
def run(done: Done) -> str:
    done("reduce uniform digits --ipc 1 --out run --model linear")
    return "run"


def test_details_are_kept_but_not_shown_unasked(run: str, done: Done) -> None:
    said = done(f"evaluate {run} --inference sgd --num-steps 3 --seeds 2")
    assert "ece" in said.out
    assert "adaptive" not in said.out
    flat = json.loads(done(f"evaluate {run} --inference sgd --num-steps 3 --seeds 2 --json").out)
    assert set(flat) == {"accuracy", "nll", "ece", "brier", "adaptive_ece", "classwise_ece"}
    assert all(set(one) == {"mean", "sd"} for one in flat.values())
    plain, details = done(f"compare {run}").out, done(f"compare {run} --details").out
    assert "adaptive ECE" not in plain
    assert "infer, s" not in plain
    for column in ("adaptive ECE ↓", "class-wise ECE ↓", "reduce, s", "infer, s", "predict, s"):
        assert column in details.splitlines()[0]
    (row,) = json.loads(done(f"compare {run} --json").out)
    assert set(row["cost"]) == {"load", "preprocess", "reduce", "infer", "predict"}
    assert row["metrics"]["adaptive_ece"] == flat["adaptive_ece"]


def test_seconds_are_those_of_one_seed(run: str, done: Done) -> None:
    done(f"evaluate {run} --inference sgd --num-steps 3 --seeds 4")
    (file,) = Path("run/evaluations").glob("*.json")
    total = json.loads(file.read_text())["cost"]["infer"]["seconds"]
    (row,) = json.loads(done(f"compare {run} --json").out)
    assert row["cost"]["infer"]["mean"] == pytest.approx(total / 4)


def test_landscape_and_choice_of_prior_are_flags(run: str, done: Done, refused: Refused) -> None:
    options = "--num-steps 3 --seeds 1 --choose-prior marginal --landscape"
    said = done(f"evaluate {run} --inference last-layer-vi {options}").err
    assert re.search("chosen, not on the test set: logit_scale .*, prior_variance .*, ridge", said)
    (file,) = Path("run/evaluations").glob("*.json")
    kept = json.loads(file.read_text())
    assert set(kept["landscape"]) == {"at", "coreset", "data"}
    assert set(kept["chosen"][0]) == {"seed", "logit_scale", "prior_variance", "ridge"}
    assert set(kept["reduction_cost"]) == {"load", "preprocess", "reduce"}
    refused(f"evaluate {run} --inference sgld --choose-prior marginal", "choose-prior")


def test_hmc_says_what_it_chose(run: str, done: Done) -> None:
    options = "--select cold --num-draws 2 --num-burn 10 --num-leapfrog 1 --num-chains 2 --seeds 2"
    said = done(f"evaluate {run} --inference hmc {options}").err
    chosen = r"temperature 0\.\d+( to 0.1)?, prior_scale [248]( to [48])?\n"
    assert re.search(f"chosen, not on the test set: {chosen}", said)
    (file,) = Path("run/evaluations").glob("*.json")
    kept = json.loads(file.read_text())
    assert "prior_scale" not in kept["options"]
    assert (kept["options"]["temperature"], kept["options"]["select"]) == (1.0, "cold")
    assert all((one["temperature"], one["prior_scale"]) in COLD for one in kept["chosen"])


def test_evaluations_that_measure_other_things_are_rows_of_their_own(run: str, done: Done) -> None:
    data = digits()
    np.savez(
        "other.npz",
        train_x=data.train.x,
        train_y=data.train.y,
        test_x=data.test.x.flip(3),
        test_y=data.test.y,
    )
    done(f"evaluate {run} --seeds 1 --num-steps 3")
    done(f"evaluate {run} --seeds 2 --num-steps 3 --data other.npz")
    done(f"evaluate {run} --seeds 1 --num-steps 3 --preprocess none")
    rows = json.loads(done(f"compare {run} --json").out)
    assert sorted((row["data"], row["num"]) for row in rows) == [
        ("digits", 1),
        ("digits", 1),
        ("digits, tested on other", 2),
    ]
