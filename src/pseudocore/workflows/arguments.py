"""What the functions of a notebook are given, as the objects they work on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pseudocore.assembly import Data, Reduction, Setup, described
from pseudocore.assembly.contracts import build_problem, intended
from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.types import Coreset, Inference, Method
from pseudocore.store.coreset_file import load_coreset
from pseudocore.workflows.reduction import ReduceResult, configuration


def reduction_of(
    method: str | Method,
    data: Data | None,
    model: Any,
    preset: str | None,
    seed: int | None,
    options: Mapping[str, Any],
) -> tuple[Reduction, Any]:
    """What `reduce` was asked for, and the network where the configuration cannot rebuild it."""
    fields, network = described(model)
    if not isinstance(method, str):
        _check_method(method)
    known = {option.name for option in config.options(Setup)}
    setup = {name: value for name, value in options.items() if name in known} | fields
    own = {name: value for name, value in options.items() if name not in known}
    if isinstance(data, str | Path):
        setup["data"] = str(data)
    elif data is None and preset is None:
        raise TypeError("data must be given: a name, a path or a Dataset")
    if isinstance(method, str):
        table = configuration(method, preset, setup, own, seed)
        return Reduction.from_config(table), network
    if own or preset is not None:
        raise ConfigError(
            f"{', '.join(own) or 'preset'} given beside a method that is already made; give the"
            " method by name, or make it with them",
            code="options-beside-instance",
            options=sorted(own),
        )
    return Reduction(method, config.build(Setup, setup, what="setup"), seed or 0), network


def _check_method(method: Any) -> None:
    """Refuse what is no method, and one whose fields are out of bounds."""
    if isinstance(method, type) or not isinstance(method, Method):
        given = (
            f"the class {method.__name__}" if isinstance(method, type) else type(method).__name__
        )
        raise TypeError(
            "method must be a name, a method of pseudocore.methods such as VBPC(per_class=1), or an"
            f" object with select, or with num_steps, init, step and coreset; not {given}"
        )
    config.check(method)


def coreset_of(source: Any) -> Coreset:
    """A coreset, from itself, from what made it, or from a path."""
    if isinstance(source, ReduceResult):
        return source.coreset
    if isinstance(source, Coreset):
        return source
    if isinstance(source, str | Path):
        return load_coreset(source)
    raise TypeError(
        "coreset must be a Coreset, what reduce returned, or the path of a file or run, not"
        f" {type(source).__name__}"
    )


def problem_of(
    source: Any,
    data: Data | None,
    device: str,
    network: Any,
    changes: Mapping[str, Any],
    *,
    needs_data: bool = True,
) -> Problem:
    """The problem of a coreset; what a result holds already is used again."""
    if isinstance(source, ReduceResult):
        data = source.problem.dataset if data is None else data
        own = str(source.problem.model.describe().get("name"))
        if "model" not in changes and ":" in own:
            network, changes = source.problem.model, {**changes, "model": own}
    return build_problem(
        coreset_of(source), data, device=device, network=network, needs_data=needs_data, **changes
    )


def check_inference(inference: Any) -> None:
    """Refuse what is no inference, with a TypeError."""
    if inference is None or isinstance(inference, str):
        return
    if isinstance(inference, type) or not isinstance(inference, Inference):
        given = inference if isinstance(inference, type) else type(inference)
        raise TypeError(
            "inference must be a name, an inference of pseudocore.inference such as SGD(), or an"
            f" object with fit(problem, coreset, rng); not {given.__name__}"
        )


def inference_for(
    coreset: Coreset, inference: str | Inference | None, options: Mapping[str, Any]
) -> Inference:
    """The inference asked for; by default, or where it is the same, with the options that the
    coreset carries.
    """
    check_inference(inference)
    if inference is None or isinstance(inference, str):
        name, own = intended(coreset)
        if inference is None or inference == name:
            inference, options = name, {**own, **config.without_aliases(options)}
        built: Inference = config.build(inferences[inference].make, options, what=inference)
        return built
    if options:
        raise ConfigError(
            f"{', '.join(options)} given beside an inference that is already made; make it with"
            " them instead",
            code="options-beside-instance",
            options=sorted(options),
        )
    config.check(inference)
    return inference
