"""Being stopped politely."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["polite_stop"]


@contextmanager
def polite_stop() -> Iterator[None]:
    """A cluster's polite stop saves like Ctrl-C."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
