"""What an evaluation has measured so far, seed by seed, so that a killed one is resumed."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pseudocore.core.errors import ArtifactError
from pseudocore.store.files import (
    decode_json,
    encode_json,
    read_json,
    refuse_link,
    write_json,
    writing,
)


class SeedsFile:
    """Results by seed in a JSON file, which belongs to one evaluation, known by its description.

    A file that is missing, damaged or of another evaluation counts as absent and is replaced.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path = path
        self.seconds = 0.0
        """What the results took, over all processes."""
        self.cost: dict[str, Any] = {}
        """The same by stage, as `runtime.profiling.to_table` writes it."""
        self._about = decode_json(encode_json(about))
        self._seeds: dict[str, dict[str, Any]] = {}
        try:
            found = read_json(path)
        except ArtifactError:
            return
        kinds = {"seconds": float, "cost": dict, "seeds": dict}
        is_whole = all(isinstance(found.get(name), kind) for name, kind in kinds.items())
        if is_whole and found.get("about") == self._about and 0 <= found["seconds"] < math.inf:
            self.seconds, self.cost, self._seeds = found["seconds"], found["cost"], found["seeds"]

    def load(self, seed: int) -> dict[str, Any] | None:
        """What was measured for a seed, if it was."""
        return self._seeds.get(str(seed))

    def save(
        self, seed: int, result: Mapping[str, Any], seconds: float, cost: Mapping[str, Any]
    ) -> None:
        """Keep a seed's results, and what all of them took."""
        self._seeds[str(seed)] = dict(result)
        refuse_link(self.path.parent)
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        entries = {"about": self._about, "seconds": seconds, "cost": cost, "seeds": self._seeds}
        write_json(self.path, entries)
