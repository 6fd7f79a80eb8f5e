"""From a configuration to the objects it describes: `Setup` to `Problem`, tables to `Reduction`."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from pseudocore.core import config
from pseudocore.core.config import Positive, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import GaussianPrior, Precision, PriorKind, Problem
from pseudocore.core.registry import did_you_mean, inferences, methods, models
from pseudocore.core.types import Dataset, DataSpec, Model, Preprocess
from pseudocore.data import DSA, Reading, columns, read
from pseudocore.data import preprocessing as whiten
from pseudocore.data.reading import Missing
from pseudocore.features.embed import embed
from pseudocore.models import custom
from pseudocore.runtime.allocator import keep_freed_memory
from pseudocore.runtime.profiling import stage
from pseudocore.runtime.warmup import warming_up
from pseudocore.store.cache import CacheFolder
from pseudocore.store.expert_folder import ExpertFolder

Data = Any
"""A name, a path, or anything else that `dataset` makes a data set of."""

READING_FIELDS = ("target", "labels", "drop", "missing", "resize")
"""Fields of a setup that say how to read its data."""

NETWORK_FIELDS = ("width", "depth", "norm", "init")
"""Fields of a setup that belong to its network."""

PRIOR_FIELDS = ("prior", "prior_scale")
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
    features: str | None = None
    """Frozen network whose outputs take the place of the inputs, computed once: timm:NAME,
    torchvision:NAME, open_clip:NAME or package.module:function; or an .npz file of them, train and
    test.
    """
    feature_weights: str | None = None
    """File of that network's weights."""
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
    """From pixels to network inputs."""
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
    precision: Precision = "float32"
    """Arithmetic on a GPU: float32, tf32 matrix products, or bf16 passes through the network. A CPU
    always computes in float32.
    """
    experts: str | None = None
    """Folder written by pseudocore experts, for methods that learn from experts. By default the
    method trains its own.
    """


@dataclass(frozen=True)
class Reduction:
    """A reduction as a run's config.toml holds it: all that is needed to make the coreset again."""

    method: Any
    setup: Setup
    seed: int = 0
    evaluate: Mapping[str, Any] | None = None
    """Name and options of the inference the coreset is meant for: the default of `evaluate`."""

    def to_config(self) -> dict[str, Any]:
        return {
            "method": methods.name_of(self.method),
            "seed": self.seed,
            "setup": config.to_dict(self.setup),
            "options": config.to_dict(self.method),
            **({"evaluate": dict(self.evaluate)} if self.evaluate else {}),
        }

    @classmethod
    def from_config(cls, table: Mapping[str, Any]) -> "Reduction":
        """From the tables of a preset or a config.toml; every problem is reported at once."""
        check_tables(table)
        if "method" not in table:
            raise ConfigError("a configuration must name its method", code="missing-method")
        (method, setup, _), problems = _build_all(table)
        if problems:
            raise ConfigError("; ".join(problems), code="invalid-options", problems=problems)
        return cls(method, setup, table.get("seed", 0), dict(table.get("evaluate", {})) or None)


def check_tables(table: Mapping[str, Any], *, what: str = "a configuration") -> None:
    """Refuse unknown entries and entries of the wrong kind, with all else that is wrong."""
    sound: dict[str, Any] = {}
    problems = []
    for name, value in table.items():
        kind = _KINDS.get(name)
        if kind is None:
            problems.append(f"unknown entry {name!r}{did_you_mean(name, _KINDS)}")
        elif not isinstance(value, _TYPES[kind]) or isinstance(value, bool):
            problems.append(f"{name} = {value!r} is not {kind}")
        else:
            sound[name] = value
    if problems:
        problems[-1] += f" (there are {', '.join(_KINDS)})"
        problems += _build_all(sound)[1]
        raise ConfigError(
            f"{what}: {'; '.join(problems)}", code="invalid-configuration", problems=problems
        )


def reading(setup: Setup, *, lenient: bool = False) -> Reading:
    """How to read the data of a setup."""
    return Reading(
        target=setup.target,
        labels=setup.labels,
        drop=columns(setup.drop or ()),
        missing=setup.missing or "refuse",
        resize=setup.resize,
        lenient=lenient,
    )


def resolve(setup: Setup, data: Dataset | DataSpec) -> Setup:
    """The same setup with its network written out."""
    default = "convnet3" if data.is_images else "mlp"
    if isinstance(data, Dataset) and data.embedded is not None:
        default = "linear"
    return replace(setup, model=setup.model or default)


