"""Mean and spread over seeds, as they go into JSON."""

import json
import math

import numpy as np
import pytest

from pseudocore.core.errors import DataError
from pseudocore.evaluation.metrics import Metrics, Reliability, summarise


def metrics(nll: float, accuracy: float = 0.5) -> Metrics:
    return Metrics(accuracy, nll, 0.1, 0.3, 0.12, 0.05, Reliability((None,), (None,), (0,)))


def test_summarise_gives_mean_and_sample_deviation() -> None:
    got = summarise([metrics(1.0), metrics(2.0), metrics(4.0)])
    assert list(got) == ["accuracy", "nll", "ece", "brier", "adaptive_ece", "classwise_ece"]
    assert got["nll"]["mean"] == pytest.approx(7 / 3)
    assert got["nll"]["sd"] == pytest.approx(float(np.std([1.0, 2.0, 4.0], ddof=1)))
    assert got["accuracy"] == {"mean": 0.5, "sd": 0.0}
    assert json.loads(json.dumps(got, allow_nan=False)) == got


def test_summarise_of_one_seed_has_no_deviation() -> None:
    got = summarise([metrics(1.25)])
    assert got["nll"] == {"mean": 1.25, "sd": None}
    assert json.loads(json.dumps(got))["nll"]["sd"] is None


def test_summarise_keeps_an_infinite_mean() -> None:
    assert summarise([metrics(math.inf), metrics(1.0)])["nll"] == {"mean": math.inf, "sd": None}


def test_summarise_of_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="no results"):
        summarise([])
