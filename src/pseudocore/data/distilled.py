"""Other people's distilled sets, in the forms in which public repositories save them.

| form | found in |
|---|---|
| `.pt` with `{"data": [[images, labels], …]}`, a list of sets | DC, DSA, DM |
| `images_*.pt` beside `labels_*.pt` | MTT, TESLA, DATM |
| `.pt` with a pair of tensors, or with a mapping of them by name | others |
| `.npz` with `image` and `label`, or names alike | FRePo, KIP, our own export |
| pictures, in class folders or with a file of labels beside them | SRe2L, RDED, our own export |

Images come back in pixel units, whatever normalisation they were saved in. Nothing in a file is
executed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.types import Coreset, Dataset
from pseudocore.data import preprocessing
from pseudocore.data.distilled_files import Stored, labels_in, stored_in
from pseudocore.data.torch_files import dense
from pseudocore.store.files import reading as opening

Units = Literal["auto", "pixels", "published", "standard"]

IN_ORDER = "in-order"
"""In place of a file of labels: as many points of each class, class by class."""

PUBLISHED: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2861,), (0.3530,)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)),
    "tiny-imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Mean and deviation by channel in the code of DC, DSA, DM and MTT."""

_SLACK = 0.02
"""How far beyond 0 and 1 pixels may lie that were rounded or learned."""

_BYTES = 20.0
"""What no normalised image reaches."""


@dataclass(frozen=True, kw_only=True)
class Distilled:
    """How to read a distilled set."""

    labels: str | Path | None = None
    """File of the labels, or "in-order". Defaults to the file's own."""
    units: Units = "auto"
    """Of the images: "pixels" from 0 to 1 or 0 to 255, "published" for the normalisation of DC, DSA,
    DM and MTT, "standard" for the data set's own. By default pixels where they lie in 0 to 1, and
    else published.
    """
    mean: Sequence[float] | None = None
    """By channel, that the images were normalised with."""
    std: Sequence[float] | None = None
    """Deviation by channel, that they were normalised with."""
    number: int = 0
    """Which set of a file that holds several."""

    def read(self, path: Path, data: Dataset) -> Coreset:
        """The set as points in the units of `data`, each of the same weight unless the file has
        weights; the weights sum to the number of training examples.
        """
        if (self.mean is None) != (self.std is None):
            raise ConfigError("mean and std belong together; give both", code="invalid-options")
        if data.task == "regression":
            message = f"distilled sets are read for classes, and {data.name!r} is a regression"
            raise DataError(message, code="needs-classes", data=data.name)
        with opening(path, DataError):
            stored = self._stored(path, data)
        x = _shaped(dense(stored.x, path), data, path)
        x, how = self._in_pixels(x, data, path)
        if stored.y is None:
            raise DataError(
                f"{path} holds no labels; name their file (labels=, --labels), or {IN_ORDER!r} where"
                " there are as many points of each class, class by class",
                code="no-labels",
                path=path,
            )
        y, said = _targets(dense(stored.y, path), data, path)
        if len(x) != len(y):
            message = f"{path} has {len(x)} points but {len(y)} labels"
            raise DataError(message, code="lengths-differ", path=path)
        weight = torch.ones(len(x)) if stored.weight is None else stored.weight.float().flatten()
        if stored.weight is None:
            weight = weight * (data.num_train / len(x))
        made = {"source": path.name, "units": how, "labels": said}
        return Coreset(x, y, weight, provenance={"distilled": made})

    def _stored(self, path: Path, data: Dataset) -> Stored:
        apart = self.labels
        found = stored_in(path, data, self.number, has_labels=apart is not None)
        if apart is None:
            return found
        if str(apart) != IN_ORDER:
            return found._replace(y=labels_in(Path(apart).expanduser()))
        num, left = divmod(len(found.x), data.num_classes)
        if left:
            message = f"{path} has {len(found.x)} points, not as many of each of the"
            message = f"{message} {data.num_classes} classes"
            raise DataError(message, code="not-balanced", path=path)
        return found._replace(y=torch.arange(data.num_classes).repeat_interleave(num))

    def _in_pixels(self, x: Tensor, data: Dataset, path: Path) -> tuple[Tensor, str]:
        """Points in the units of the data, and how they got there."""
        if not x.is_floating_point():
            if not data.is_images:
                return x.float(), "as saved"
            if self.mean is not None or x.min() < 0 or x.max() > 255:
                message = f"{path} holds whole numbers, which must be pixels from 0 to 255"
                raise DataError(message, code="unfit-images", path=path)
            return x.float() / 255, "pixels, 0 to 255"
        x = x.float()
        if not x.isfinite().all():
            raise DataError(f"{path} holds NaN or infinite values", code="not-finite", path=path)
        if data.is_images and x.min() >= 0 and x.max() > _BYTES and self.mean is None:
            return x / 255, "pixels, 0 to 255"
        if self.mean is not None and self.std is not None:
            return _undone(x, self.mean, self.std, path), "normalised, by the given mean and std"
        if self.units == "standard":
            return preprocessing.make("standard", data).invert(x), "standardised"
        is_pixels = not data.is_images or (x.min() >= -_SLACK and x.max() <= 1 + _SLACK)
        if self.units == "pixels" or (self.units == "auto" and is_pixels):
            return x, "as saved"
        if data.name in PUBLISHED:
            return _undone(x, *PUBLISHED[data.name], path), "normalised, as by DC, DSA, DM and MTT"
        raise DataError(
            f"{path} runs from {float(x.min()):.3g} to {float(x.max()):.3g}, so it is normalised, and"
            f" nothing is known of {data.name!r}; give mean and std by channel, or units = 'standard'"
            " for the data set's own, or 'pixels' to take them as they are",
            code="unknown-units",
            path=path,
        )


