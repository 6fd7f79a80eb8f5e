"""From the tables of a preset or a config.toml to the reduction they describe, and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pseudocore.assembly.setup import Setup
from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import did_you_mean, inferences, methods


@dataclass(frozen=True)
class Reduction:
    """A reduction as a run's config.toml holds it: all that is needed to make the coreset again."""

    method: Any
    setup: Setup
    seed: int = 0
    evaluate: Mapping[str, Any] | None = None
    """Name and options of the inference the coreset is meant for: the default of `evaluate`."""

    shard_size: int | None = None
    """Examples of a shard, where a selector selects in two rounds."""

    def to_config(self) -> dict[str, Any]:
        return {
            "method": methods.name_of(self.method),
            "seed": self.seed,
            "setup": config.to_dict(self.setup),
            "options": config.to_dict(self.method),
            **({"shard_size": self.shard_size} if self.shard_size else {}),
            **({"evaluate": dict(self.evaluate)} if self.evaluate else {}),
        }

    @classmethod
    def from_config(cls, table: Mapping[str, Any]) -> "Reduction":
        """From the tables of a preset or a config.toml; every problem is reported at once."""
        check_tables(table)
        if "method" not in table:
            raise ConfigError("a configuration must name its method", code="missing-method")
        (method, setup, _), problems = _build_all(table)
        if problems:
            raise ConfigError("; ".join(problems), code="invalid-options", problems=problems)
        evaluate = dict(table.get("evaluate", {})) or None
        return cls(method, setup, table.get("seed", 0), evaluate, table.get("shard_size"))


def check_tables(table: Mapping[str, Any], *, what: str = "a configuration") -> None:
    """Refuse unknown entries and entries of the wrong kind, with all else that is wrong."""
    sound: dict[str, Any] = {}
    problems = []
    for name, value in table.items():
        kind = _KINDS.get(name)
        if kind is None:
            problems.append(f"unknown entry {name!r}{did_you_mean(name, _KINDS)}")
        elif not isinstance(value, _TYPES[kind]) or isinstance(value, bool):
            problems.append(f"{name} = {value!r} is not {kind}")
        else:
            sound[name] = value
    if problems:
        problems[-1] += f" (there are {', '.join(_KINDS)})"
        problems += _build_all(sound)[1]
        raise ConfigError(
            f"{what}: {'; '.join(problems)}", code="invalid-configuration", problems=problems
        )


_TYPES: dict[str, type] = {"a string": str, "a whole number": int, "a table": Mapping}

_KINDS = {
    "method": "a string",
    "data": "a string",
    "seed": "a whole number",
    "shard_size": "a whole number",
    "setup": "a table",
    "options": "a table",
    "evaluate": "a table",
}
"""The entries of a configuration."""


def _build_all(table: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """Method, setup and inference of a configuration, None for what it does not name, and all that
    is wrong with them.
    """
    built: list[Any] = []
    problems: list[str] = []
    for build_one in (_build_method, _build_setup, _build_inference):
        try:
            built.append(build_one(table))
        except ConfigError as error:
            built.append(None)
            problems.append(str(error))
    return built, problems


def _build_method(table: Mapping[str, Any]) -> Any:
    name = table.get("method")
    if name is None:
        return None
    return config.build(methods[name].make, table.get("options", {}), what=name)


def _build_setup(table: Mapping[str, Any]) -> Setup:
    fields = {**table.get("setup", {}), **({"data": table["data"]} if "data" in table else {})}
    return config.build(Setup, fields, what="setup")


def _build_inference(table: Mapping[str, Any]) -> Any:
    if not table.get("evaluate"):
        return None
    options = dict(table["evaluate"])
    name = str(options.pop("inference", "last-layer-vi"))
    return config.build(inferences[name].make, options, what=f"evaluate by {name}")
