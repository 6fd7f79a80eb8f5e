"""How far a part of a method or an inference is, told to whoever listens; by default nobody does.

```python
with listening(lambda title, done, total: print(title, done, total)):
    ...  # any code that calls `report`
```
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]
"""Called with what is under way, how much of it is done, and how much there is."""

# A context variable, as in `profiling`: loops deep inside methods need not pass a listener on.
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener` what is reported inside."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(title: str, done: int, total: int) -> None:
    """Say that `done` of `total` steps of something are done."""
    if (listener := _listener.get()) is not None:
        listener(title, done, total)
