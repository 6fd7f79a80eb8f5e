"""SIGINT and SIGTERM: what is saved is kept, and the exit code is 130."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def exit_now(*_: Any) -> None:
    """A handler for the time libraries are imported: there is nothing to save, and an import may
    swallow an exception.
    """
    os.write(2, b"interrupted\n")
    os._exit(130)


def interrupt(*_: Any) -> None:
    """A handler that does what Ctrl-C does."""
    raise KeyboardInterrupt


@contextmanager
def on_stop(handler: Any) -> Iterator[None]:
    """Handle SIGINT and SIGTERM, unless they are ignored, as SIGINT is in the background."""
    both = (signal.SIGINT, signal.SIGTERM)
    heeded = [number for number in both if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
