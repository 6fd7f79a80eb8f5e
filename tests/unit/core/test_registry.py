"""Registries: names, suggestions, duplicates, other packages' entry points."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from pseudocore.core import registry as module
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import Entry, Registry, did_you_mean, suggestion


@dataclass(frozen=True)
class Gadget:
    """Does a thing.

    And explains it at length.
    """


@dataclass(frozen=True)
class Widget:
    """Does another thing."""


@dataclass(frozen=True)
class Point:
    """What `importlib.metadata` hands out, as far as a registry uses it."""

    load: Callable[[], object]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The entry-point groups asked for; none of them holds anything."""
    asked: list[str] = []

    def entry_points(*, group: str) -> list[Point]:
        asked.append(group)
        return []

    monkeypatch.setattr(module, "entry_points", entry_points)
    return asked


@pytest.fixture
def gadgets(groups: list[str]) -> Registry:
    registry = Registry("gadget")
    registry.register("widget-two", kind="w", paper="Someone 2020")(Widget)
    registry.register("gadget-one", kind="g")(Gadget)
    return registry


def test_a_registered_class_is_found_and_returned_unchanged(gadgets: Registry) -> None:
    assert gadgets["widget-two"] == Entry("widget-two", Widget, "w", "Someone 2020")
    assert gadgets["gadget-one"].make is Gadget
    assert gadgets.register("third")(Gadget) is Gadget


def test_iteration_is_sorted_and_membership_by_name(gadgets: Registry) -> None:
    assert [entry.name for entry in gadgets] == ["gadget-one", "widget-two"]
    assert "gadget-one" in gadgets
    assert "gadget" not in gadgets


def test_the_name_of_an_instance(gadgets: Registry) -> None:
    assert gadgets.name_of(Widget()) == "widget-two"
    with pytest.raises(ConfigError, match="Point is not a registered gadget"):
        gadgets.name_of(Point(load=list))


def test_the_summary_is_the_first_line_of_the_docstring(gadgets: Registry) -> None:
    assert gadgets["gadget-one"].summary == "Does a thing"


def test_an_unknown_name_is_answered_with_the_nearest_and_all(gadgets: Registry) -> None:
    with pytest.raises(
        ConfigError,
        match=r"unknown gadget 'gagdet-one'; did you mean 'gadget-one'.*gadget-one, widget-two",
    ):
        gadgets["gagdet-one"]


def test_a_name_like_no_other_gets_no_suggestion(gadgets: Registry) -> None:
    with pytest.raises(ConfigError, match="unknown gadget 'zzz'") as caught:
        gadgets["zzz"]
    assert "did you mean" not in str(caught.value)
    assert "gadget-one, widget-two" in str(caught.value)


def test_did_you_mean() -> None:
    assert did_you_mean("bpc-flk", ["bpc-fkl", "vbpc"]) == "; did you mean 'bpc-fkl'?"
    assert did_you_mean("zzz", ["bpc-fkl"]) == ""
    assert did_you_mean("anything", []) == ""
    assert did_you_mean("", ["bpc-fkl"]) == ""


def test_a_suggestion_is_like_what_was_asked_for() -> None:
    assert (
        suggestion("vbpc", ["bpc-rkl", "bpc-w", "psvi"]) == ""
    )  # two thirds alike, and another word
    assert (
        suggestion("mpl", ["mlp", "linear"]) == "did you mean 'mlp'?"
    )  # as much alike, from its first letter
    assert suggestion("--colour", ["--out", "--seed"]) == ""
    assert suggestion("--ot", ["--out", "--seed"]) == "did you mean '--out'?"
    assert suggestion("Digits", ["digits"]) == "did you mean 'digits'?"


def test_names_that_begin_so_come_first_and_are_all_named_if_few() -> None:
    assert (
        suggestion("kim-1", ["kim-2", "kim-10", "kim-11"]) == "did you mean 'kim-10' or 'kim-11'?"
    )
    assert (
        suggestion("a", [f"a{place}" for place in range(5)])
        == "did you mean 'a0', 'a1', 'a2', 'a3' or 'a4'?"
    )
    assert (
        suggestion("a", [f"a{place}" for place in range(8)])
        == "did you mean 'a0', 'a1', 'a2', 'a3', 'a4' or one of 3 more?"
    )


def test_the_nearest_few() -> None:
    known = ["cell-one", "cell-two", "row"]
    assert suggestion("cell-on2", known) == "did you mean 'cell-one'?"
    assert suggestion("cell-tne", known, num=3) == "did you mean 'cell-one' or 'cell-two'?"


def test_two_modules_cannot_share_a_name(gadgets: Registry) -> None:
    foreign = type("Foreign", (), {"__module__": "another_package.gadget"})
    with pytest.raises(
        ConfigError, match=r"two gadgets want the name 'gadget-one'.*Gadget.*another_package"
    ):
        gadgets.register("gadget-one")(foreign)
    assert gadgets["gadget-one"].make is Gadget


def test_reloading_a_module_replaces_its_class(gadgets: Registry) -> None:
    again = type(
        "Gadget", (), {"__module__": Gadget.__module__, "__qualname__": Gadget.__qualname__}
    )
    gadgets.register("gadget-one")(again)
    assert gadgets["gadget-one"].make is again


@pytest.mark.parametrize(
    "use",
    [
        lambda r: r["foreign"],
        lambda r: "foreign" in r,
        lambda r: list(r),
        lambda r: r.name_of(Widget()),
    ],
    ids=["getitem", "contains", "iter", "name_of"],
)
def test_other_packages_are_asked_once_on_first_use(
    monkeypatch: pytest.MonkeyPatch, use: Callable[[Registry], object]
) -> None:
    registry, asked = Registry("gadget"), []

    def entry_points(*, group: str) -> list[Point]:
        asked.append(group)
        return [Point(load=lambda: registry.register("foreign", kind="g")(Widget))]

    monkeypatch.setattr(module, "entry_points", entry_points)
    registry.register("own")(Gadget)
    assert asked == []
    assert use(registry)
    use(registry)
    assert [entry.name for entry in registry] == ["foreign", "own"]
    assert asked == ["pseudocore.gadgets"]


def test_the_three_registries_have_their_own_groups(
    groups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for registry in (module.methods, module.inferences, module.models):
        monkeypatch.setattr(registry, "_asked_other_packages", False)
        assert "no such thing" not in registry
    assert groups == ["pseudocore.methods", "pseudocore.inferences", "pseudocore.models"]
