"""Evaluations that are resumed: their finished seeds in a file, under all that they depend on."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pseudocore.core import config
from pseudocore.core.errors import RunError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.types import Coreset, Inference
from pseudocore.evaluation.evaluate import Extras
from pseudocore.inference.full_posterior import digest
from pseudocore.runtime import profiling
from pseudocore.store.seeds_file import SeedsFile
from pseudocore.workflows.references import describe_problem, is_describable


class KeptSeeds:
    """`evaluation.evaluate.Kept` in a file, with what the seeds have cost over all processes."""

    def __init__(self, file: SeedsFile, costs: profiling.Costs, began: float) -> None:
        self._file, self._costs = file, costs
        self.began = began - file.seconds
        costs.update(profiling.combined(costs, profiling.from_table(file.cost)))

    def load(self, seed: int) -> Mapping[str, Any] | None:
        return self._file.load(seed)

    def save(self, seed: int, result: Mapping[str, Any]) -> None:
        seconds = time.monotonic() - self.began
        with contextlib.suppress(RunError):  # a full disk costs the resuming, not the numbers
            self._file.save(seed, result, seconds, profiling.to_table(self._costs))


def kept_seeds(
    path: Path,
    problem: Problem,
    coreset: Coreset,
    inference: Inference,
    extras: Extras,
    costs: profiling.Costs,
    began: float,
) -> KeptSeeds | None:
    """The seeds of this evaluation in a file; None where part of it is code of others, which may
    change under the same name.
    """
    if not is_describable(problem):
        return None
    from pseudocore import __version__

    full = extras.full
    about = {
        "points": [digest(part.cpu()) for part in (coreset.x, coreset.y, coreset.weight)],
        "problem": describe_problem(problem),
        "arithmetic": [str(problem.dtype), problem.precision, problem.device.type],
        "inference": [inferences.name_of(inference), config.to_dict(inference)],
        "extras": {
            "severities": list(extras.severities),
            "num_robust": extras.num_robust,
            "ood": None if extras.ood is None else extras.ood.fingerprint,
            "published": extras.published,
            "full": None if full is None else [digest(part) for part in full.log_probs],
        },
        "versions": [torch.__version__, __version__],
    }
    return KeptSeeds(SeedsFile(path, about), costs, began)