def build(
    setup: Setup,
    data: Dataset | DataSpec | None = None,
    *,
    device: str = "auto",
    root: Path | None = None,
    network: Any = None,
    preprocess: Preprocess | None = None,
    features: Any = None,
) -> Problem:
    """Load the data, make the network and fit the preprocessing.

    Args:
        setup: What to build.
        data: The data set, or its description where no examples are needed. Defaults to the data
            set that the setup names.
        device: `auto`, `cpu` or `cuda`.
        root: A folder to look for data sets in first.
        network: The network, where the setup cannot rebuild it (see `described`).
        preprocess: The preprocessing, where it is known. Defaults to one fitted to the data.
        features: The frozen network, or features of training and test half, where the setup cannot
            rebuild them. Defaults to those the setup names.

    Returns:
        The problem.
    """
    config.check(setup)
    where = device_of(device)
    on_gpu = where.type == "cuda"
    if not on_gpu:
        keep_freed_memory()
    with warming_up(where, reduced=setup.precision == "bf16") if on_gpu else nullcontext():
        if data is None:
            with stage("load"):
                data = read(setup.data, reading(setup), root=root)
        data = _embedded(setup, data, features, where)
        model = _model(resolve(setup, data), data, network)
        augment = DSA(strategy=setup.augment, siamese=setup.siamese) if setup.augment else None
        if augment is not None and not data.is_images:
            raise ConfigError(
                f"augmentation {setup.augment!r} needs images, but {data.name!r} has features of"
                f" shape {data.shape}",
                code="augmentation-needs-images",
            )
        if on_gpu:  # torch has both as globals only
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
                setup.precision != "float32"
            )
            # Otherwise a convolution's gradient differs from call to call in its last bits.
            torch.backends.cudnn.deterministic = True
        if preprocess is None:
            with stage("preprocess", where):
                preprocess = whiten.make(setup.preprocess, data, device=where)
        problem = Problem(
            data,
            model,
            preprocess,
            augment,
            GaussianPrior(setup.prior_scale, setup.prior),
            where,
            precision=setup.precision,
            cache=CacheFolder(),
        )
        if setup.experts is None:
            return problem
        return replace(problem, experts=ExpertFolder.open(setup.experts).mapped(problem))


def networks(text: str, data: Dataset) -> list[Model]:
    """Networks by name, each with its options, separated by commas: `mlp width=64, linear`."""
    made = []
    for part in filter(None, map(str.strip, text.split(","))):
        name, *words = part.split()
        given: dict[str, Any] = {"model": name}
        for field, _, value in (word.partition("=") for word in words):
            given[field] = int(value) if value.isdigit() else value
        made.append(_model(config.build(Setup, given, what=part), data, None))
    return made


def _embedded(
    setup: Setup, data: Dataset | DataSpec, features: Any, device: torch.device
) -> Dataset | DataSpec:
    """The data as features of a frozen network, where one is given and they are not yet."""
    source = setup.features if features is None else features
    if source is None and setup.feature_weights is not None:
        raise ConfigError(
            f"feature_weights = {setup.feature_weights!r} belong to no network; name it (features)",
            code="weights-without-network",
        )
    if source is None or isinstance(data, DataSpec) or data.embedded is not None:
        return data
    with stage("features", device):
        weights = setup.feature_weights
        return embed(data, source, weights=weights, device=device, cache=CacheFolder())


def described(model: Any) -> tuple[dict[str, Any], Any]:
    """The fields of a setup for a network, and what to pass to `build` as `network`."""
    if model is None or isinstance(model, str):
        return ({} if model is None else {"model": model}), None
    return custom.described(model)


_TYPES: dict[str, type] = {"a text": str, "a whole number": int, "a table": Mapping}

_KINDS = {
    "method": "a text",
    "data": "a text",
    "seed": "a whole number",
    "setup": "a table",
    "options": "a table",
    "evaluate": "a table",
}
"""The entries of a configuration."""


def _build_all(table: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """Method, setup and inference of a configuration, None for what it does not name, and all that
    is wrong with them.
    """
    built: list[Any] = []
    problems: list[str] = []
    for build_one in (_build_method, _build_setup, _build_inference):
        try:
            built.append(build_one(table))
        except ConfigError as error:
            built.append(None)
            problems.append(str(error))
    return built, problems


def _build_method(table: Mapping[str, Any]) -> Any:
    name = table.get("method")
    if name is None:
        return None
    return config.build(methods[name].make, table.get("options", {}), what=name)


def _build_setup(table: Mapping[str, Any]) -> Setup:
    fields = {**table.get("setup", {}), **({"data": table["data"]} if "data" in table else {})}
    return config.build(Setup, fields, what="setup")


def _build_inference(table: Mapping[str, Any]) -> Any:
    if not table.get("evaluate"):
        return None
    options = dict(table["evaluate"])
    name = str(options.pop("inference", "last-layer-vi"))
    return config.build(inferences[name].make, options, what=f"evaluate by {name}")


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(
            f"unknown device {name!r}; there are auto, cpu and cuda",
            code="unknown-device",
            name=name,
        )
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch finds no CUDA device here; use cpu or auto", code="no-cuda")
    return torch.device(name)


def _model(setup: Setup, data: Dataset | DataSpec, network: Any) -> Model:
    name = setup.model or ""
    given = {field: getattr(setup, field) for field in NETWORK_FIELDS}
    given = {field: value for field, value in given.items() if value is not None}
    if network is not None or ":" in name:
        return custom.load(network or name, data.shape, data.num_classes, given)
    make = models[name].make
    known = {option.name for option in config.options(make)}
    if unknown := sorted(set(given) - known):
        raise ConfigError(
            f"model {name!r} has no {' or '.join(unknown)}; it has"
            f" {', '.join(sorted(known)) or 'no options'}",
            code="unknown-model-option",
            model=name,
            options=unknown,
        )
    model: Model = config.build(make, given, what=f"model {name}").build(
        data.shape, data.num_classes
    )
    return model
