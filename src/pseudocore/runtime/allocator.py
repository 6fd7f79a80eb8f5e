"""Keeping freed memory within the process.

glibc returns every large block to the system when it is freed and asks for it again a moment later,
one page fault for each 4 KiB. That is half the time of a training step on a CPU at the usual
network sizes.
"""

import ctypes
import functools
import os
import sys

VARIABLE = "PSEUDOCORE_MALLOC"
"""Environment variable: "system" leaves the allocator as it is."""

_OWN_SETTINGS = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD")
"""Environment variables by which a user has set the allocator already."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_GIB, _MIB = 1 << 30, 1 << 20


@functools.cache
def keep_freed_memory() -> bool:
    """Set glibc's allocator to keep blocks of up to 1 GiB, once per process.

    Results do not change; peak memory may grow by some hundred MiB.

    Returns:
        Whether it was set. It is left alone on other systems, and where the user has set it.
    """
    if sys.platform != "linux" or os.environ.get(VARIABLE) == "system":
        return False
    if any(os.environ.get(name) for name in _OWN_SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # musl has none
        return False
    settings = {
        _M_MMAP_THRESHOLD: _GIB,
        _M_TRIM_THRESHOLD: 2 * _GIB - 1,
        _M_TOP_PAD: 64 * _MIB,
    }
    results = [mallopt(name, value) for name, value in settings.items()]
    return all(result == 1 for result in results)
