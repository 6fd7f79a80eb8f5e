"""SIGINT and SIGTERM: what is saved is kept, and the exit code is 130."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """SIGINT and SIGTERM end the process at once.

    For the time libraries are imported: there is nothing to save, and an import may swallow an
    exception.
    """

    def stop(*_: Any) -> None:
        os.write(2, b"interrupted\n")
        os._exit(130)

    handled = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, stop) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
