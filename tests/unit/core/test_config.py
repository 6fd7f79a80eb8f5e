"""Configuration: fields read with their help and bounds, built from mappings, all problems named at
once.
"""

import math
import tomllib
from dataclasses import dataclass, make_dataclass
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pseudocore.core.config import (
    Count,
    Fraction,
    NonNegative,
    Option,
    Positive,
    Range,
    Whole,
    build,
    check,
    options,
    to_dict,
)
from pseudocore.core.errors import ConfigError
from pseudocore.methods.select.herding import Herding
from pseudocore.methods.select.uniform import Uniform


@dataclass(frozen=True)
class Method:
    """A configuration with a field of every sort."""

    num_steps: Count = 5000
    """Outer steps."""
    step_size: Positive = 0.1
    """Step of the inner loop,
    over two lines."""
    burn_in: Whole = 0
    momentum: Fraction = 0.5
    """Heavy ball."""
    decay: NonNegative = 0.0
    shift: float = -1.0
    loss: Literal["ce", "mse"] = "ce"
    """What is minimised."""
    order: Literal[1, 2] = 1
    learn_labels: bool = False
    clip: float | None = None
    """Largest gradient norm; none when left out."""
    note: str = ""

    def describe(self) -> str:
        """Not the help of a field."""
        return self.note


def test_options_are_the_fields_in_order() -> None:
    found = {option.name: option for option in options(Method)}
    assert list(found) == list(Method.__dataclass_fields__)
    assert found["num_steps"] == Option("num_steps", int, 5000, "Outer steps.", Range(low=1))
    assert found["step_size"] == Option(
        "step_size", float, 0.1, "Step of the inner loop, over two lines.", Range(above=0)
    )
    assert found["loss"].type == Literal["ce", "mse"]
    assert found["clip"] == Option(
        "clip", float | None, None, "Largest gradient norm; none when left out.", None
    )


def test_help_is_the_string_under_a_field_and_nothing_else() -> None:
    found = {option.name: option.help for option in options(Method)}
    assert found["burn_in"] == found["decay"] == found["note"] == ""
    assert found["momentum"] == "Heavy ball."


def test_a_class_without_source_has_options_without_help() -> None:
    typed = make_dataclass("Typed", [("n", int, 3)], frozen=True)
    assert options(typed) == (Option("n", int, 3, "", None),)


def test_build_takes_what_is_given_and_defaults_the_rest() -> None:
    assert build(Method, {}) == Method()
    assert build(Method, {"num_steps": 3, "loss": "mse", "clip": 1.5}) == Method(
        num_steps=3, loss="mse", clip=1.5
    )


def test_whole_numbers_become_floats_where_floats_are_meant() -> None:
    built = build(Method, {"step_size": 1, "clip": 2, "num_steps": 3})
    assert (built.step_size, built.clip) == (1.0, 2.0)
    assert type(built.step_size) is type(built.clip) is float
    assert type(built.num_steps) is int


def test_numbers_of_numpy_are_numbers() -> None:
    made = build(
        Method, {"num_steps": np.int64(3), "step_size": np.float64(0.5), "decay": np.int32(1)}
    )
    assert [(type(value), value) for value in (made.num_steps, made.step_size, made.decay)] == [
        (int, 3),
        (float, 0.5),
        (float, 1.0),
    ]
    direct = Method(num_steps=np.int64(3), step_size=np.float32(0.5))  # type: ignore[arg-type]
    check(direct)
    assert type(to_dict(direct)["num_steps"]) is int
    with pytest.raises(ConfigError, match=r"num_steps = 3\.0 is not a whole number"):
        build(Method, {"num_steps": np.float64(3)})


