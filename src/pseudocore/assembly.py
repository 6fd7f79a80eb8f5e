"""From words to what they stand for: a `Setup`, or what a coreset says of itself, to a Problem; a
preset's tables to a `Reduction`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from pseudocore.core import config
from pseudocore.core.config import Positive, Range
from pseudocore.core.errors import ArtifactError, ConfigError, DataError
from pseudocore.core.problem import GaussianPrior, Precision, Problem
from pseudocore.core.registry import did_you_mean, inferences, methods, models
from pseudocore.core.types import Coreset, Dataset
from pseudocore.data import DSA, load
from pseudocore.data import preprocessing as whiten
from pseudocore.models import FlatModel
from pseudocore.models import custom as foreign
from pseudocore.runtime.profiling import stage
from pseudocore.runtime.warmup import waking
from pseudocore.store.cache import user_cache
from pseudocore.store.expert_folder import ExpertFolder


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Data set, network, preprocessing and augmentation."""

    data: str = "digits"
    """Name or path of the data set."""
    model: str | None = None
    """Network, or package.module:function that makes one; unless told, convnet3 for images and mlp
    for features.
    """
    width: Annotated[int | None, Range(low=1)] = None
    """Width of the network; unless told, the network's own default."""
    depth: Annotated[int | None, Range(low=1)] = None
    """Depth of the network; unless told, the network's own default."""
    norm: Literal["instance", "batch", "none"] | None = None
    """Normalisation inside the network; unless told, the network's own default."""
    init: Literal["torch", "lecun", "he", "flax"] | None = None
    """Spread of initial weights; unless told, the network's own default."""
    preprocess: Literal["none", "standard", "published", "zca"] = "standard"
    """From pixels to network inputs."""
    augment: str | None = None
    """Operations of differentiable augmentation to draw one from, as
    color_crop_cutout_flip_scale_rotate, or to do in turn, as crop+flip;
    unless told, none."""
    siamese: bool = True
    """Whether one augmentation is drawn for a whole batch rather than one per example."""
    prior_scale: Positive = 1.0
    """Standard deviation of the Gaussian prior on network parameters."""
    precision: Precision = "float32"
    """Arithmetic on a GPU: float32, tf32 matrix products, or bf16 passes through the network; a CPU
    keeps to float32.
    """
    experts: str | None = None
    """Folder that pseudocore experts has filled, for methods that learn from experts; unless told,
    the method trains its own.
    """


@dataclass(frozen=True)
class Reduction:
    """A reduction in words: what a run's config.toml holds, and all that is needed to make the
    coreset again.
    """

    method: Any
    setup: Setup
    seed: int = 0
    evaluate: Mapping[str, Any] | None = None
    """How its makers meant it to be evaluated: an inference's name and options; `evaluate` starts
    from it.
    """

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
        """From the tables `setup`, `options` and `evaluate` of a preset or a config.toml; every
        problem is reported at once.
        """
        check_tables(table)
        if "method" not in table:
            raise ConfigError("a configuration must name its method")
        (method, setup, _), problems = _build_all(table)
        if problems:
            raise ConfigError("; ".join(problems))
        return cls(method, setup, table.get("seed", 0), dict(table.get("evaluate", {})) or None)


def check_tables(table: Mapping[str, Any], *, what: str = "a configuration") -> None:
    """Refuse entries no configuration has, and entries of the wrong kind; what else is wrong with
    it is said with them.
    """
    problems = [
        f"unknown entry {name!r}{did_you_mean(name, _KINDS)}"
        for name in table
        if name not in _KINDS
    ]
    problems += [
        f"{name} = {table[name]!r} is not {_KINDS[name]}"
        for name in _KINDS
        if name in table and not _is(_KINDS[name], table[name])
    ]
    if problems:
        sound = {
            name: value
            for name, value in table.items()
            if name in _KINDS and _is(_KINDS[name], value)
        }
        more = "".join(f"; {problem}" for problem in _build_all(sound)[1])
        raise ConfigError(f"{what}: {'; '.join(problems)} (there are {', '.join(_KINDS)}){more}")


