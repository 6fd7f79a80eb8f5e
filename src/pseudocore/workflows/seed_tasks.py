"""Seeds of an evaluation by the workers of an engine."""

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pseudocore import engine
from pseudocore.core import config
from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.types import Inference
from pseudocore.data import Reading, read
from pseudocore.engine import Engine, Item
from pseudocore.evaluation.evaluate import Extras, assess
from pseudocore.inference.full_posterior import FullPosterior
from pseudocore.objectives.multiformation import decoded
from pseudocore.store.coreset_file import load_coreset
from pseudocore.store.files import decode_json, encode_json, read_regular, writing
from pseudocore.workflows import references
from pseudocore.workflows.arguments import coreset_of, problem_of
from pseudocore.workflows.on_engine import FOLDER, refuse_objects


def score_seed(options: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    """Score one seed of an inference on a coreset."""
    record = _Record()
    score = _scorer(encode_json(options, sort_keys=True))
    score(range(seed, seed + 1), record)
    return dict(record.of[seed])


class _Record:
    """A `Kept` that holds what is saved."""

    def __init__(self) -> None:
        self.of: dict[int, Mapping[str, Any]] = {}

    def load(self, seed: int) -> None:
        return None

    def save(self, seed: int, result: Mapping[str, Any]) -> None:
        self.of[seed] = result


@functools.lru_cache(1)
def _scorer(text: str) -> Callable[[range, _Record], Any]:
    """The latest is kept for a worker's next seed."""
    options = decode_json(text)
    coreset, changes = load_coreset(options["coreset"]), options["changes"]
    problem = problem_of(coreset, options["data"], options["device"], None, changes)
    if problem.data.fingerprint != options["fingerprint"]:
        raise RunError(
            f"a worker reads another {problem.data.name!r} than the process that asked it to (their"
            " fingerprints differ)",
            code="other-data",
        )
    inference = config.build(
        inferences[options["inference"]].make, options["options"], what=options["inference"]
    )
    full = None
    if options["reference"] is not None:
        full = references.load(options["reference"], problem).predictions(problem.data.test.x)
    extras = Extras(
        options["severities"],
        None if options["ood"] is None else read(options["ood"], Reading()),
        options["num_robust"],
        options["published"],
        full=full,
    )
    shown = decoded(problem, coreset) if coreset.is_encoded else coreset
    return lambda seeds, record: assess(
        inference, problem, shown, seeds, extras, lambda seed, metrics: None, record
    )


class ScoredElsewhere:
    """A `Kept` of seeds that the workers of an engine score; the same bits on all of them."""

    def __init__(
        self, chosen: Engine, folder: str | Path | None, seeds: range, **what: Any
    ) -> None:
        self._found: dict[int, Mapping[str, Any]] = {}
        self._coming = scored_seeds(chosen, folder, seeds, **what)

    def load(self, seed: int) -> Mapping[str, Any]:
        """A seed's scores, when they are there."""
        while seed not in self._found:
            number, scores = next(self._coming)
            self._found[number] = scores
        return self._found[seed]

    def save(self, seed: int, result: Mapping[str, Any]) -> None:
        pass


def scored_seeds(
    chosen: Engine,
    folder: str | Path | None,
    seeds: Iterable[int],
    *,
    coreset: Any,
    problem: Problem,
    inference: Inference,
    full: FullPosterior | None,
    objects: Mapping[str, Any],
    data: Any,
    ood: Any,
    **options: Any,
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Seeds and their scores, by the workers of an engine; the same bits on all of them."""
    names = {"data": data, "ood": ood, **objects}
    refuse_objects({name: not isinstance(one, str | Path | None) for name, one in names.items()})
    source = Path(coreset) if isinstance(coreset, str | Path) else None
    if folder is None:
        if source is None:
            raise ConfigError(
                "the workers of an engine need a folder for what they measure; name it"
                " (engine_folder), or give the coreset as a path",
                code="engine-needs-folder",
            )
        folder = (source if source.is_dir() else source.parent) / FOLDER
    work = Path(folder)
    with writing(work):
        work.mkdir(parents=True, exist_ok=True)
    reference = None
    if full is not None:
        reference = _kept(work, "reference", lambda path: references.save(path, full))
    shared = {
        **options,
        "coreset": _kept(work, "coreset", coreset_of(coreset).save),
        "fingerprint": problem.data.fingerprint,
        "inference": inferences.name_of(inference),
        "options": config.to_dict(inference),
        "reference": reference,
        "data": None if data is None else str(data),
        "ood": None if ood is None else str(ood),
    }
    items = [Item(shared, seed) for seed in seeds]
    for one in engine.map(score_seed, items, folder=work, engine=chosen):
        yield one.item.seed, one.result


def _kept(work: Path, name: str, save: Callable[[Path], None]) -> str:
    """A file for the workers, named by its content, so that equal items are of equal files."""
    path = work / f"{name}.safetensors"
    save(path)
    digest = hashlib.blake2b(read_regular(path), digest_size=10).hexdigest()
    with writing(work):
        path = path.replace(work / f"{name}-{digest}.safetensors")
    return str(path.resolve())