def test_every_problem_is_reported_at_once() -> None:
    bad = {
        "num_step": 3,
        "step_size": 0,
        "momentum": 1.5,
        "loss": "l2",
        "learn_labels": 1,
        "burn_in": -1,
        "note": 7,
        "zzz": 0,
    }
    with pytest.raises(ConfigError) as caught:
        build(Method, bad, what="preset x.toml")
    text = str(caught.value)
    assert text.startswith("preset x.toml: ")
    for part in (
        "unknown option 'num_step' (did you mean 'num_steps'?)",
        "unknown option 'zzz'",
        "step_size = 0.0 must be above 0",
        "momentum = 1.5 must be at most 1",
        "loss = 'l2' is not one of 'ce', 'mse'",
        "learn_labels = 1 is not true or false",
        "burn_in = -1 must be at least 0",
        "note = 7 is not a string",
    ):
        assert part in text
    assert "zzz' (did" not in text
    assert text.count(";") == 7


def test_check_reports_every_problem_of_an_instance() -> None:
    check(Method())
    bad = Method(num_steps=0, decay=-0.5, clip="big", learn_labels=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        check(bad)
    assert str(caught.value) == (
        "Method: num_steps = 0 must be at least 1; decay = -0.5 must be at least 0; "
        "learn_labels = None is not true or false; clip = 'big' is not a number"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_steps", 3.0),
        ("num_steps", True),
        ("num_steps", "3"),
        ("num_steps", None),
        ("step_size", math.nan),
        ("step_size", "0.1"),
        ("step_size", False),
        ("decay", math.nan),
        ("momentum", math.inf),
        ("loss", 1),
        ("order", True),
        ("order", 2.0),
        ("learn_labels", "yes"),
    ],
)
def test_refuses_values_of_the_wrong_type_or_size(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        build(Method, {name: value})
    with pytest.raises(ConfigError, match=name):
        check(Method(**{name: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        (Range(low=1), [1, 2, 1e9], [0, 0.999, -math.inf, math.nan]),
        (Range(above=0), [1e-30, 5, 1e30], [0, -1, math.nan, math.inf, 1e-300, 1e300]),
        (Range(low=0, high=1), [0, 0.5, 1], [-1e-9, 1.0001, math.nan]),
        (Range(), [-math.inf, 0, math.inf], []),
    ],
)
def test_ranges(bounds: Range, inside: list[float], outside: list[float]) -> None:
    assert all(bounds.complaint(value) is None for value in inside)
    assert all(bounds.complaint(value) is not None for value in outside)


def test_to_dict_leaves_out_none() -> None:
    plain = to_dict(Method())
    assert "clip" not in plain
    assert plain["num_steps"] == 5000
    assert to_dict(Method(clip=1.0))["clip"] == 1.0


CONFIGS = st.builds(
    Method,
    num_steps=st.integers(1, 10**6),
    step_size=st.floats(1e-9, 1e9),
    momentum=st.floats(0, 1),
    loss=st.sampled_from(["ce", "mse"]),
    learn_labels=st.booleans(),
    clip=st.none() | st.floats(-10, 10),
    note=st.text(max_size=5),
)


@given(CONFIGS)
def test_building_from_the_plain_values_gives_the_instance_back(config: Method) -> None:
    assert build(Method, to_dict(config)) == config
    check(config)


def test_reads_a_toml_table() -> None:
    table = tomllib.loads('num_steps = 10\nstep_size = 1e-2\nlearn_labels = true\nloss = "mse"')
    assert build(Method, table) == Method(
        num_steps=10, step_size=0.01, learn_labels=True, loss="mse"
    )


def test_a_former_name_is_read_as_the_present_one() -> None:
    """Runs of earlier versions keep `features = "network"` in their config.toml."""
    built = build(Herding, {"per_class": 1, "features": "network"})
    assert built == Herding(per_class=1, space="network")
    with pytest.raises(ConfigError, match="unknown option 'features'"):
        build(Uniform, {"features": "network"})


def test_a_sentence_has_no_word_of_a_thousand_letters() -> None:
    path = "/a" * 500
    said = str(ConfigError(f"there is no file {path}; give another", path=path))
    assert len(said) < 200
    assert said.startswith("there is no file /a/a")
    assert said.endswith(" give another")
