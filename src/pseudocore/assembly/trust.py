"""Code that a file names runs only where the user names it too: networks, features, and the other
networks that a method serves.
"""

from collections.abc import Collection, Mapping
from typing import Any

from pseudocore.core.errors import ConfigError
from pseudocore.features import backbone
from pseudocore.models import custom


def refuse_named_code(
    setup: Mapping[str, Any],
    options: Mapping[str, Any],
    source: str,
    *,
    named: Collection[str] = (),
) -> None:
    """Refuse code that the tables of a file name.

    Args:
        setup: Of the file.
        options: Those of its method.
        source: Which file, as the beginning of a sentence.
        named: Fields that the user has given, which count for the file's.
    """
    if "model" not in named:
        custom.refuse_code(setup, source)
    if "features" not in named:
        backbone.refuse_code(setup, source)
    also = str(options.get("also") or "")
    if ":" in also and "also" not in named:
        raise ConfigError(
            f"{source} the networks {also!r}, code outside this package, which is not run just"
            " because a file names it; if you trust it, give it yourself (--also)",
            code="custom-model",
            model=also,
        )
