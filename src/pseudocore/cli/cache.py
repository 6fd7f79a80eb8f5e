"""`pseudocore cache`: what is kept between runs because it is slow to compute."""

from datetime import UTC, datetime
from itertools import groupby
from typing import Annotated

from cyclopts import App, Parameter, validators

from pseudocore.cli.console import hint, out, print_json
from pseudocore.cli.flags import Json, Switch
from pseudocore.store.cache import CacheFolder, Entry, size_limit

_DAY = 24 * 3600.0

cache = App(name="cache")

Days = Annotated[
    float,
    Parameter(validator=validators.Number(gte=0), help="Only entries not used for this many days."),
]
Obsolete = Annotated[
    bool,
    Switch,
    Parameter(help="Only entries that this version of pseudocore or torch would make anew."),
]


@cache.command
def info(*, json: Json = False) -> int:
    """Where the cache is, what is in it, and how large it may grow."""
    folder, limit = CacheFolder(), size_limit()
    by_kind = {
        kind: list(ones) for kind, ones in groupby(_sorted(folder), key=lambda one: one.kind)
    }
    facts = {
        "path": str(folder.path),
        "limit_bytes": limit,
        "bytes": sum(_size(ones) for ones in by_kind.values()),
        "kinds": {
            kind: {
                "entries": len(ones),
                "bytes": _size(ones),
                "last_used": _date(max(one.used for one in ones)),
            }
            for kind, ones in by_kind.items()
        },
    }
    if json:
        print_json(facts)
        return 0
    out.print(f"{folder.path}: {_mib(_size(_sorted(folder)))} of {_mib(limit)}")
    for kind, ones in by_kind.items():
        last = _date(max(one.used for one in ones))
        out.print(f"  {kind:<10} {len(ones):>5}  {_mib(_size(ones)):>12}  last used {last}")
    hint("next: pseudocore cache clear removes all; every entry can be computed again")
    return 0


@cache.command
def clear(*, older_than: Days = 0.0, obsolete: Obsolete = False) -> int:
    """Remove entries; what is removed is computed again when it is needed."""
    gone = CacheFolder().clear(older_than=older_than * _DAY, obsolete=obsolete)
    out.print(f"removed {len(gone)} entries, {_mib(_size(gone))}")
    return 0


def _sorted(folder: CacheFolder) -> list[Entry]:
    return sorted(folder.entries(), key=lambda one: one.kind)


def _size(entries: list[Entry]) -> int:
    return sum(one.num_bytes for one in entries)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()
