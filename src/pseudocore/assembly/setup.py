"""The half of a configuration that is not the method."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pseudocore.core.config import Positive, Range
from pseudocore.core.likelihood import Task
from pseudocore.core.problem import Precision, PriorKind
from pseudocore.data.reading import Missing

Data = Any
"""A name, a path, or anything else that `dataset` makes a data set of."""

READING_FIELDS = ("target", "labels", "drop", "missing", "resize", "task")
"""Fields of a setup that say how to read its data."""

NETWORK_FIELDS = ("width", "depth", "norm", "init")
"""Fields of a setup that belong to its network."""

PRIOR_FIELDS = ("prior", "prior_scale", "target_noise")
"""Fields of a setup that belong to its posterior, and to no training of experts."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Data set, network, preprocessing and augmentation."""

    data: str = "digits"
    """Name or path of the data set."""
    target: str | None = None
    """Column of a table that holds the labels."""
    labels: str | None = None
    """File of the labels, for inputs in one .npy file."""
    drop: str | None = None
    """Columns of a table to leave out, separated by commas."""
    missing: Missing | None = None
    """What to do about gaps in features: refuse them, or impute the median of training values, and
    the most frequent text. Defaults to refuse.
    """
    resize: Annotated[int | None, Range(low=1)] = None
    """Height and width to bring images to, from their centre square."""
    task: Task | None = None
    """What the targets are. Defaults to regression where they hold fractions, else to
    classification.
    """
    features: str | None = None
    """Frozen network whose outputs take the place of the inputs, computed once: timm:NAME,
    torchvision:NAME, open_clip:NAME or package.module:function; or an .npz file of them, train and
    test.
    """
    feature_weights: str | None = None
    """File of the weights of the network in features."""
    model: str | None = None
    """Network, or package.module:function that makes one. Defaults to convnet3 for images, linear
    for features of a frozen network and mlp for others.
    """
    width: Annotated[int | None, Range(low=1)] = None
    """Width of the network. Defaults to the network's own."""
    depth: Annotated[int | None, Range(low=1)] = None
    """Depth of the network. Defaults to the network's own."""
    norm: Literal["instance", "batch", "none"] | None = None
    """Normalisation inside the network. Defaults to the network's own."""
    init: Literal["torch", "lecun", "he", "flax"] | None = None
    """Distribution of the initial weights. Defaults to the network's own."""
    preprocess: Literal["none", "standard", "published", "zca"] = "standard"
    """How pixels become network inputs: unchanged, standardised, with the published constants of
    CIFAR, or ZCA-whitened.
    """
    augment: str | None = None
    """Differentiable augmentation: operations to draw one from, as
    color_crop_cutout_flip_scale_rotate, or to apply in turn, as crop+flip. Defaults to none.
    """
    siamese: bool = True
    """Whether one augmentation is drawn for a whole batch rather than one per example."""
    prior: PriorKind = "fan-in"
    """Gaussian prior on network parameters: by each layer's fan-in, around 1 for gains of norms, or
    all alike.
    """
    prior_scale: Positive = 2.0
    """Standard deviation of the prior: in units of one over the root of the fan-in, or for
    isotropic of the parameters themselves.
    """
    target_noise: Annotated[float | None, Range(above=0)] = None
    """Standard deviation of an observation of a regression, in units of the target. Defaults to the
    best by marginal likelihood for linear, else by held-out training points.
    """
    precision: Precision = "float32"
    """Arithmetic on a GPU: float32, tf32 matrix products, or bf16 passes through the network. A CPU
    always computes in float32.
    """
    experts: str | None = None
    """Folder written by pseudocore experts, for methods that learn from experts. By default the
    method trains its own.
    """
