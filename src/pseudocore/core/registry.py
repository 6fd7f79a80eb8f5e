"""Names for things: methods, inferences, models, each in its own registry.

A class enters by decoration, so a new method is one new file; another package enters through the entry-point group
`pseudocore.<kind>s` (for example `pseudocore.methods`), whose modules are imported on first use.
"""

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, TypeVar

from pseudocore.core.errors import ConfigError

__all__ = ["Entry", "Registry", "did_you_mean", "inferences", "methods", "models"]

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    name: str
    make: Any
    """The frozen dataclass behind the name."""
    kind: str
    """What sort of thing it is, for example select, condense or bayes."""
    paper: str

    @property
    def summary(self) -> str:
        """First sentence of the class's docstring."""
        return next(iter((self.make.__doc__ or "").strip().splitlines()), "").rstrip(".")


class Registry:
    """A table of entries under unique names, with near-name suggestions."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._entries: dict[str, Entry] = {}
        self._asked_other_packages = False

    def register(self, name: str, *, kind: str = "", paper: str = "") -> Callable[[type[T]], type[T]]:
        def add(cls: type[T]) -> type[T]:
            other = self._entries.get(name)
            if other is not None and (other.make.__module__, other.make.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ConfigError(f"two {self.noun}s want the name {name!r}: {other.make} and {cls}")
            self._entries[name] = Entry(name, cls, kind, paper)
            return cls

        return add

    def __getitem__(self, name: str) -> Entry:
        entries = self._all()
        if name not in entries:
            raise ConfigError(f"unknown {self.noun} {name!r}{did_you_mean(name, entries)} (known: {', '.join(sorted(entries))})")
        return entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[Entry]:
        return iter(sorted(self._all().values(), key=lambda entry: entry.name))

    def name_of(self, instance: object) -> str:
        """The name an instance's class is registered under."""
        for entry in self:
            if entry.make is type(instance):
                return entry.name
        raise ConfigError(f"{type(instance).__name__} is not a registered {self.noun}")

    def _all(self) -> dict[str, Entry]:
        if not self._asked_other_packages:
            for point in entry_points(group=f"pseudocore.{self.noun}s"):
                point.load()
            self._asked_other_packages = True
        return self._entries


def did_you_mean(name: str, known: Any) -> str:
    """`; did you mean 'x'?` when a known name is near, else nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


methods = Registry("method")
inferences = Registry("inference")
models = Registry("model")
