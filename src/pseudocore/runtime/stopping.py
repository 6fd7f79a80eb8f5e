"""Short pieces of work that a stop does not interrupt: Ctrl-C pressed again while a run is saved."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_depth: ContextVar[int] = ContextVar("depth", default=0)


@contextmanager
def shielded() -> Iterator[None]:
    """Further stops are ignored inside; the first one has been heeded."""
    token = _depth.set(_depth.get() + 1)
    try:
        yield
    finally:
        _depth.reset(token)


def is_shielded() -> bool:
    """Whether a handler of signals is to ignore a stop now."""
    return _depth.get() > 0
