"""Being stopped politely."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["polite_stop"]


@contextmanager
def polite_stop() -> Iterator[None]:
    """A cluster's polite stop ends every verb as Ctrl-C does: what there is to save is saved, and the exit code is 130."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
