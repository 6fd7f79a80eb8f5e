"""One writer at a time in a folder, by a lock the operating system drops when its holder dies,
however it dies.
"""

import fcntl
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from pseudocore.core.errors import RunError
from pseudocore.store.files import writing

LOCK_FILE = ".pseudocore.lock"
"""Stays in the folder: removing it would let two processes lock two files of one name."""


class TakenError(RunError):
    """Another process has the lock."""


class Lock:
    """The right to write into `folder`, held from construction to `release` or the end of the
    process.

    While another process has it: an error, or, given what to say first (`on_wait`), a wait.
    """

    def __init__(self, folder: Path, on_wait: Callable[[], None] | None = None) -> None:
        with writing(folder / LOCK_FILE):
            handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
        self.release = weakref.finalize(self, os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if on_wait is not None:
                on_wait()
                fcntl.flock(handle, fcntl.LOCK_EX)
                return
            self.release()
            raise TakenError(
                f"{folder} is being written by another process; wait for it to end or choose another --out"
            ) from error
        except OSError:
            pass  # a file system without locks is no reason to refuse to work

    def __enter__(self) -> "Lock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
