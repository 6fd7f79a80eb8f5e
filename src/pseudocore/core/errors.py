"""Errors the caller can mend, each said in one sentence.

The command line prints the sentence without a traceback and exits with code 2. Any other exception
is a fault of ours and keeps its traceback.
"""

import re
from typing import Any

_LONG_WORD = re.compile(r"(\S{100})\S{300,}(\S{20})")
"""What a stranger's file or a slip of the keyboard can put into a sentence."""


class PseudocoreError(Exception):
    """An error with a sentence for people, and a code and fields for programs.

    Args:
        message: What was wrong, what was given and what would work.
        code: The kind of error in kebab-case, for example `unknown-method`. Defaults to the class's.
        fields: What the sentence speaks of, by name.
    """

    code = "error"

    def __init__(self, message: str, *, code: str = "", **fields: Any) -> None:
        super().__init__(_LONG_WORD.sub(r"\1…\2", message))
        self.code = code or type(self).code
        self.fields = fields


class ConfigError(PseudocoreError):
    """A name, option or combination of options that cannot work."""

    code = "config"


class DataError(PseudocoreError):
    """A data set that is missing, malformed or unfit for what was asked."""

    code = "data"


class ArtifactError(PseudocoreError):
    """A file of ours that is damaged, foreign or of another schema version."""

    code = "artifact"


class RunError(PseudocoreError):
    """A run folder that cannot be created, written to or resumed."""

    code = "run"


class OutOfMemoryError(PseudocoreError):
    """Memory ran out; the sentence says at what, and which option helps."""

    code = "out-of-memory"
