"""What can go wrong through the input, said in one sentence.

Everything below is raised for something the caller can mend; the command line prints it without a traceback and exits
with code 2. Any other exception is a fault of ours and keeps its traceback.
"""

__all__ = ["ArtifactError", "ConfigError", "DataError", "PseudocoreError", "RunError"]


class PseudocoreError(Exception):
    """Base of all errors that say what was wrong, what was given and what would work."""


class ConfigError(PseudocoreError):
    """A name, option or combination of options that cannot work."""


class DataError(PseudocoreError):
    """A data set that is missing, malformed or unfit for what was asked."""


class ArtifactError(PseudocoreError):
    """A file of ours that is damaged, foreign or of another schema version."""


class RunError(PseudocoreError):
    """A run folder that cannot be created, written to or resumed."""
