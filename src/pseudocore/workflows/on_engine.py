"""What workflows that can run on an engine share."""

from collections.abc import Mapping

from pseudocore.core.errors import ConfigError

FOLDER = "engine"
"""Where the work of an engine is kept, in the folder of what it makes."""


def refuse_objects(what: Mapping[str, bool]) -> None:
    """Refuse objects of this process, by name, which the workers of an engine cannot read."""
    if names := [name for name, is_object in what.items() if is_object]:
        raise ConfigError(
            f"the workers of an engine read {' and '.join(names)} themselves: give a name or a path"
            " in place of an object, or leave out the engine",
            code="engine-needs-names",
            names=names,
        )
