"""Registries: names, suggestions, duplicates, lazy import, plug-ins of other packages."""

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from pseudocore.core import registry as module
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import Registry, did_you_mean, suggestion


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
    """An entry point of `importlib.metadata`, as far as a registry uses it."""

    load: Callable[[], object]
    name: str = "point"
    value: str = "somewhere.else"


def offer(monkeypatch: pytest.MonkeyPatch, *points: Point) -> list[str]:
    """Install entry points; the groups that are asked for are collected."""
    asked: list[str] = []

    def entry_points(*, group: str) -> list[Point]:
        asked.append(group)
        return list(points)

    monkeypatch.setattr(module, "entry_points", entry_points)
    return asked


@pytest.fixture
def gadgets(monkeypatch: pytest.MonkeyPatch) -> Registry:
    offer(monkeypatch)
    registry = Registry("gadget")
    registry.register("widget-two", kind="w", paper="Someone 2020")(Widget)
    registry.register("gadget-one", kind="g")(Gadget)
    return registry


def test_a_registered_class_is_found_and_returned_unchanged(gadgets: Registry) -> None:
    entry = gadgets["widget-two"]
    assert (entry.name, entry.make, entry.kind) == ("widget-two", Widget, "w")
    assert (entry.paper, entry.summary) == ("Someone 2020", "Does another thing")
    assert gadgets["gadget-one"].summary == "Does a thing"
    assert gadgets.register("third")(Gadget) is Gadget


def test_iteration_is_sorted_and_membership_by_name(gadgets: Registry) -> None:
    assert [entry.name for entry in gadgets] == gadgets.names() == ["gadget-one", "widget-two"]
    assert "gadget-one" in gadgets
    assert "gadget" not in gadgets


def test_the_name_of_an_instance(gadgets: Registry) -> None:
    assert gadgets.name_of(Widget()) == "widget-two"
    assert gadgets.name_of(Point(load=list)) == f"{__name__}:Point"
    assert gadgets.has_class(Widget)
    assert not gadgets.has_class(Point)


