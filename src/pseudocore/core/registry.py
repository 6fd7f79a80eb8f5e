"""Methods, inferences and models by name, each in its own registry.

A class enters by decoration. Those of this package are in the table `INDEX` of their own package
(`pseudocore.methods` and so on) and are imported when first used by name. Another package enters
through the entry-point group `pseudocore.<noun>s`; one that fails to load is left out.
"""

import ast
import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

from pseudocore.core.errors import ConfigError

T = TypeVar("T")

_MAX_SUGGESTIONS = 5
"""Names that begin as the given one does are all suggested, up to this many."""


@dataclass(frozen=True)
class Entry:
    """A registered class, described without importing it."""

    name: str
    kind: str
    """What sort of thing it is, for example select, condense or bayes."""
    paper: str
    summary: str
    """First line of the class's docstring."""
    load: Callable[[], Any]
    targets: str = ""
    """What a method brings near that of all data: posterior, gradients, features, function, …"""
    weights: str = ""
    """Whether a method finds weights: yes, no, or by an option."""

    @property
    def make(self) -> Any:
        """The class itself, usually a frozen dataclass; imported if need be."""
        return self.load()


class Registry:
    """A table of entries under unique names, with suggestions for misspelt ones."""

    def __init__(self, noun: str, package: str = "") -> None:
        self.noun = noun
        self._package = package
        self._entries: dict[str, Entry] = {}
        self._classes: dict[str, type] = {}
        self._plugins_loaded = False

    def register(
        self,
        name: str,
        *,
        kind: str = "",
        paper: str = "",
        targets: str = "",
        weights: Literal["yes", "no", "option", ""] = "",
    ) -> Callable[[type[T]], type[T]]:
        """A decorator that enters a class under `name`."""

        def add(cls: type[T]) -> type[T]:
            place, taken = place_of(cls), self._index().get(name)
            if name in self._classes:
                taken = place_of(self._classes[name])
            if taken not in (None, place):
                raise ConfigError(
                    f"two {self.noun}s are named {name!r}: {taken} and {place}",
                    code="duplicate-name",
                    name=name,
                )
            self._classes[name] = cls
            summary = _first_line(cls.__doc__)
            self._entries[name] = Entry(name, kind, paper, summary, lambda: cls, targets, weights)
            return cls

        return add

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries and (place := self._index().get(name)):
            import_module(place.partition(":")[0])  # whose decorators enter it
        if name not in self._entries:
            self._load_plugins()
        if name not in self._entries:
            known = self.names()
            raise ConfigError(
                f"unknown {self.noun} {name!r}{did_you_mean(name, known)}"
                f" (known: {', '.join(known)})",
                code=f"unknown-{self.noun}",
                name=name,
                known=known,
            )
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[Entry]:
        """Every entry by name; what is not imported yet is described from its source."""
        names, index = self.names(), self._index()
        return (self._entries.get(name) or _from_source(name, index[name]) for name in names)

    def names(self) -> list[str]:
        """Every name, sorted; imports nothing of this package."""
        self._load_plugins()
        return sorted({*self._entries, *self._index()})

    def name_of(self, instance: object) -> str:
        """The name an instance's class is registered under; `module:Class` of any other."""
        cls = type(instance)
        return next((name for name, one in self._classes.items() if one is cls), place_of(cls))

    def has_class(self, cls: object) -> bool:
        """Whether a class is registered."""
        return any(one is cls for one in self._classes.values())

    def _index(self) -> Mapping[str, str]:
        """`module:Class` by name, of this package's own."""
        if not self._package:
            return {}
        index = import_module(self._package).INDEX
        return {name: f"{self._package}.{place}" for name, place in index.items()}

    def _load_plugins(self) -> None:
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for point in entry_points(group=f"pseudocore.{self.noun}s"):
            before = self._entries.copy(), self._classes.copy()
            try:
                point.load()
            except (Exception, SystemExit) as error:  # a stranger's code may raise anything
                self._entries, self._classes = before
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                where = f"plug-in {point.name!r} ({point.value})"
                sys.stderr.write(f"pseudocore: the {where} is disabled: {reason}\n")


def lazy_attribute(package: str, places: Iterable[str], name: str) -> Any:
    """The class of that name at one of the places `module:Class`, for a package's `__getattr__`."""
    for place in places:
        module, _, cls = place.partition(":")
        if cls == name:
            return getattr(import_module(f"{package}.{module}"), name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def place_of(found: Any) -> str:
    """`module:name` of a class or function, or of the class of anything else."""
    if not hasattr(found, "__qualname__"):
        found = type(found)
    return f"{found.__module__}:{found.__qualname__}"


def did_you_mean(name: str, known: Iterable[str], *, num: int = 1) -> str:
    """`; did you mean 'x'?` when a known name is near, else nothing."""
    words = suggestion(name, known, num=num)
    return f"; {words}" if words else ""


def suggestion(name: str, known: Iterable[str], *, num: int = 1) -> str:
    """`did you mean 'x'?`: the known names that begin so, else the `num` nearest."""
    plain = {one.lstrip("-").lower(): one for one in known}  # the dashes of a flag do not count
    word = name.lstrip("-").lower()
    found = [one for one in plain if word and one.startswith(word)] or _near(word, plain, num)
    words = [repr(plain[one]) for one in found[:_MAX_SUGGESTIONS]]
    if len(found) > _MAX_SUGGESTIONS:
        words.append(f"one of {len(found) - _MAX_SUGGESTIONS} more")
    if not words:
        return ""
    return f"did you mean {' or '.join(filter(None, [', '.join(words[:-1]), words[-1]]))}?"


def _near(word: str, known: Iterable[str], num: int) -> list[str]:
    """Close matches; where the first letter differs, which typing slips rarely change, the rest
    must be nearer.
    """
    known = list(known)
    alike = [one for one in known if one[:1] == word[:1]]
    return difflib.get_close_matches(word, known, num, cutoff=0.75) or difflib.get_close_matches(
        word, alike, num, cutoff=0.6
    )


def _first_line(docstring: str | None) -> str:
    return next(iter((docstring or "").strip().splitlines()), "").rstrip(".")


def _from_source(name: str, place: str) -> Entry:
    """The entry that importing `module:Class` would register, read from the source."""
    module, _, cls = place.partition(":")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    constants: dict[str, str] = {}
    with open(spec.origin, encoding="utf-8") as source:
        body = ast.parse(source.read()).body
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=word)], value=ast.Constant(value=str(text))):
                constants[word] = text
            case ast.ClassDef(name=found, decorator_list=[ast.Call(keywords=keywords), *_]) if (
                found == cls
            ):
                said = {
                    one.arg: constants[one.value.id]
                    if isinstance(one.value, ast.Name)
                    else ast.literal_eval(one.value)
                    for one in keywords
                }
                summary = _first_line(ast.get_docstring(node))
                about = {word: said[word] for word in ("targets", "weights") if word in said}
                load = partial(_import, module, cls)
                kind, paper = (said.get(word, "") for word in ("kind", "paper"))
                return Entry(name, kind, paper, summary, load, **about)
    raise LookupError(f"{place} does not register itself as {name!r}")


def _import(module: str, cls: str) -> Any:
    return getattr(import_module(module), cls)


methods = Registry("method", "pseudocore.methods")
inferences = Registry("inference", "pseudocore.inference")
models = Registry("model", "pseudocore.models")
