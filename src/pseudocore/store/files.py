"""Writing a file whole or not at all, and saying in one sentence why it could not be done."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from pseudocore.core.errors import RunError

StrPath = str | os.PathLike[str]


def write_bytes(path: StrPath, data: bytes) -> None:
    """Replace `path` by `data` atomically: after a crash at any moment it holds the old bytes or
    the new ones.
    """
    path = Path(path)
    partial = partial_of(path)
    with writing(path):
        try:
            with open(partial, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


@contextlib.contextmanager
def writing(path: StrPath) -> Iterator[None]:
    """Turn what the operating system refuses while `path` is written into a `RunError`."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {os.fspath(path)}: {reason_of(error)}; what was saved before is intact"
        ) from error


def partial_of(path: Path) -> Path:
    """Where the new bytes of `path` gather before they take its name."""
    return path.with_name(f".{path.name}.partial")


def reason_of(error: OSError) -> str:
    """The operating system's words, fit for the middle of a sentence."""
    words = error.strerror or str(error) or type(error).__name__
    return words[:1].lower() + words[1:]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (
            errno.EINVAL,
            errno.ENOTSUP,
        ):  # some file systems cannot sync a folder; the file is in place
            raise
    finally:
        os.close(handle)
