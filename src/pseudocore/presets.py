"""Presets: TOML files that come with the package, `<paper>/<cell>`, or a path of one's own."""

from pathlib import Path
from typing import Any

from pseudocore.assembly import check_tables
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import did_you_mean
from pseudocore.store.files import read_toml

_PACKAGE = Path(__file__).resolve().parent
_FOLDERS = (_PACKAGE / "presets", _PACKAGE.parents[1] / "presets")
"""In an installed package, and in a source checkout."""


def available() -> dict[str, Path]:
    """Names and files of the presets that come with the package."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    if folder is None:
        return {}
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.glob("*/*.toml"))
    }


def read(name: str) -> dict[str, Any]:
    """A preset's tables, by name or path; the config.toml of a run is one too."""
    presets = available()
    if name not in presets and Path(name).suffix != ".toml":
        raise ConfigError(
            f"unknown preset {name!r}{did_you_mean(name, presets, num=3)} "
            f"(pseudocore methods lists all {len(presets)} there are; a path to a .toml file does as well)"
        )
    tables = read_toml(presets.get(name, Path(name)))
    check_tables(tables, what=f"preset {name}")
    return tables