def resolved(reduction: Reduction, problem: Problem) -> Reduction:
    """The reduction with every default that depends on the data written out, what config.toml
    keeps; its budget is checked.
    """
    if hasattr(reduction.method, "per_class"):
        problem.check_per_class(reduction.method.per_class)
    if reduction.setup.experts is not None:
        _check_experts(reduction, problem)
    return replace(reduction, setup=resolve(reduction.setup, problem.data))


def resolve(setup: Setup, data: Dataset) -> Setup:
    """The same setup with the network it stands for written out."""
    return replace(setup, model=setup.model or ("convnet3" if data.is_images else "mlp"))


def build(
    setup: Setup, data: Dataset | None = None, *, device: str = "auto", root: Path | None = None
) -> Problem:
    """Load the data (unless handed in), make the network, fit the preprocessing."""
    config.check(setup)
    where = _device(device)
    with waking(where, reduced=setup.precision == "bf16"):
        return _built(setup, data, where, root)


def _built(setup: Setup, data: Dataset | None, where: torch.device, root: Path | None) -> Problem:
    if data is None:
        with stage("load"):
            data = load(setup.data, root=root)
    model = _model(resolve(setup, data), data)
    augment = DSA(strategy=setup.augment, siamese=setup.siamese) if setup.augment else None
    if augment is not None and not data.is_images:
        raise ConfigError(
            f"augmentation {setup.augment!r} needs images, but {data.name!r} has features of shape {data.shape}"
        )
    if where.type == "cuda":  # torch knows both as globals only
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
            setup.precision != "float32"
        )
        torch.backends.cudnn.deterministic = (
            True  # else a convolution's gradient differs from call to call in its last bits
        )
    with stage("preprocess", where):
        preprocess = whiten.make(setup.preprocess, data, device=where)
    prior = GaussianPrior(setup.prior_scale)
    problem = Problem(
        data,
        model,
        preprocess,
        augment,
        prior,
        where,
        precision=setup.precision,
        cache=user_cache(),
    )
    return (
        problem
        if setup.experts is None
        else replace(problem, experts=ExpertFolder.open(setup.experts).mapped(problem))
    )


def build_problem(
    coreset: Coreset,
    data: str | Path | Dataset | None = None,
    *,
    device: str = "auto",
    **changes: Any,
) -> Problem:
    """The problem a coreset was made for, from its provenance, with some words of its setup
    changed.

    Augmentation and experts are not taken over: they belonged to making the coreset.
    """
    words: dict[str, Any] = {
        **words_of(coreset, "setup"),
        "augment": None,
        **changes,
        "experts": None,
    }
    if data is not None and not isinstance(data, Dataset):
        words["data"] = str(data)
    if "data" not in words and data is None:
        raise ConfigError("the coreset does not say what data it stands for; name the data set")
    if "model" not in changes and foreign.is_custom(own := str(words.get("model") or "")):
        raise ConfigError(
            f"the coreset was made with the network {own!r}, code outside this package, which is not run on a file's word; "
            f"if you trust it, name it yourself (--model {own})"
        )
    words = {name: value for name, value in words.items() if value is not None}
    if "model" in changes:  # the old network's width and norm say nothing about another network
        words = {
            name: value
            for name, value in words.items()
            if name in changes or name not in ("width", "depth", "norm", "init")
        }
    setup = config.build(Setup, words, what="setup")
    problem = build(
        setup,
        _own_data(setup) if data is None else data if isinstance(data, Dataset) else None,
        device=device,
    )
    problem.check_fits(coreset)
    made_of = coreset.provenance.get("data_fingerprint")
    if data is None and made_of not in (None, problem.data.fingerprint):
        raise DataError(
            f"the coreset was made of another {problem.data.name!r} than the one found here (their fingerprints differ); "
            f"name the data set (--data {setup.data}) to go on all the same"
        )
    return problem


