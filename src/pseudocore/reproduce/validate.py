"""Whether a stored result is what a plan and a page expect of it: people edit files, and disks
damage them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pseudocore.reproduce import digits as own
from pseudocore.reproduce.recipes import TRUE

if TYPE_CHECKING:
    from pseudocore.reproduce.results import Result


_TEXTS = ("table", "cell", "preset", "status", "reason", "note", "hardware", "date")
_TABLES = ("settings", "evaluations", "cost", "changes", "versions")


def wrong_entry(result: "Result", *, finished: bool) -> str | None:
    """The name of the first entry that is not what it should be; a finished result has numbers
    besides.
    """
    entries = vars(result)
    wrong = [name for name in _TEXTS if not isinstance(entries[name], str)]
    wrong += [name for name in _TABLES if not isinstance(entries[name], Mapping)]
    wrong += [name for name in ("num", "num_coresets") if type(entries[name]) is not int]
    wrong += ["seconds"] * (not _is_number(result.seconds)) + ["commit"] * (
        not isinstance(result.commit, str | None)
    )
    if wrong:
        return wrong[0]
    made = result.settings.get("config", {})
    if not isinstance(made, Mapping) or not isinstance(made.get("options", {}), Mapping):
        return "settings.config"
    wrong = [f"cost.{name}" for name, part in result.cost.items() if not _is_cost(part)]
    wrong += [
        f"evaluations.{name}" for name, one in result.evaluations.items() if not _is_evaluation(one)
    ]
    if finished:
        wrong += ["num"] * (result.num < 1) + [f"evaluations.{TRUE}"] * (
            result.table != own.NAME and TRUE not in result.evaluations
        )
    return wrong[0] if wrong else None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_cost(part: Any) -> bool:
    return (
        isinstance(part, Mapping)
        and _is_number(part.get("seconds"))
        and _is_number(part.get("peak_mib") or 0)
    )


def _is_evaluation(one: Any) -> bool:
    metrics = one.get("metrics") if isinstance(one, Mapping) else None
    return (
        isinstance(metrics, Mapping)
        and isinstance(one.get("inference"), str)
        and all(map(_is_score, metrics.values()))
    )


def _is_score(score: Any) -> bool:
    return (
        isinstance(score, Mapping)
        and set(score) == {"mean", "sd"}
        and _is_number(score["mean"])
        and (score["sd"] is None or _is_number(score["sd"]))
    )
