"""Names for things: methods, inferences, models, each in its own registry.

A class enters by decoration, so a new method is one new file; another package enters through the
entry-point group `pseudocore.<kind>s` (for example `pseudocore.methods`), whose modules are
imported on first use.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, TypeVar

from pseudocore.core.errors import ConfigError

T = TypeVar("T")

_MANY = 5
"""Names that begin as asked for are all named, up to so many."""


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

    def register(
        self, name: str, *, kind: str = "", paper: str = ""
    ) -> Callable[[type[T]], type[T]]:
        def add(cls: type[T]) -> type[T]:
            other = self._entries.get(name)
            if other is not None and (other.make.__module__, other.make.__qualname__) != (
                cls.__module__,
                cls.__qualname__,
            ):
                raise ConfigError(
                    f"two {self.noun}s want the name {name!r}: {other.make} and {cls}"
                )
            self._entries[name] = Entry(name, cls, kind, paper)
            return cls

        return add

    def __getitem__(self, name: str) -> Entry:
        entries = self._all()
        if name not in entries:
            raise ConfigError(
                f"unknown {self.noun} {name!r}{did_you_mean(name, entries)} (known: {', '.join(sorted(entries))})"
            )
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


def did_you_mean(name: str, known: Iterable[str], *, num: int = 1) -> str:
    """`; did you mean 'x'?` when a known name is near, else nothing."""
    words = suggestion(name, known, num=num)
    return f"; {words}" if words else ""


def suggestion(name: str, known: Iterable[str], *, num: int = 1) -> str:
    """`did you mean 'x'?`: the known names that begin so, else the `num` nearest; nothing when none
    is near.
    """
    plain = {one.lstrip("-").lower(): one for one in known}  # the dashes of a flag are no likeness
    word = name.lstrip("-").lower()
    found = [one for one in plain if word and one.startswith(word)] or _near(word, plain, num)
    words = [repr(plain[one]) for one in found[:_MANY]]
    if len(found) > _MANY:
        words.append(f"one of {len(found) - _MANY} more")
    return (
        f"did you mean {' or '.join(filter(None, [', '.join(words[:-1]), words[-1]]))}?"
        if words
        else ""
    )


def _near(word: str, known: Iterable[str], num: int) -> list[str]:
    """A slip of the hand seldom changes the first letter, so where it differs the rest must be
    nearer.
    """
    known = list(known)
    alike = [one for one in known if one[:1] == word[:1]]
    return difflib.get_close_matches(word, known, num, cutoff=0.75) or difflib.get_close_matches(
        word, alike, num, cutoff=0.6
    )


methods = Registry("method")
inferences = Registry("inference")
models = Registry("model")