@pytest.mark.parametrize(("name", "meant"), [("gagdet-one", "gadget-one"), ("zzz", "")])
def test_an_unknown_name_is_answered_with_the_nearest_and_all(
    gadgets: Registry, name: str, meant: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        gadgets[name]
    assert caught.value.code == "unknown-gadget"
    assert caught.value.fields == {"name": name, "known": ["gadget-one", "widget-two"]}
    assert (f"did you mean '{meant}'?" in str(caught.value)) == bool(meant)


@pytest.mark.parametrize(
    ("name", "known", "answer"),
    [
        ("bpc-flk", ["bpc-fkl", "vbpc"], "did you mean 'bpc-fkl'?"),
        ("zzz", ["bpc-fkl"], ""),
        ("anything", [], ""),
        ("", ["bpc-fkl"], ""),
        ("vbpc", ["bpc-rkl", "bpc-w", "psvi"], ""),  # two thirds alike, and another word
        ("mpl", ["mlp", "linear"], "did you mean 'mlp'?"),  # as much alike, from its first letter
        ("--colour", ["--out", "--seed"], ""),
        ("--ot", ["--out", "--seed"], "did you mean '--out'?"),
        ("Digits", ["digits"], "did you mean 'digits'?"),
        ("kim-1", ["kim-2", "kim-10", "kim-11"], "did you mean 'kim-10' or 'kim-11'?"),
        ("a", [f"a{i}" for i in range(5)], "did you mean 'a0', 'a1', 'a2', 'a3' or 'a4'?"),
        (
            "a",
            [f"a{i}" for i in range(8)],
            "did you mean 'a0', 'a1', 'a2', 'a3', 'a4' or one of 3 more?",
        ),
    ],
)
def test_suggestions(name: str, known: list[str], answer: str) -> None:
    assert suggestion(name, known) == answer
    assert did_you_mean(name, known) == (f"; {answer}" if answer else "")


def test_the_nearest_few() -> None:
    known = ["cell-one", "cell-two", "row"]
    assert suggestion("cell-tne", known, num=3) == "did you mean 'cell-one' or 'cell-two'?"


def test_two_modules_cannot_share_a_name(gadgets: Registry) -> None:
    foreign = type("Foreign", (), {"__module__": "another_package.gadget"})
    with pytest.raises(ConfigError, match=r"gadget-one.*Gadget.*another_package") as caught:
        gadgets.register("gadget-one")(foreign)
    assert caught.value.code == "duplicate-name"
    assert gadgets["gadget-one"].make is Gadget
    with pytest.raises(ConfigError):  # nor take one of ours, imported or not
        module.methods.register("kip")(foreign)


def test_reloading_a_module_replaces_its_class(gadgets: Registry) -> None:
    names = {"__module__": Gadget.__module__, "__qualname__": Gadget.__qualname__}
    again = type("Gadget", (), names)
    gadgets.register("gadget-one")(again)
    assert gadgets["gadget-one"].make is again


@pytest.mark.parametrize(
    "use", [lambda r: r["foreign"], lambda r: "foreign" in r, list], ids=["get", "contains", "iter"]
)
def test_plugins_are_loaded_once_on_first_use(
    monkeypatch: pytest.MonkeyPatch, use: Callable[[Registry], object]
) -> None:
    registry = Registry("gadget")
    asked = offer(monkeypatch, Point(lambda: registry.register("foreign", kind="g")(Widget)))
    registry.register("own")(Gadget)
    assert asked == []
    assert use(registry)
    use(registry)
    assert registry.names() == ["foreign", "own"]
    assert asked == ["pseudocore.gadgets"]


@pytest.mark.parametrize("error", [ImportError("no such module"), SystemExit(3), KeyError("x")])
def test_a_broken_plugin_disables_itself_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    registry = Registry("gadget")

    def breaks() -> None:
        registry.register("half-done")(Widget)
        raise error

    offer(monkeypatch, Point(breaks, "bad"), Point(lambda: registry.register("good")(Gadget)))
    assert registry.names() == ["good"]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("pseudocore: the plug-in 'bad' (somewhere.else) is disabled: ")
    assert printed.err.count("\n") == 1


def test_the_three_registries_have_their_own_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = offer(monkeypatch)
    for registry in (module.methods, module.inferences, module.models):
        monkeypatch.setattr(registry, "_plugins_loaded", False)
        assert "no such thing" not in registry
    assert groups == ["pseudocore.methods", "pseudocore.inferences", "pseudocore.models"]


@pytest.mark.parametrize("registry", [module.methods, module.inferences, module.models])
def test_the_index_of_a_package_names_what_its_modules_register(registry: Registry) -> None:
    """A new file needs a line in `INDEX`, `__all__` and the imports for type checkers."""
    package = importlib.import_module(registry._package)
    described = {entry.name: entry for entry in registry}
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if "_triton" not in found.name:
            importlib.import_module(found.name)
    registered = {
        name: f"{cls.__module__}:{cls.__qualname__}"
        for name, cls in registry._classes.items()
        if cls.__module__.startswith(f"{package.__name__}.")
    }
    assert registered == {
        name: f"{package.__name__}.{place}" for name, place in package.INDEX.items()
    }
    for name in registered:
        cls = registry[name].make
        assert getattr(package, cls.__name__) is cls
        assert cls.__name__ in package.__all__
        for field in ("kind", "paper", "summary"):  # as read from the source
            assert getattr(described[name], field) == getattr(registry[name], field)


def test_listing_imports_no_torch_and_one_method_one_file() -> None:
    code = """
import sys
from pseudocore.core.registry import methods
assert len([entry.summary for entry in methods]) > 30
assert "torch" not in sys.modules
methods["uniform"]
loaded = [name for name in sys.modules if name.startswith("pseudocore.methods.select.")]
assert loaded == ["pseudocore.methods.select.uniform"], loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)
