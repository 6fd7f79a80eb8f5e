"""Cached results are found by declared versions, not by source text: this test fails when the code
that computes them has changed, so that raising the version cannot be forgotten.

`python tests/unit/store/test_cache_versions.py` records the code as it is now.
"""

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pseudocore.store.cache import VERSIONS

SOURCE = Path(__file__).resolve().parents[3] / "src" / "pseudocore"
RECORD = Path(__file__).with_name("cached_code.json")

NETWORKS = ["models/*.py", "data/augment.py", "data/preprocessing.py"]
ROOTS = {
    "network": ["training/pretrain.py", *NETWORKS],
    "reference": ["workflows/references.py", "inference/*.py", *NETWORKS],
    "features": ["features/*.py"],
}
"""Where the computation of each kind begins; what these import belongs to it too."""

CARRIERS = (
    *("core/__init__", "core/budget", "core/config", "core/contract", "core/dataset"),
    *("core/errors", "core/optional", "core/protocols", "core/registry", "core/types", "store/"),
    *("runtime/__init__", "runtime/profiling", "runtime/reporting", "runtime/stopping"),
    *("models/__init__", "inference/__init__", "features/__init__"),
    *("data/reading", "data/arrays", "data/limits", "data/sources"),
)
"""Modules that carry, check, keep and report numbers, and compute none."""


def test_versions_are_raised_when_code_changes() -> None:
    now, kept = _record(), json.loads(RECORD.read_text())
    for kind, code in now.items():
        before = kept.get(kind, {"version": 0, "modules": {}})
        changed = sorted(
            name
            for name in {*code["modules"], *before["modules"]}
            if code["modules"].get(name) != before["modules"].get(name)
        )
        advice = (
            f"{', '.join(changed)}: code of cached results ({kind}) changed. If it now computes other"
            f' numbers, raise VERSIONS["{kind}"] in store/cache.py, or old entries will be taken for'
            f" new ones. Then run: python {Path(__file__).relative_to(Path.cwd())}"
        )
        assert not changed, advice
        assert code["version"] == before["version"], f"run: python {Path(__file__)}"


def test_only_what_computes_counts(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text('"""Doc."""\n\ndef f(x):\n    """Doc."""\n    return x + 1  # note\n')
    other.write_text('"""Text."""\n\n\ndef f(x):\n    return (x +\n        1)\n')
    assert _digest(one) == _digest(other)
    other.write_text("def f(x):\n    return x + 2\n")
    assert _digest(one) != _digest(other)


def _record() -> dict[str, Any]:
    return {
        kind: {
            "version": VERSIONS[kind],
            "modules": {
                path.relative_to(SOURCE).as_posix(): _digest(path)
                for path in sorted(_behind(path for root in roots for path in SOURCE.glob(root)))
            },
        }
        for kind, roots in ROOTS.items()
    }


def _behind(paths: Iterable[Path]) -> set[Path]:
    """The modules and all that they import, without carriers."""
    found: set[Path] = set()
    ahead = list(paths)
    while ahead:
        path = ahead.pop()
        if path not in found and not path.relative_to(SOURCE).as_posix().startswith(CARRIERS):
            found.add(path)
            ahead += _imported(path)
    return found


def _imported(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            head, *rest = name.split(".")
            if (
                head == "pseudocore"
                and (file := SOURCE.joinpath(*rest).with_suffix(".py")).exists()
            ):
                yield file


def _digest(path: Path) -> str:
    """Of a module's syntax tree without docstrings, the same in every version of Python."""
    tree = repr(_plain(ast.parse(path.read_text())))
    return hashlib.blake2b(tree.encode(), digest_size=6).hexdigest()


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        statements = [one for one in node if not _is_text(one)]
        return [_plain(one) for one in statements]
    if not isinstance(node, ast.AST):
        return node
    fields = [(name, _plain(value)) for name, value in ast.iter_fields(node)]
    return type(node).__name__, [(name, value) for name, value in fields if value not in (None, [])]


def _is_text(node: Any) -> bool:
    """A docstring, of a module, class, function or field."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


if __name__ == "__main__":
    RECORD.write_text(json.dumps(_record(), indent=1) + "\n")
