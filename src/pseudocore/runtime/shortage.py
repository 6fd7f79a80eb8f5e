"""When memory runs out: an error that says at what, how much was asked for, and what would help.

`stage` names what was being done, `advising` the options of the method or inference that did it.
"""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pseudocore.core.errors import OutOfMemoryError

DOING = {
    "load": "loading the data",
    "preprocess": "preprocessing the data",
    "features": "computing features",
    "pretrain": "training the network behind the selection",
    "experts": "training experts",
    "reference": "fitting all data",
    "infer": "fitting the coreset",
    "predict": "predicting",
    "reduce": "reducing",
    "corrupt": "corrupting test images",
    "robustness": "predicting corrupted or other inputs",
}
"""What the stages are, in words."""

ADVICE = {
    "load": "a folder of .npy files is read in place, without a copy",
    "preprocess": "--preprocess none or standard needs less than zca",
    "features": "a smaller network of features needs less",
    "corrupt": "a smaller --num-robust or fewer --severity need less",
    "robustness": "a smaller --num-robust needs less",
}
"""What helps in a stage, whatever the method."""

OPTIONS = (
    *("exact", "batch_size", "pretrain_batch_size", "inner_batch_size", "draw_batch", "pool_size"),
    *("num_students", "num_networks", "num_positive", "num_draws", "num_chains", "num_members"),
    "per_class",
)
"""Options that memory grows with; a method has some of them."""

_FLAGS = {"per_class": "ipc"}

_WORDS = ("allocate", "size calculation overflowed", "out of memory", "bad_alloc")
"""In torch's messages when memory runs out."""

_SIZE = re.compile(r"allocate ([\d.]+) ?(bytes|[KMGTPE]iB)")
_UNITS = {"bytes": 1.0} | {f"{one}iB": 2.0 ** (10 * power) for power, one in enumerate("KMGTPE", 1)}


@contextmanager
def naming(stage: str) -> Iterator[None]:
    """Turn a want of memory inside into an `OutOfMemoryError` about this stage."""
    try:
        yield
    except Exception as error:
        if not is_shortage(error):
            raise
        raise _named(stage, asked_for(error)) from error


@contextmanager
def advising(*settings: object) -> Iterator[None]:
    """Add the options of these that need less memory to an `OutOfMemoryError`."""
    try:
        yield
    except OutOfMemoryError as error:
        if error.fields.get("options") is not None or error.fields["stage"] in ADVICE:
            raise
        found = [name for name in OPTIONS if any(getattr(one, name, None) for one in settings)]
        raise _named(error.fields["stage"], error.fields["size"], found) from error


def is_shortage(error: Exception) -> bool:
    """Whether memory ran out."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    is_torch = isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)
    return is_torch or isinstance(error, MemoryError)


def asked_for(error: Exception) -> float | None:
    """Bytes that were asked for, where the message has them."""
    found = _SIZE.search(str(error))
    return None if found is None else float(found[1]) * _UNITS[found[2]]


def _named(stage: str, size: float | None, options: list[str] | None = None) -> OutOfMemoryError:
    doing = f" while {DOING[stage]}" if stage in DOING else ""
    more = "" if size is None else f" ({size / 2**30:.3g} GiB more were asked for)"
    advice = ADVICE.get(stage, "a smaller network, by --width or --model, needs less")
    names = (_FLAGS.get(name, name) for name in options or [] if name != "exact")
    flags = [f"--{name.replace('_', '-')}" for name in names]
    if flags:
        advice = f"a smaller {', '.join(flags[:3])} or network (--width) needs less"
    if "exact" in (options or []):
        advice = "leave out --exact, with which every class is covered whole"
    return OutOfMemoryError(
        f"not enough memory{doing}{more}; {advice}", stage=stage, size=size, options=options
    )
