"""The locked development environment: every package that `make test` and `make docs` name, at the
version of the constraints, with a hash.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements-dev.lock").read_text()


def _pinned(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", text, re.MULTILINE))


def test_the_lock_agrees_with_the_constraints() -> None:
    constraints, locked = _pinned((ROOT / "constraints.txt").read_text()), _pinned(LOCK)
    del constraints["torch"]  # its builds have indices of their own; nothing of it is locked
    assert {name: locked.get(name) for name in constraints} == constraints
    assert not [name for name in locked if re.match(r"torch$|triton|nvidia|cuda", name)]


def test_every_requirement_is_locked() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = table["optional-dependencies"]
    wanted = [*table["dependencies"], *extras["dev"], *extras["docs"], *extras["fuzz"]]
    for one in [text for text in wanted if text.startswith("pseudocore[")]:
        wanted.remove(one)
        wanted += [name for extra in one[11:-1].split(",") for name in extras[extra]]
    names = {re.match(r"[A-Za-z0-9._-]+", text)[0].lower() for text in wanted} - {"torch"}  # type: ignore[index]
    assert names <= set(_pinned(LOCK))


def test_every_package_has_a_hash() -> None:
    for entry in re.split(r"^(?=\S)", LOCK, flags=re.MULTILINE):
        if entry.strip() and not entry.startswith("#"):
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry[:80]
