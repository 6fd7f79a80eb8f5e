"""pseudocore presets [NAME]: the presets there are, or one of them in full."""

import itertools
import textwrap
from typing import Any

from pseudocore.assembly import presets as library
from pseudocore.cli.console import out, print_json
from pseudocore.cli.flags import Json
from pseudocore.store.files import encode_toml


def presets(
    name: str | None = None,
    /,
    *,
    json: Json = False,
) -> int:
    """List the presets, or print one of them as TOML: the cell, its settings and protocols.

    Args:
        name: Preset, as kim2022/cifar10-ipc10-bpc-fkl, or the path of a TOML file.
    """
    if name is None:
        if json:
            print_json(library.available())
        else:
            print_names()
        return 0
    tables = library.read(name)
    found = library.find(name) if library.is_preset(name) else None
    if json:
        about = {} if found is None else {**vars(found), "protocols": _protocols(found)}
        print_json({**about, "name": name, "tables": tables})
        return 0
    if found is not None:
        out.print("\n".join(f"# {line}" for line in _about(found)), end="\n\n")
    out.print(encode_toml(tables), end="")
    return 0


def print_names() -> None:
    """The names of all presets, wrapped, by paper."""
    by_paper = itertools.groupby(library.available(), key=lambda name: name.partition("/")[0])
    for paper, names in by_paper:
        cells = ", ".join(name.partition("/")[2] for name in names)
        first = f"{paper + '/':<15}"
        rest = " " * len(first)
        out.print(
            textwrap.fill(
                cells, 120, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
            )
        )


def _about(preset: library.Preset) -> list[str]:
    title, run = preset.name, f"runs/{preset.name.replace('/', '-')}"
    lines = [f"{title}: {preset.cell}"]
    for name in ("result", "cost", "experts"):
        if text := getattr(preset, name):
            lines.append(f"{name}: {text}")
    lines += preset.notes
    names = [f"{title}@{variant}" for variant in library.variants(title) if "@" not in title]
    lines += [f"variants: {', '.join(names)}"] if names else []
    lines.append(f"pseudocore reduce {preset.tables['method']} --preset {title} --out {run}")
    for name, protocol in preset.protocols.items():
        flags = [f"--inference {protocol.inference}"]
        flags += map(_flag, [*protocol.options.items(), *protocol.setup.items()])
        flags += ["--published"] * protocol.published
        command = f"pseudocore evaluate {run} --seeds {preset.seeds} {' '.join(flags)}"
        lines.append(f"{name} protocol: {command}")
    return lines


def _flag(option: tuple[str, Any]) -> str:
    name, value = option[0].replace("_", "-"), option[1]
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {value}"


def _protocols(preset: library.Preset) -> dict[str, Any]:
    return {name: one._asdict() for name, one in preset.protocols.items()}
