"""Seeds of an evaluation by the workers of an engine."""

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pseudocore import engine
from pseudocore.core import config
from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.types import Coreset, Inference
from pseudocore.data import Reading, read
from pseudocore.engine import Done, Engine, Item
from pseudocore.evaluation.evaluate import Extras, Kept, assess
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
    coreset, problem, inference = _asked(options)
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


def fit_reference(options: Mapping[str, Any], seed: int, folder: Path) -> None:
    """Fit all data once, for a reference; the fit goes into the cache."""
    _, problem, inference = _asked(options)
    references.fit(problem, inference, options["source"], options["number"])


def _asked(options: Mapping[str, Any]) -> tuple[Coreset, Problem, Inference]:
    """Coreset, problem and inference of a worker, of the data that the asking process has."""
    coreset, changes = load_coreset(options["coreset"]), options["changes"]
    problem = problem_of(coreset, options["data"], options["device"], None, changes)
    if problem.data.fingerprint != options["fingerprint"]:
        raise RunError(
            f"a worker reads another {problem.data.name!r} than the process that asked it to (their"
            " fingerprints differ)",
            code="other-data",
        )
    inference: Inference = config.build(
        inferences[options["inference"]].make, options["options"], what=options["inference"]
    )
    return coreset, problem, inference


class Elsewhere:
    """An evaluation whose fits are made by the workers of an engine; the same bits on all."""

    def __init__(
        self,
        chosen: Engine,
        folder: str | Path | None,
        *,
        coreset: Any,
        problem: Problem,
        inference: Inference,
        objects: Mapping[str, Any],
        data: Any,
        changes: Mapping[str, Any],
        device: str,
    ) -> None:
        named = {"data": data, **objects}
        refuse_objects(
            {name: not isinstance(one, str | Path | None) for name, one in named.items()}
        )
        self._engine, self._work = chosen.on(device), _work(folder, coreset)
        self._shared = {
            "coreset": _kept(self._work, "coreset", coreset_of(coreset).save),
            "fingerprint": problem.data.fingerprint,
            "inference": inferences.name_of(inference),
            "options": config.to_dict(inference),
            "data": None if data is None else str(data),
            "changes": dict(changes),
            "device": device,
        }

    def fit_reference(self, source: references.Source) -> None:
        """Make the fits of the reference that `references.beside` finds in the cache then."""
        if source is not None and str(source) not in inferences:
            return
        name = None if source is None else str(source)
        items = [
            Item({**self._shared, "source": name, "number": number})
            for number in range(references.NUM_FITS)
        ]
        work = self._work / "reference"
        for _ in engine.map(
            fit_reference, items, folder=work, engine=self._engine, again=True, keep=False
        ):
            pass

    def seeds(self, seeds: range, full: FullPosterior | None, **options: Any) -> Kept:
        """The scores of seeds, which begin to be measured when the first is asked for."""
        reference = None
        if full is not None:
            reference = _kept(self._work, "reference", lambda path: references.save(path, full))
        shared = {**self._shared, **options, "reference": reference}
        items = [Item(shared, seed) for seed in seeds]
        options = {"folder": self._work, "engine": self._engine, "keep": False}
        return _Coming(engine.map(score_seed, items, **options), len(items))


class _Coming:
    """A `Kept` of seeds as they come."""

    def __init__(self, coming: Iterator[Done], num: int) -> None:
        self._coming, self._num = coming, num
        self._found: dict[int, Mapping[str, Any]] = {}

    def load(self, seed: int) -> Mapping[str, Any]:
        """A seed's scores, when they are there."""
        while seed not in self._found:
            one = next(self._coming)
            self._found[one.item.seed] = one.result
            if len(self._found) == self._num:
                next(self._coming, None)  # which ends it
        return self._found[seed]

    def save(self, seed: int, result: Mapping[str, Any]) -> None:
        pass


def _work(folder: str | Path | None, coreset: Any) -> Path:
    if folder is None:
        if not isinstance(coreset, str | Path):
            raise ConfigError(
                "the workers of an engine need a folder for what they measure; name it"
                " (engine_folder), or give the coreset as a path",
                code="engine-needs-folder",
            )
        source = Path(coreset)
        folder = (source if source.is_dir() else source.parent) / FOLDER
    work = Path(folder)
    with writing(work):
        work.mkdir(parents=True, exist_ok=True)
    return work


def _kept(work: Path, name: str, save: Callable[[Path], None]) -> str:
    """A file for the workers, named by its content, so that equal items are of equal files."""
    path = work / f"{name}.safetensors"
    save(path)
    digest = hashlib.blake2b(read_regular(path), digest_size=10).hexdigest()
    with writing(work):
        path = path.replace(work / f"{name}-{digest}.safetensors")
    return str(path.resolve())
