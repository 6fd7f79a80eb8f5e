"""The smallest coreset whose predictions are within a bound of full-data inference.

Budgets are tried in ascending order, every method at each, until a coreset meets the bound on
held-out training inputs (`evaluation/size.py`). The test set takes no part; the answer is measured
on it once, after the choice. All methods are held to one standard: the same inference on each
coreset and on all data, with the same likelihood and prior. Where those of a last layer are fitted,
they are fitted to all data, once.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pseudocore.assembly import Data, Reduction, Setup, build, described, reading, resolve
from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.likelihood import check_task
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences, methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Inference
from pseudocore.data import read
from pseudocore.evaluation.fidelity import PREFIX, point_distances
from pseudocore.evaluation.size import Row, Size, chosen, mean_distances, upper_bound
from pseudocore.inference.last_layer_vi import LastLayerVI, with_settings
from pseudocore.objectives.multiformation import decoded
from pseudocore.store.run_folder import Run
from pseudocore.store.size_folder import SizeFolder
from pseudocore.workflows import references
from pseudocore.workflows.fidelity import NUM_HELD_OUT, Inputs, Measured, fit_and_measure
from pseudocore.workflows.reduction import run_reduction

METHODS = ("uniform", "herding", "vbpc", "psvi")
BUDGETS = (1, 2, 5, 10, 20, 50)
"""Points per class."""

OnRow = Callable[[Row, int, int], None]
"""Called after each row with it, how many are done and how many there are at most."""


def size(
    data: Data,
    *,
    within: float,
    methods: Sequence[str] = METHODS,
    budgets: Sequence[int] = BUDGETS,
    model: Any = None,
    confidence: float = 0.9,
    inference: str | None = None,
    seeds: int = 2,
    seed: int = 0,
    out: str | Path | None = None,
    every: bool = False,
    method_options: Mapping[str, Mapping[str, Any]] | None = None,
    device: str = "auto",
    on_row: OnRow = lambda row, done, total: None,
    on_skip: Callable[[str, str], None] = lambda method, why: None,
    **setup: Any,
) -> Size:
    """Find the smallest coreset whose KL to full-data inference is within a bound.

    Args:
        data: A name, a path, or anything else that `dataset` takes.
        within: The bound on KL(full ‖ coreset), in nats an input.
        methods: Names of the methods to try.
        budgets: Points per class to try, in ascending order.
        model: The network, as in `reduce`.
        confidence: Of the bound, over held-out inputs and seeds.
        inference: A name, for coresets and all data alike. Defaults to the best sampler affordable.
        seeds: Coresets of each method and budget.
        seed: The first of their seeds, and that of the reference.
        out: A folder for the runs, the answer and the curve; the same call resumes there. Defaults
            to none.
        every: Try all budgets, for the whole curve, instead of stopping at the first that suffices.
        method_options: Options of methods by name, such as {"vbpc": {"num_steps": 300}}.
        device: "auto", "cpu" or "cuda".
        on_row: Called after each method and budget.
        on_skip: Called with a method that cannot be used here, and why.
        **setup: Fields of the setup (`preprocess`, `prior_scale`, ...).

    Returns:
        The answer, and every method and budget that was tried.
    """
    _check(within, methods, budgets, confidence, seeds)
    began = time.monotonic()
    network_fields, network = described(model)
    made, given = config.build(Setup, {**setup, **network_fields}, what="setup"), None
    if isinstance(data, str | Path):
        made = dataclasses.replace(made, data=str(data))
    else:
        given = read(data, reading(made))
        made = dataclasses.replace(made, data=given.name)
    problem = build(made, given, device=device, network=network)
    check_task(size, "size", problem.task)
    search = _Search(
        problem,
        resolve(made, problem.data),
        within,
        confidence,
        inference or references.affordable(problem),
        range(seed, seed + seeds),
        dict(method_options or {}),
        out,
    )
    search.begin(methods, budgets)
    rows, skipped = search.rows(methods, sorted(set(budgets)), every, on_row, on_skip)
    if not rows:
        why = "; ".join(f"{method}: {reason}" for method, reason in skipped.items())
        raise ConfigError(f"no method could be used ({why})", code="no-method", skipped=skipped)
    answer = chosen(rows)
    coreset, test_kl = search.answer(answer)
    result = Size(
        data=problem.data.name,
        within=within,
        confidence=confidence,
        met=answer.meets,
        answer=answer,
        test_kl=test_kl,
        floor_kl=search.floor_kl,
        rows=rows,
        skipped=skipped,
        reference=search.full.label,
        seeds=seeds,
        seconds=round(time.monotonic() - began, 3),
        coreset=coreset,
    )
    if search.folder is not None:
        search.folder.finish(coreset, result.to_dict())
    return result


@dataclass(eq=False)
class _Search:
    """What the rows share: the problem, the reference, the held-out inputs and the folder."""

    problem: Problem
    setup: Setup
    within: float
    confidence: float
    inference: str
    seeds: range
    options: Mapping[str, Mapping[str, Any]]
    out: str | Path | None
    coresets: dict[tuple[str, int, int], Coreset] = field(default_factory=dict)
    """By method, points per class and seed."""

    @cached_property
    def fitted(self) -> Inference:
        """On coresets with the options of a reference: equal effort on both sides."""
        own = references.OPTIONS.get(self.inference, {})
        made: Inference = config.build(inferences[self.inference].make, own, what=self.inference)
        return made

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Those of a last layer, fitted to all data."""
        if not isinstance(self.fitted, LastLayerVI):
            return {}
        everything = self.problem.subset(torch.arange(self.problem.num_train))
        return self.fitted.settings(self.problem, everything, Rng(self.seeds.start)("settings"))

    def begin(self, methods: Sequence[str], budgets: Sequence[int]) -> None:
        """Make or read the reference; claim the folder."""
        asked = {
            "setup": config.to_dict(self.setup),
            "data_fingerprint": self.problem.data.fingerprint,
            "within": self.within,
            "confidence": self.confidence,
            "methods": list(methods),
            "budgets": list(budgets),
            "inference": self.inference,
            "seeds": list(self.seeds),
            "options": {name: dict(own) for name, own in self.options.items()},
        }
        self.folder = None if self.out is None else SizeFolder(self.out, asked)
        if self.folder is not None and self.folder.reference.exists():
            self.full = references.load(self.folder.reference, self.problem)
        else:
            self.full = references.reference(
                self.problem, self.inference, seed=self.seeds.start, **self.settings
            )
            if self.folder is not None:
                references.save(self.folder.reference, self.full)
        data = self.problem.data.train
        index = Rng(self.seeds.start)("held-out").permutation(len(data.y))[:NUM_HELD_OUT]
        self.index = index.sort().values
        self.inputs = Inputs(data.x[self.index], data.y[self.index])
        self.predictions = self.full.predictions(self.inputs.x)
        first, second = self.predictions.log_probs
        both = (point_distances(first, second)["kl"], point_distances(second, first)["kl"])
        self.floor_kl = float(torch.stack(both).mean())

    def rows(
        self,
        methods: Sequence[str],
        budgets: Sequence[int],
        every: bool,
        on_row: OnRow,
        on_skip: Callable[[str, str], None],
    ) -> tuple[list[Row], dict[str, str]]:
        """Every method at each budget, up to the first at which one meets the bound."""
        found: list[Row] = []
        skipped: dict[str, str] = {}
        total = len(methods) * len(budgets)
        for number, per_class in enumerate(budgets):
            for place, method in enumerate(methods):
                if method in skipped:
                    continue
                try:
                    found.append(self._row(method, per_class, every))
                except ConfigError as error:
                    skipped[method] = str(error)
                    on_skip(method, str(error))
                    continue
                on_row(found[-1], number * len(methods) + place + 1, total)
            if not every and any(row.meets for row in found):
                break
        return found, skipped

    def _row(self, method: str, per_class: int, every: bool) -> Row:
        """Measured on one seed after another, until the mean over all of them is above the bound
        even if those to come were perfect; on all of them with `every`.
        """
        if self.folder is not None and (known := self.folder.row(method, per_class)):
            row = Row(**known)
            if not every or len(row.kl_by_seed) == len(self.seeds):
                return row
        began, measured = time.monotonic(), list[Measured]()
        for seed in self.seeds:
            if not every and self._is_hopeless(measured):
                break
            coreset = self._coreset(method, per_class, seed)
            points = decoded(self.problem, coreset) if coreset.is_encoded else coreset
            measured.append(
                fit_and_measure(
                    self.fitted, self.problem, points, seed, self.inputs, self.predictions
                )
            )
        row = self._summary(method, per_class, measured, time.monotonic() - began)
        if self.folder is not None:
            self.folder.save_row(method, per_class, row._asdict())
        return row

    def _is_hopeless(self, measured: Sequence[Measured]) -> bool:
        """Whether the seeds so far alone take the mean over all above the bound."""
        total = sum(one.measures[PREFIX + "kl"] for one in measured)
        return total > self.within * len(self.seeds)

    def _summary(
        self, method: str, per_class: int, measured: Sequence[Measured], seconds: float
    ) -> Row:
        held_out = self._held_out(method, per_class, [one.seed for one in measured])
        each = [mean_distances(self.predictions.log_probs, one.log_probs) for one in measured]
        kl, tv, agreement = (
            torch.stack([one[name][held_out] for one in each]) for name in ("kl", "tv", "agreement")
        )
        by_seed = kl.mean(1).tolist()
        rng = Rng(self.seeds.start)("bootstrap", method, per_class)
        upper = upper_bound(kl, self.confidence, rng)
        return Row(
            method,
            per_class,
            len(self.coresets[method, per_class, self.seeds.start]),
            float(kl.mean()),
            upper,
            float(tv.mean()),
            float(agreement.mean()),
            by_seed,
            round(seconds, 3),
            upper <= self.within and len(measured) == len(self.seeds),
            self.seeds[by_seed.index(min(by_seed))],
        )

    def _held_out(self, method: str, per_class: int, seeds: Sequence[int]) -> torch.Tensor:
        """Which of the inputs are in none of these seeds' coresets."""
        is_free = torch.ones(len(self.index), dtype=torch.bool)
        for seed in seeds:
            indices = self.coresets[method, per_class, seed].indices
            if indices is not None:
                is_free &= ~torch.isin(self.index, indices.cpu())
        if not is_free.any():
            raise ConfigError(
                f"{method} at {per_class} per class holds every training point, so that none is"
                " left to measure on",
                code="nothing-held-out",
            )
        return is_free

    def _coreset(self, method: str, per_class: int, seed: int) -> Coreset:
        key = method, per_class, seed
        if key not in self.coresets:
            made = self._reduced(method, per_class, seed)
            self.coresets[key] = with_settings(made, self.settings)
        return self.coresets[key]

    def _reduced(self, method: str, per_class: int, seed: int) -> Coreset:
        options = {**self.options.get(method, {}), "per_class": per_class}
        built = config.build(methods[method].make, options, what=method)
        evaluate = {"inference": self.inference}
        reduction = Reduction(built, self.setup, seed, evaluate)
        if self.folder is None:
            outcome = run_reduction(reduction, self.problem)
        else:
            path = self.folder.run(method, per_class, seed)
            with Run.create(path, reduction.to_config(), resume=True) as run:
                if run.finished:
                    return run.coreset()
                outcome = run_reduction(reduction, self.problem, run)
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        if outcome.status != "finished":
            raise ConfigError(f"{outcome.status}: {outcome.reason}", code=outcome.status)
        return outcome.coreset

    def answer(self, row: Row) -> tuple[Coreset, float]:
        """The coreset of a row, with what was measured of it, and its KL on the test set."""
        coreset = self._coreset(row.method, row.per_class, row.seed)
        points = decoded(self.problem, coreset) if coreset.is_encoded else coreset
        test = Inputs(*self.problem.data.test)
        full = self.full.predictions(test.x)
        measured = fit_and_measure(self.fitted, self.problem, points, row.seed, test, full)
        about = {"reference": self.full.label, "inference": self.inference, "on": "test"}
        marked = coreset.with_provenance(fidelity={**about, "seeds": 1, **measured.measures})
        return marked, measured.measures[PREFIX + "kl"]


def _check(
    within: float, names: Sequence[str], budgets: Sequence[int], confidence: float, seeds: int
) -> None:
    wrong = {
        f"within = {within:g} must be above 0": not within > 0,
        "name at least one method": not names,
        "name at least one budget of 1 or more": not budgets or min(budgets) < 1,
        f"confidence = {confidence:g} must be between 0 and 1": not 0 < confidence < 1,
        f"seeds = {seeds} must be at least 1": seeds < 1,
    }
    if found := [sentence for sentence, is_wrong in wrong.items() if is_wrong]:
        raise ConfigError("; ".join(found), code="invalid-options", problems=found)
    for name in names:
        entry = methods[name]  # refuses an unknown one
        if "per_class" not in {option.name for option in config.options(entry.make)}:
            raise ConfigError(
                f"method {name!r} has no budget to search over", code="no-budget", method=name
            )