def _undone(x: Tensor, mean: Sequence[float], std: Sequence[float], path: Path) -> Tensor:
    if not len(mean) == len(std) == x.shape[1] or min(std) <= 0:
        message = f"mean and std must be {x.shape[1]} numbers each for {path}, std above 0"
        raise ConfigError(message, code="invalid-options", option="mean")
    shape = (-1, *[1] * (x.ndim - 2))
    return x * torch.tensor(std).view(shape) + torch.tensor(mean).view(shape)


def _shaped(x: Tensor, data: Dataset, path: Path) -> Tensor:
    """Points in the shape of the data: channels may come last, one channel may be left out, and
    images may be flat or grouped by class.
    """
    shape = data.shape
    if len(shape) == 3:
        last, grouped = (*shape[1:], shape[0]), x.ndim == 5 and tuple(x.shape[2:]) == shape
        if tuple(x.shape[1:]) == last and last != shape:
            return x.permute(0, 3, 1, 2).contiguous()
        is_grey = shape[0] == 1 and tuple(x.shape[1:]) == shape[1:]
        is_flat = x.ndim == 2 and x.shape[1] == math.prod(shape)
        if grouped or is_grey or is_flat:
            return x.reshape(-1, *shape)
    if tuple(x.shape[1:]) != shape or len(x) == 0:
        raise DataError(
            f"{path} holds points of shape {tuple(x.shape)}, and {data.name!r} has {shape} each; a set"
            " that a network or an upsampling decodes must be saved decoded",
            code="coreset-shape",
            path=path,
        )
    return x


def _targets(y: Tensor, data: Dataset, path: Path) -> tuple[Tensor, str]:
    """Labels of a coreset, and what they are."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if not y.numel():
        raise DataError(f"{path} holds no points", code="coreset-labels", path=path)
    if y.ndim == 1 and (y == y.round()).all():
        y = y.long()
        if y.min() < 0 or y.max() >= data.num_classes:
            message = f"{path} has labels outside 0..{data.num_classes - 1}"
            raise DataError(message, code="coreset-labels", path=path)
        return y, "hard"
    if y.ndim != 2 or y.shape[1] != data.num_classes or not y.float().isfinite().all():
        raise DataError(
            f"{path} has labels of shape {tuple(y.shape)}; there must be one class a point, or"
            f" {data.num_classes} finite numbers",
            code="coreset-labels",
            path=path,
        )
    y = y.float()
    if (y >= 0).all() and torch.allclose(y.sum(1), torch.ones(len(y)), atol=1e-3):
        is_hard = bool((y.max(1).values > 1 - 1e-6).all())
        return (y.argmax(1), "hard") if is_hard else (y / y.sum(1, keepdim=True), "probabilities")
    return y, "real numbers: outputs for last-layer-vi, logits for the others"