def words_of(coreset: Coreset, name: str) -> dict[str, Any]:
    """A table of a coreset's provenance, which a stranger may have written."""
    table = coreset.provenance.get(name, {})
    if not isinstance(table, Mapping):
        raise ArtifactError(
            f"the coreset's provenance has {name} = {table!r} where a table should be; it cannot say how to be used"
        )
    return dict(table)


def _check_experts(reduction: Reduction, problem: Problem) -> None:
    """Refuse experts that the method cannot use, or that were not kept for as long as it needs."""
    name, needed, path = (
        methods.name_of(reduction.method),
        getattr(reduction.method, "expert_epochs", None),
        str(reduction.setup.experts),
    )
    if needed is None:
        raise ConfigError(f"method {name!r} learns from no experts; leave out --experts {path}")
    if problem.experts is not None and problem.experts.num_epochs < needed:
        settings = (
            f" with max_start={reduction.method.max_start}"
            if hasattr(reduction.method, "max_start")
            else ""
        )
        command = ExpertFolder.open(path).command(needed)
        raise ConfigError(
            f"the experts in {path} were kept for {problem.experts.num_epochs} epochs, but {name}{settings} needs {needed}: run `{command}`"
        )


_KINDS = {
    "method": "a text",
    "data": "a text",
    "seed": "a whole number",
    "setup": "a table",
    "options": "a table",
    "evaluate": "a table",
}


def _is(kind: str, value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        if kind == "a table"
        else type(value) is {"a text": str, "a whole number": int}[kind]
    )


def _build_all(table: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """Method, setup and inference of a configuration, None for one it does not name, and all that
    is wrong with any of them.
    """
    built: list[Any] = []
    problems: list[str] = []
    for build_one in (_method_of, _setup_of, _inference_of):
        try:
            built.append(build_one(table))
        except ConfigError as error:
            built.append(None)
            problems.append(str(error))
    return built, problems


def _method_of(table: Mapping[str, Any]) -> Any:
    name = table.get("method")
    return (
        None
        if name is None
        else config.build(methods[name].make, table.get("options", {}), what=name)
    )


def _setup_of(table: Mapping[str, Any]) -> Setup:
    words = {**table.get("setup", {}), **({"data": table["data"]} if "data" in table else {})}
    return config.build(Setup, words, what="setup")


def _inference_of(table: Mapping[str, Any]) -> Any:
    options = dict(table.get("evaluate", {}))
    name = str(options.pop("inference", "last-layer-vi"))
    return (
        config.build(inferences[name].make, options, what=f"evaluate by {name}")
        if table.get("evaluate")
        else None
    )


def _own_data(setup: Setup) -> Dataset:
    """What the coreset was made of."""
    try:
        with stage("load"):
            return load(setup.data)
    except DataError as error:
        raise DataError(
            f"{error}; if what the coreset was made of has moved, say where it is (--data)"
        ) from error


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"unknown device {name!r}; there are auto, cpu and cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda was asked for, but torch sees no CUDA device here; use cpu or auto"
        )
    return torch.device(name)


def _model(setup: Setup, data: Dataset) -> FlatModel:
    name = setup.model or ""
    given: dict[str, Any] = {
        name: getattr(setup, name) for name in ("width", "depth", "norm", "init")
    }
    given = {name: value for name, value in given.items() if value is not None}
    if foreign.is_custom(name):
        return foreign.load(name, data.shape, data.num_classes, given)
    make = models[name].make
    known = {option.name for option in config.options(make)}
    if unknown := sorted(set(given) - known):
        raise ConfigError(
            f"model {setup.model!r} has no {' or '.join(unknown)}; it has {', '.join(sorted(known)) or 'no options'}"
        )
    model: FlatModel = config.build(make, given, what=f"model {setup.model}").build(
        data.shape, data.num_classes
    )
    return model
