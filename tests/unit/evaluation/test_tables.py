"""Pooling, naming and printing of results, against numbers worked out by hand or by numpy."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pseudocore.core.errors import ArtifactError
from pseudocore.evaluation.names import format_metric
from pseudocore.evaluation.tables import (
    Estimate,
    Record,
    Row,
    best,
    comparison,
    flat,
    markdown,
    variants,
)


def record(
    method: str = "vbpc",
    *accuracies: float,
    seed: int = 0,
    data: str = "digits",
    per_class: int | None = 1,
    inference: str = "hmc",
    how: dict[str, Any] | None = None,
    setup: dict[str, Any] | None = None,
    **options: Any,
) -> Record:
    budget = {} if per_class is None else {"per_class": per_class}
    config = {
        "method": method,
        "seed": seed,
        "setup": {"data": data, **(setup or {})},
        "options": {**budget, **options},
    }
    per_seed = [
        {"seed": place, "accuracy": value, "nll": 2 * value}
        for place, value in enumerate(accuracies)
    ]
    return config, {"inference": inference, "options": how or {}, "model": {}, "per_seed": per_seed}


def row(method: str = "a", per_class: int | None = 1, data: str = "d", **means: float) -> Row:
    return Row(
        method,
        data,
        per_class,
        "hmc",
        "",
        1,
        1,
        {name: Estimate(mean, None) for name, mean in means.items()},
    )


def test_runs_that_differ_in_their_seed_are_one_row() -> None:
    (got,) = comparison([record("vbpc", 0.9, 0.8), record("vbpc", 0.7, seed=1)])
    assert got[:7] == ("vbpc", "digits", 1, "hmc", "", 2, 3)
    assert got.metrics["accuracy"] == pytest.approx(
        (0.8, 0.1)
    )  # deviations .1, 0, -.1: sample variance .02 / 2
    assert got.metrics["nll"] == pytest.approx((1.6, 0.2))


def test_a_measurement_given_twice_counts_once() -> None:
    (got,) = comparison([record("vbpc", 0.9, 0.8), record("vbpc", 0.9, 0.8)])
    assert (got.num_runs, got.num) == (1, 2)


def test_what_either_of_two_evaluations_of_one_network_measured_is_there() -> None:
    plain, more = record("vbpc", 0.9, 0.8), record("vbpc", 0.9, 0.8)
    for entry in more[1]["per_seed"]:
        entry["published_nll"] = 1.0
    for records in ([plain, more], [more, plain]):
        (got,) = comparison(records)
        assert got.num == 2
        assert got.metrics["published_nll"] == (1.0, 0.0)


def test_one_measurement_has_no_deviation() -> None:
    (got,) = comparison([record("vbpc", 0.9)])
    assert got.metrics["accuracy"] == (0.9, None)


def test_an_infinite_measurement_leaves_no_deviation() -> None:
    (got,) = comparison([record("vbpc", 0.9, math.inf)])
    assert got.metrics["nll"] == (math.inf, None)
    (got,) = comparison([record("vbpc", math.inf, -math.inf)])
    assert math.isnan(got.metrics["nll"].mean)


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=1, max_size=4))
def test_pooling_is_the_mean_and_deviation_of_everything(seeds: list[list[float]]) -> None:
    (got,) = comparison([record("vbpc", *values, seed=seed) for seed, values in enumerate(seeds)])
    pooled = [value for values in seeds for value in values]
    mean, sd = got.metrics["accuracy"]
    assert mean == pytest.approx(np.mean(pooled))
    assert (
        sd is None if len(pooled) == 1 else sd == pytest.approx(np.std(pooled, ddof=1), abs=1e-12)
    )


def test_rows_are_ordered_by_data_budget_and_appearance() -> None:
    rows = comparison(
        [
            record("full", 0.9),
            record("vbpc", 0.9, per_class=10),
            record("uniform", 0.9),
            record("craig", 0.9, per_class=None, fraction=0.1),
            record("vbpc", 0.9),
            record("vbpc", 0.9, data="cifar10"),
        ]
    )
    assert [(got.data, got.per_class, got.method) for got in rows] == [
        ("cifar10", 1, "vbpc"),
        ("digits", 1, "vbpc"),
        ("digits", 1, "uniform"),
        ("digits", 10, "vbpc"),
        ("digits", None, "craig"),
        ("digits", "all", "full"),
    ]


def test_rows_of_one_look_name_the_settings_that_differ() -> None:
    rows = comparison(
        [
            record("vbpc", 0.9, image_lr=0.01, ridge=1.0),
            record("vbpc", 0.9, image_lr=0.003, ridge=1.0),
        ]
    )
    assert [got.variant for got in rows] == ["image_lr=0.01", "image_lr=0.003"]


def test_a_setting_that_one_row_lacks_is_called_unset() -> None:
    rows = comparison([record("vbpc", 0.9, flip=True), record("vbpc", 0.9)])
    assert [got.variant for got in rows] == ["flip=true", "flip=unset"]


def test_settings_of_the_evaluation_and_of_the_setup_are_told_from_options() -> None:
    rows = comparison(
        [
            record("vbpc", 0.9, how={"num_steps": 5}, num_steps=7),
            record("vbpc", 0.9, how={"num_steps": 6}, num_steps=7),
        ]
    )
    assert [got.variant for got in rows] == ["inference.num_steps=5", "inference.num_steps=6"]
    rows = comparison(
        [record("vbpc", 0.9, setup={"augment": name}, augment="both") for name in ("flip", "crop")]
    )
    assert [got.variant for got in rows] == ["setup.augment=flip", "setup.augment=crop"]


def test_a_network_that_follows_the_setup_is_named_once() -> None:
    records = [record("vbpc", 0.9, setup={"width": width}) for width in (32, 64)]
    records = [
        (config, {**evaluation, "model": {"width": config["setup"]["width"]}})
        for config, evaluation in records
    ]
    assert [got.variant for got in comparison(records)] == ["width=32", "width=64"]


def test_what_follows_from_a_setting_is_not_named_beside_it() -> None:
    """The network of an evaluation is told by its setup, and a prior by its options."""
    own = {
        "inference.model.name": "convnet3",
        "inference.model.norm": "instance",
        "inference.options.prior_scale": 1.0,
    }
    other = {
        "inference.model.name": "mlp",
        "inference.setup.model": "mlp",
        "inference.options.prior_scale": 4.0,
        "inference.setup.prior_scale": 4.0,
    }
    assert variants(["a", "a"], [own, other]) == [
        "inference.prior_scale=1, inference.model=unset",
        "inference.prior_scale=4, inference.model=mlp",
    ]


def test_other_looks_need_no_variant() -> None:
    assert variants(["a", "b"], [{"options.x": 1}, {"options.x": 2}]) == ["", ""]


def test_an_evaluation_without_results_is_refused() -> None:
    config, evaluation = record("vbpc", 0.9)
    for broken in (
        {**evaluation, "per_seed": []},
        {"inference": "hmc"},
        {**evaluation, "per_seed": [3]},
    ):
        with pytest.raises(
            ArtifactError, match=r"'vbpc' on 'digits' by 'hmc' holds no list of results per seed"
        ):
            comparison([(config, broken)])


def test_strange_values_are_no_metrics() -> None:
    config, _ = record()
    entry = {
        "accuracy": 0.5,
        "note": "x",
        "nested": {"a": 1},
        "missing": None,
        "flag": True,
        "long": 10**400,
    }
    (got,) = comparison([({**config, "options": 3, "setup": "x"}, {"per_seed": [entry]})])
    assert got.metrics == {"accuracy": (0.5, None)}
    assert (got.data, got.per_class, got.inference) == ("unknown", None, "unknown")


@pytest.mark.parametrize(
    ("mean", "sd", "text"),
    [
        (0.9312, 0.0118, ".931 ± .012"),
        (1.0, 0.0, "1.000 ± .000"),
        (10.5, None, "10.500"),
        (-0.25, None, "-.250"),
        (-0.0001, None, ".000"),
        (0.9996, None, "1.000"),
        (123456.0, 1.0, "1.235e+05 ± 1.000"),
        (math.inf, 0.1, "inf"),
        (-math.inf, None, "-inf"),
        (math.nan, None, "nan"),
        (0.5, math.nan, ".500"),
        (None, None, "–"),
    ],
)
def test_format_metric(mean: float | None, sd: float | None, text: str) -> None:
    assert format_metric(mean, sd) == text


def test_best_is_chosen_within_data_set_and_budget() -> None:
    rows = [
        row(accuracy=0.9, nll=0.5),
        row(accuracy=0.8, nll=0.4),
        row(per_class=10, accuracy=0.99),
        row(data="e", accuracy=0.7),
    ]
    assert best(rows) == {(0, "accuracy"), (1, "nll")}


def test_what_prints_equal_is_equally_good() -> None:
    assert best([row(nll=0.50001), row(nll=0.49999), row(nll=math.inf)]) == {(0, "nll"), (1, "nll")}


def test_nothing_is_best_of_an_unknown_metric_or_of_nan() -> None:
    assert best([row(speed=1.0), row(speed=2.0)]) == set()
    assert best([row(nll=math.nan), row(nll=math.nan)]) == set()


def test_markdown() -> None:
    rows = comparison([record("vbpc", 0.9, 0.8), record("uniform", 0.6)])
    assert markdown(rows).splitlines() == [
        "| method  | data   | per class | inference | runs |   n |      accuracy ↑ |        NLL ↓ |",
        "| ------- | ------ | --------- | --------- | ---: | --: | --------------: | -----------: |",
        "| vbpc    | digits | 1         | hmc       |    1 |   2 | **.850 ± .071** | 1.700 ± .141 |",
        "| uniform | digits | 1         | hmc       |    1 |   1 |            .600 |    **1.200** |",
    ]


def test_markdown_shows_variants_gaps_and_nothing() -> None:
    rows = comparison([record("vbpc", 0.9, lr=0.1), record("vbpc", 0.9, lr=0.2)])
    assert "| lr=0.1  |" in markdown(rows)
    assert "–" in markdown([row(accuracy=0.5), row(nll=0.5)]).splitlines()[2]
    assert markdown([]) == ""


def test_markdown_keeps_a_strangers_text_in_its_cell() -> None:
    lines = markdown([row(method="a|b\n<script>\x1b[31m", accuracy=0.5)]).splitlines()
    assert len(lines) == 3
    assert r"a\|b \<script>" in lines[2]
    assert "\x1b" not in lines[2]


def test_flat() -> None:
    assert flat({"a": {"b": {"c": 1}, "d": [2]}, "e": None, "f": {}}) == {
        "a.b.c": 1,
        "a.d": [2],
        "e": None,
    }
