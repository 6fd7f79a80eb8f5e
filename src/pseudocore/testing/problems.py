"""Small problems on the built-in digits, and checkpoints in memory."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Augment, Coreset, Dataset, Examples, Experts, ModelSpec
from pseudocore.data import digits, preprocessing
from pseudocore.models.convnet import ConvNetWide
from pseudocore.models.dense import MLP
from pseudocore.training.experts import Training, train

PER_CLASS = 12
"""Training images of each digit."""
NUM_THETAS = 12
"""Of the reference of a small problem."""
NUM_EXPERTS, NUM_EPOCHS = 2, 4
"""Of the experts of a small problem."""


def few_digits(*, imbalanced: bool = False) -> Dataset:
    """Twelve training images of each digit, or three to twelve, and forty test images, in new
    tensors.
    """
    whole = digits()
    counts = [3 + label if imbalanced else PER_CLASS for label in range(10)]
    index = torch.cat(
        [(whole.train.y == label).nonzero().flatten()[:num] for label, num in enumerate(counts)]
    )
    return Dataset(
        "few-digits",
        Examples(whole.train.x[index], whole.train.y[index]),
        Examples(whole.test.x[:40], whole.test.y[:40]),
        10,
    )


def small_problem(
    *,
    model: ModelSpec | None = None,
    norm: Literal["instance", "batch", "none"] = "none",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    augment: Augment | None = None,
    experts: bool = False,
    imbalanced: bool = False,
    reference: bool = False,
    also: bool = False,
) -> Problem:
    """`few_digits` under a network, by default a `convnet-wide` of four and eight channels with
    this `norm`. With `experts`, two of them trained for four epochs on `few_digits` of equal
    classes. With `reference`, draws that stand in for those of the full-data posterior. With
    `also`, a second network with its own.
    """
    data, where = few_digits(imbalanced=imbalanced), torch.device(device)
    torch.backends.cudnn.deterministic = True  # a GPU gives the same bits twice only then
    problem = Problem(
        data,
        (model or ConvNetWide(width=4, norm=norm)).build(data.shape, data.num_classes),
        preprocessing.make("standard", data, device=where, dtype=dtype),
        device=where,
        dtype=dtype,
    )
    if experts:
        problem = replace(problem, experts=_experts(model, norm, dtype, device))  # type: ignore[arg-type]
    if reference:
        thetas = problem.model.init(Rng(0), num=NUM_THETAS, device=where, dtype=dtype)
        with torch.no_grad():
            each = problem.model.logits(thetas, problem.inputs(data.train.x)).log_softmax(-1)
        mean = each.logsumexp(0).log_softmax(-1)
        problem = replace(problem, reference=FewDraws(thetas, mean))
    if also:
        options: Any = {"dtype": dtype, "device": device, "reference": True}
        problem = replace(problem, also=(small_problem(model=MLP(width=4, depth=1), **options),))
    return replace(problem, augment=augment)


@dataclass(frozen=True, eq=False)
class FewDraws:
    """A reference that is no posterior: initial parameters."""

    thetas: Tensor
    train_log_probs: Tensor
    label: str = "initial parameters"
    diagnostics: Mapping[str, float] = field(default_factory=dict)


@functools.cache
def _experts(model: Any, norm: Any, dtype: torch.dtype, device: str) -> Experts:
    return train(
        small_problem(model=model, norm=norm, dtype=dtype, device=device),
        Training(lr=0.05, batch_size=16),
        num=NUM_EXPERTS,
        num_epochs=NUM_EPOCHS,
    )


Targets = Literal["labels", "probabilities", "outputs"]
"""Integer labels, distributions over classes, or real-valued last-layer outputs."""


def small_coreset(
    problem: Problem, targets: Targets = "labels", *, weighted: bool = False
) -> Coreset:
    """Every fourth training image, of weight 1 or of a random weight."""
    x, labels = problem.data.train.x[::4].float() / 255, problem.data.train.y[::4]
    one_hot = torch.eye(problem.num_classes)[labels]
    y = {"labels": labels, "probabilities": 0.9 * one_hot + 0.01, "outputs": one_hot - 0.1}[targets]
    weight = 0.1 + 2 * Rng(0).uniform(len(x)) if weighted else torch.ones(len(x))
    learned = {"logit_scale": 5.0, "prior_variance": 0.02, "ridge": 0.05}
    provenance = {"posterior": learned} if targets == "outputs" else {}
    return Coreset(x, y, weight, provenance=provenance)


class MemoryCheckpoints:
    """Checkpoints in memory, as copies; starts empty, or from the checkpoints given."""

    def __init__(self, *saved: tuple[int, dict[str, Tensor]]) -> None:
        self.saved = list(saved)

    def load(self) -> tuple[int, dict[str, Tensor]] | None:
        return self.saved[-1] if self.saved else None

    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        self.saved.append((step, {name: value.clone() for name, value in tensors.items()}))

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.saved]
