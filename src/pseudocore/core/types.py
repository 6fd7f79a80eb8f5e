"""The values that flow between packages.

`Dataset -> Problem -> (method) -> Coreset -> (inference) -> Predict -> metrics`: each arrow is a
plain value. The protocols are those of `protocols`.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.utils.data import TensorDataset

from pseudocore.core.contract import Contract as Contract
from pseudocore.core.contract import DataSpec as DataSpec
from pseudocore.core.dataset import Dataset as Dataset
from pseudocore.core.dataset import Embedded as Embedded
from pseudocore.core.dataset import Examples as Examples
from pseudocore.core.dataset import feature_names
from pseudocore.core.errors import DataError
from pseudocore.core.likelihood import Task
from pseudocore.core.protocols import AssumesInference as AssumesInference
from pseudocore.core.protocols import Augment as Augment
from pseudocore.core.protocols import Budgeted as Budgeted
from pseudocore.core.protocols import Cache as Cache
from pseudocore.core.protocols import Diagnosed as Diagnosed
from pseudocore.core.protocols import Experts as Experts
from pseudocore.core.protocols import HasMoments as HasMoments
from pseudocore.core.protocols import Inference as Inference
from pseudocore.core.protocols import Iterative as Iterative
from pseudocore.core.protocols import LearnsTotalWeight as LearnsTotalWeight
from pseudocore.core.protocols import LogDensity as LogDensity
from pseudocore.core.protocols import Method as Method
from pseudocore.core.protocols import Model as Model
from pseudocore.core.protocols import ModelSpec as ModelSpec
from pseudocore.core.protocols import NeedsExperts as NeedsExperts
from pseudocore.core.protocols import NeedsReference as NeedsReference
from pseudocore.core.protocols import Predict as Predict
from pseudocore.core.protocols import PredictsByDraw as PredictsByDraw
from pseudocore.core.protocols import Preprocess as Preprocess
from pseudocore.core.protocols import Reference as Reference
from pseudocore.core.protocols import Restorable as Restorable
from pseudocore.core.protocols import Sampler as Sampler
from pseudocore.core.protocols import Selector as Selector
from pseudocore.core.protocols import SelectsInRounds as SelectsInRounds
from pseudocore.core.protocols import SelectsSettings as SelectsSettings
from pseudocore.core.protocols import ServesNetworks as ServesNetworks
from pseudocore.core.protocols import Statistics as Statistics
from pseudocore.core.protocols import Uncertainty as Uncertainty

ORDINARY = (1e-12, 1e12)
"""Between these lie numbers that are learned with the points."""


@dataclass(frozen=True, eq=False)
class Coreset:
    """A few weighted points that stand for a data set."""

    x: Tensor
    """In the data's own units, images in [0, 1] (learned ones may leave that range), whatever the
    normalisation; `Problem.inputs` turns it into what a network sees.
    """
    y: Tensor
    """Integer labels (M,), or real-valued targets (M, classes); numbers (M, 1) of a regression, in
    the data's own units.
    """
    weight: Tensor
    indices: Tensor | None = None
    """Which training points were selected, where they were."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """How it was made, and what was learned beside the points."""
    contract: Contract | None = None
    """What it was made for, so that inference needs no training data. None for points that nobody
    described.
    """

    def __post_init__(self) -> None:
        tensors = {"x": self.x, "y": self.y, "weight": self.weight}
        sizes = {name: len(values) for name, values in tensors.items()}
        if self.indices is not None:
            sizes["indices"] = len(self.indices)
        if len(set(sizes.values())) != 1:
            message = f"the parts of a coreset disagree about its size: {sizes}"
            raise DataError(message, code="lengths-differ", sizes=sizes)
        if self.weight.ndim != 1 or not self.weight.is_floating_point():
            given = f"{self.weight.dtype} {tuple(self.weight.shape)}"
            raise DataError(f"coreset weights must be floats (M,), not {given}", code="weights")
        if len(self.x) == 0:
            raise DataError("a coreset must hold at least one point", code="no-examples")
        if self.y.ndim != (2 if self.is_soft else 1):
            raise DataError(
                "coreset labels must be integers (M,) or floats (M, classes), not"
                f" {self.y.dtype} {tuple(self.y.shape)}",
                code="labels",
            )
        for name, values in tensors.items():
            if values.is_floating_point() and not torch.isfinite(values).all():
                message = f"coreset {name} holds NaN or infinite values"
                raise DataError(message, code="not-finite", name=name)
        if (self.weight < 0).any() or self.weight.sum() <= 0:
            raise DataError("coreset weights must be non-negative and not all zero", code="weights")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Any) -> "Coreset":
        """Some of the points, by a number, a slice, a mask or a list, with their weights."""
        places = torch.arange(len(self))[index].reshape(-1)
        part = self._mapped(lambda values: values[places.to(values.device)])
        if part.contract is None:
            return part
        total = float(part.weight.sum())
        return replace(part, contract=replace(part.contract, total_weight=total))

    def __repr__(self) -> str:
        made = self.provenance
        origin = f"{made['method']} on {made['setup']['data']}: " if "setup" in made else ""
        kind = f"{self.num_classes} classes, {'soft' if self.is_soft else 'hard'} labels"
        return (
            f"Coreset({origin}{len(self)} points of shape {tuple(self.x.shape[1:])},"
            f" {'regression' if self.task == 'regression' else kind}, weights of sum"
            f" {self.weight.sum():g})"
        )

    @property
    def num_classes(self) -> int:
        """Of the data it stands for, or else as many as its labels show."""
        if self.is_soft:
            return self.y.shape[1]
        known = 0 if self.contract is None else self.contract.data.num_classes
        return max(known, int(self.y.max()) + 1)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; empty where they have none."""
        names = () if self.contract is None else self.contract.data.class_names
        return names if len(names) == self.num_classes else ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, where the data were a table; else empty."""
        names = feature_names(self.provenance.get("encoding", ()))
        return names if self.x.shape[1:] == (len(names),) else ()

    @property
    def is_soft(self) -> bool:
        """Whether `y` is real-valued targets rather than integer labels."""
        return bool(self.y.is_floating_point())

    @property
    def task(self) -> Task:
        """A single column of real-valued targets is that of a regression."""
        return "regression" if self.is_soft and self.y.shape[1] == 1 else "classification"

    @property
    def labels(self) -> Tensor:
        """The class each point stands for, (M,); 0 in a regression."""
        labels: Tensor = self.y.argmax(1) if self.is_soft else self.y
        return labels

    @property
    def targets(self) -> Tensor:
        """Arguments of a likelihood: integer labels, or class probabilities (M, classes); numbers
        (M, 1) of a regression, in the data's own units.

        Real-valued targets that are no distribution are last-layer outputs, made logits by the
        learned scale, or 1.
        """
        if (
            not self.is_soft
            or self.task == "regression"
            or (
                (self.y >= 0).all()
                and torch.allclose(self.y.sum(1), self.y.new_ones(len(self)), atol=1e-4)
            )
        ):
            return self.y
        return (self.y * self.learned.get("logit_scale", 1.0)).softmax(1)

    @property
    def probabilities(self) -> Tensor:
        """Of every class for each point, (M, classes): what a network is to be trained on."""
        if self.task == "regression":
            raise DataError("a regression has no classes; its targets are `y`", code="no-classes")
        if self.is_soft:
            return self.targets
        return one_hot(self.y, self.num_classes).to(self.weight.dtype)

    @property
    def learned(self) -> dict[str, float]:
        """Positive numbers learned with the points (`logit_scale`, `ridge`, ...), checked, as the
        file may be anyone's.
        """
        table, (low, high) = self.provenance.get("posterior", {}), ORDINARY
        if not isinstance(table, Mapping) or not all(
            type(value) in (int, float) and low < value < high for value in table.values()
        ):
            raise DataError(
                f"the coreset's provenance has posterior = {table!r}, where positive numbers by"
                " name, of ordinary size, should be",
                code="invalid-provenance",
            )
        return dict(table)

    @property
    def nearest(self) -> Tensor | None:
        """Training points (M,) to show for the points: those selected, or for made points in
        features the nearest of their class; None where neither is known.
        """
        if self.indices is not None:
            return self.indices
        known = self.provenance.get("nearest")
        if not isinstance(known, list) or len(known) != len(self):
            return None
        is_places = all(type(place) is int and place >= 0 for place in known)
        return torch.tensor(known) if is_places else None

    @property
    def is_encoded(self) -> bool:
        """Whether its images show more than themselves: several tiles, or a mirror image."""
        return not {"formation", "mirror"}.isdisjoint(self.provenance)

    def with_provenance(self, **entries: Any) -> "Coreset":
        return replace(self, provenance={**self.provenance, **entries})

    def to(self, device: torch.device | str) -> "Coreset":
        """The same points on a device."""
        return self._mapped(lambda values: values.to(device))

    def dataset(self) -> TensorDataset:
        """A torch data set of (x, target probabilities, weight), in the data's own units; of
        (x, targets (1,), weight) for a regression.
        """
        if self.is_encoded:
            raise DataError(
                "the images of this coreset hold several each, which infer and evaluate take apart;"
                " objectives.multiformation.decode makes them points of their own",
                code="encoded-images",
            )
        y = self.y if self.task == "regression" else self.probabilities
        return TensorDataset(self.x, y, self.weight)

    def save(
        self,
        path: str | os.PathLike[str],
        format: Literal["safetensors", "npz", "csv", "png"] | None = None,
    ) -> None:
        """Write the points to a .safetensors, .npz or .csv file, or, with the format "png", to a
        folder of pictures.
        """
        from pseudocore.store import export  # it imports this module

        export.export(self, path, format)

    def to_frame(self, library: Literal["pandas", "polars"] = "pandas") -> Any:
        """A frame with one row per point: label, weight, probabilities and values."""
        from pseudocore.store import export  # it imports this module

        return export.to_frame(self, library)

    def to_hf(self) -> Any:
        """A Hugging Face `datasets.Dataset` with one row per point."""
        from pseudocore.store import export  # it imports this module

        return export.to_hf(self)

    def push_to_hub(
        self,
        repository: str,
        *,
        license: str = "unknown",
        private: bool | None = None,
        token: str | None = None,
        message: str = "Upload a coreset",
        endpoint: str | None = None,
    ) -> str:
        """Write the points, a Parquet table of them and a card into a data set repository
        OWNER/NAME of the Hugging Face Hub; its address. `license` is that of the points, such as
        "cc-by-4.0".
        """
        from pseudocore.store import hub  # it imports this module

        return hub.push(
            self,
            repository,
            license=license,
            private=private,
            token=token,
            message=message,
            endpoint=endpoint,
        )

    @staticmethod
    def from_hub(
        repository: str,
        *,
        revision: str | None = None,
        token: str | None = None,
        endpoint: str | None = None,
    ) -> "Coreset":
        """The coreset of a data set repository OWNER/NAME of the Hugging Face Hub."""
        from pseudocore.store import hub  # it imports this module

        return hub.pull(repository, revision=revision, token=token, endpoint=endpoint)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "Coreset":
        tensors = {"x": self.x, "y": self.y, "weight": self.weight, "indices": self.indices}
        changed: Any = {n: None if t is None else change(t) for n, t in tensors.items()}
        return replace(self, **changed)
