"""Measuring what a distilled set is worth beyond its labels and its augmentation."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pseudocore.assembly import Data, described
from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Inference
from pseudocore.data import DSA
from pseudocore.evaluation.metrics import in_batches, measure, spreads
from pseudocore.evaluation.ranking import Accuracies, Ranking, scores
from pseudocore.inference.full_posterior import FullPosterior
from pseudocore.objectives.multiformation import decoded
from pseudocore.runtime.shortage import advising
from pseudocore.workflows import references
from pseudocore.workflows.arguments import coreset_of, inference_for, problem_of
from pseudocore.workflows.reduction import ReduceResult


def ranking(
    coreset: Coreset | ReduceResult | str | Path,
    data: Data | None = None,
    *,
    inference: str | Inference = "sgd",
    model: Any = None,
    augment: str | None = None,
    weight: float = 0.5,
    reference: references.Source = None,
    seeds: int = 3,
    first_seed: int = 0,
    device: str = "auto",
    setup: Mapping[str, Any] | None = None,
    on_seed: Callable[[int, dict[str, float]], None] = lambda seed, scores: None,
    **options: Any,
) -> Ranking:
    """Score a distilled set with the effect of soft labels (LRS) and of augmentation (ARS) taken
    out, as DD-Ranking does; definitions are in `evaluation/ranking.py`.

    Args:
        coreset: A coreset, what `reduce` or `read_distilled` returned, or a path.
        data: The data set. Defaults to the coreset's own.
        inference: What trains on a set, a name or an object. The last iterate counts.
        model: The network, as in `reduce`. Defaults to the coreset's own.
        augment: Augmentation that belongs to the set, such as "color_crop_cutout_flip_scale_rotate".
            Defaults to none, and no ARS.
        weight: Of the improvement over random in the LRS, and of augmented training in the ARS.
        reference: Inference on all data, as in `fidelity`: its accuracy is what hard labels are to
            recover, and its predictions are the soft labels of random examples. Defaults to
            `inference` itself.
        seeds: Trainings of each kind.
        first_seed: Seed of the first.
        device: "auto", "cpu" or "cuda".
        setup: Other changes of the coreset's setup.
        on_seed: Called with each seed and its scores.
        **options: Fields of the inference, when it is given by name.

    Returns:
        The scores and the accuracies behind them.
    """
    if not 0 <= weight <= 1:
        raise ConfigError(f"weight = {weight} must lie in 0..1", code="invalid-options")
    if seeds < 1:
        raise ConfigError(f"seeds = {seeds} must be at least 1", code="invalid-options")
    began, (fields, network) = time.monotonic(), described(model)
    points = coreset_of(coreset)
    fitted = inference_for(points, inference, options)
    problem = problem_of(coreset, data, device, network, {**dict(setup or {}), **fields})
    if problem.data.task == "regression":
        message = f"accuracies of classes are ranked, and {problem.data.name!r} is a regression"
        raise ConfigError(message, code="needs-classes", data=problem.data.name)
    if augment is not None and not problem.data.is_images:
        message = f"augment = {augment!r} needs images, and {problem.data.name!r} has features"
        raise ConfigError(message, code="augmentation-needs-images")
    augmented = None if augment is None else replace(problem, augment=DSA(augment))
    points = decoded(problem, points) if points.is_encoded else points
    full = references.beside(problem, fitted, reference)
    y = problem.data.test.y
    right = [float((one.argmax(1) == y).double().mean()) for one in full.log_probs(problem.data.test.x)]  # fmt: skip
    all_hard, found = sum(right) / len(right), list[dict[str, float]]()
    with advising(fitted):
        for seed in range(first_seed, first_seed + seeds):
            one = _one(fitted, problem, augmented, points, full, all_hard, seed)
            found.append(scores(one, weight))
            on_seed(seed, found[-1])
    return Ranking(
        data=problem.data.name,
        inference=inferences.name_of(fitted),
        options=config.to_dict(fitted),
        model=problem.model.describe(),
        augment=augment,
        weight=weight,
        labels="soft" if points.is_soft else "hard",
        reference=full.label,
        seeds=seeds,
        metrics=spreads(found),
        per_seed=[{"seed": seed, **one} for seed, one in enumerate(found, start=first_seed)],
        seconds=round(time.monotonic() - began, 3),
    )


def random_like(problem: Problem, points: Coreset, full: FullPosterior | None, rng: Rng) -> Coreset:
    """As many training examples of each class as a set has, with soft labels if it has some."""
    wanted = torch.bincount(points.labels, minlength=problem.num_classes).tolist()
    drawn = [
        own[rng(label).permutation(len(own))[:num]]
        for label, (own, num) in enumerate(zip(problem.class_indices, wanted, strict=True))
    ]
    index = torch.cat(drawn)
    chosen = problem.subset(index, torch.full((len(index),), problem.num_train / len(index)))
    if not points.is_soft or full is None:
        return chosen
    return replace(chosen, y=full.train_log_probs[index].exp().cpu())


def _one(
    fitted: Inference,
    problem: Problem,
    augmented: Problem | None,
    points: Coreset,
    full: FullPosterior,
    all_hard: float,
    seed: int,
) -> Accuracies:
    random = random_like(problem, points, full, Rng(seed)("random"))

    def accuracy(where: Problem, trained_on: Coreset) -> float:
        predict = fitted.fit(where, trained_on, Rng(seed)("infer"))
        return measure(predict, in_batches(where.data.test), where.num_classes).accuracy

    own = accuracy(problem, points)
    return Accuracies(
        all_hard,
        accuracy(problem, replace(points, y=points.labels)) if points.is_soft else own,
        own,
        accuracy(problem, random),
        None if augmented is None else accuracy(augmented, points),
        None if augmented is None else accuracy(augmented, random),
    )
