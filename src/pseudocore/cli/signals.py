"""Being stopped politely."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_at_once() -> Iterator[None]:
    """Ctrl-C and a polite stop end the program here and now: while libraries are loaded there is
    nothing to save, and one of them may
    take an exception for its own and go on."""

    def stop(*_: Any) -> None:
        os.write(2, b"interrupted\n")
        os._exit(130)

    heard = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def polite_stop() -> Iterator[None]:
    """A cluster's polite stop ends every verb as Ctrl-C does: what there is to save is saved, and
    the exit code is 130.
    """

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
