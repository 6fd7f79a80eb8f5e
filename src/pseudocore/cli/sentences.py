"""Errors as sentences: what was wrong, and what would work."""

from collections.abc import Sequence

from cyclopts import CycloptsError
from cyclopts.exceptions import (
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)

from pseudocore.core.errors import PseudocoreError
from pseudocore.core.registry import Registry, did_you_mean, inferences, methods
from pseudocore.runtime.shortage import is_shortage

_MAX_OWNERS = 3
"""Methods or inferences that are named as having a flag, at most."""


def sentence_of(error: Exception) -> str | None:
    """One line about an error that a user can fix; None for a bug, which keeps its traceback."""
    if isinstance(error, CycloptsError):
        verb = " ".join(["pseudocore", *(error.command_chain or ())])
        return f"{_parse_error(error)} (see {verb} --help)"
    if isinstance(error, PseudocoreError):
        return " ".join(str(error).split()).replace("per_class", "per_class (--ipc)")
    if isinstance(error, OSError) and not is_shortage(error):
        return f"the operating system refused: {' '.join(str(error).split())}"
    if is_shortage(error):
        return "not enough memory; a smaller --batch-size, --width or budget needs less"
    return None


def _parse_error(error: CycloptsError) -> str:
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"unexpected argument {error.unused_tokens[0]!r}"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name
        given = error.keyword is not None or bool(error.argument.tokens)
        return f"{error.keyword or name} needs a value" if given else f"{name} is missing"
    if isinstance(error, UnknownCommandError) and error.unused_tokens and error.app is not None:
        word = error.unused_tokens[0]
        known = [name for name in error.app if not name.startswith("-")]
        return f"unknown command {word!r}, not one of {', '.join(known)}{did_you_mean(word, known)}"
    if isinstance(error, UnknownOptionError):
        return _unknown_option(error)
    text = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, ValidationError) and error.argument is not None:
        value = error.argument.value
        if isinstance(value, list):  # as typed: 0, not [0]
            text = text.replace(str(value), ", ".join(map(str, value)))
    return text[:1].lower() + text[1:]


def _unknown_option(error: UnknownOptionError) -> str:
    """The nearest flag there is, else what other methods or inferences call by that name."""
    word = (error.token.keyword or error.token.value).partition("=")[0]
    known = [name for one in error.argument_collection if one.parse for name in one.names]
    reduces = (error.command_chain or ("",))[0] == "reduce"
    owners, others = dict[str, str](), dict[str, str]()
    if reduces or "--inference" in known:
        owners, others = map(_owners, (methods, inferences) if reduces else (inferences, methods))
    flag = word.replace("--no-", "--", 1)
    if flag in owners:
        return f"unknown option {word!r}; {flag} is an option of {owners[flag]}"
    if flag in others:
        verb = "evaluate" if reduces else "reduce"
        return f"unknown option {word!r}; {flag} is for {verb}, an option of {others[flag]}"
    is_begun = [any(one.startswith(word) for one in flags) for flags in (known, owners)]
    advice = "" if is_begun == [False, True] else did_you_mean(word, known)
    if not advice and (meant := did_you_mean(word, owners)):
        nearest = meant.split("'")[1]
        advice = f"; did you mean {nearest!r}, an option of {owners[nearest]}?"
    return f"unknown option {word!r}{advice}"


def _owners(registry: Registry) -> dict[str, str]:
    """The methods or inferences that have each flag, in words."""
    from pseudocore.core import config  # imports numpy, which `--help` must not

    owners: dict[str, list[str]] = {}
    for entry in registry:
        for option in config.options(entry.make):
            owners.setdefault(f"--{option.name.replace('_', '-')}", []).append(entry.name)
    return {flag: _listed(names) for flag, names in owners.items()}


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_OWNERS} more" if len(names) > _MAX_OWNERS else ""
    return ", ".join(names[:_MAX_OWNERS]) + more
