"""What a coreset was made for: written down when it is made, kept to when it is used.

`core/contract.py` is the value; here are the problem and the inference that follow from it, and a
sentence for everything that is done otherwise.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pseudocore.assembly import NETWORK_FIELDS, Data, Reduction, Setup, build, device_of, reading
from pseudocore.core import config
from pseudocore.core.contract import Contract, DataSpec
from pseudocore.core.errors import ArtifactError, ConfigError, DataError
from pseudocore.core.likelihood import Gaussian, Likelihood
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.types import (
    AssumesInference,
    Coreset,
    Dataset,
    Inference,
    Preprocess,
    Restorable,
)
from pseudocore.data import hugging_face, read
from pseudocore.data import preprocessing as whiten
from pseudocore.features import backbone
from pseudocore.inference.last_layer_vi import is_linear
from pseudocore.models import custom
from pseudocore.runtime.profiling import stage

DEFAULT_INFERENCE = "last-layer-vi"
"""Of coresets whose method assumes none."""

FAR = 0.5
"""Posterior standard deviations a parameter from which a mode is said to be another."""


def contract_of(reduction: Reduction, problem: Problem, coreset: Coreset) -> Contract | None:
    """The contract of a coreset that a reduction made; None where its preprocessing is of another's
    making, which nothing here could rebuild.
    """
    preprocess, setup = problem.preprocess, config.to_dict(reduction.setup)
    if not isinstance(preprocess, Restorable):
        return None
    inference: Mapping[str, Any] = {}
    if reduction.evaluate:
        inference = {"inference": DEFAULT_INFERENCE, **reduction.evaluate}
    elif isinstance(reduction.method, AssumesInference) and reduction.method.assumes:
        inference = {"inference": reduction.method.assumes}
    if problem.task == "regression" and is_linear(problem) and not reduction.evaluate:
        inference = {}  # the default is exact there
    is_gaussian = problem.task == "regression" or inference.get("inference") == DEFAULT_INFERENCE
    return Contract(
        data=problem.dataset.spec,
        model={name: setup[name] for name in ("model", *NETWORK_FIELDS) if name in setup},
        preprocess=preprocess.describe(),
        constants={name: values.cpu() for name, values in preprocess.constants().items()},
        prior={"kind": problem.prior.kind, "scale": problem.prior.scale},
        temperature=float(inference.get("temperature", 1.0)),
        likelihood="gaussian" if is_gaussian else "categorical",
        total_weight=float(coreset.weight.sum()),
        inference=inference,
        target=problem.likelihood.describe(),
    )


def intended(coreset: Coreset) -> tuple[str, dict[str, Any]]:
    """Name and options of the inference a coreset was made for, by its contract, else by the
    provenance of an older file.
    """
    if coreset.contract is not None:
        options = dict(coreset.contract.inference)
    else:
        options = provenance_table(coreset, "evaluate")
    return str(options.pop("inference", DEFAULT_INFERENCE)), options


def build_problem(
    coreset: Coreset,
    data: Data | None = None,
    *,
    device: str = "auto",
    network: Any = None,
    needs_data: bool = True,
    **changes: Any,
) -> Problem:
    """The problem a coreset was made for, with some fields of its setup changed: by its contract,
    else by its provenance.

    Without `needs_data` and with a contract, no data are loaded unless they are given. Augmentation
    and experts are left out: they belonged to making the coreset.
    """
    contract = coreset.contract
    fields = {**provenance_table(coreset, "setup"), **_setup_fields(contract)}
    fields |= {"augment": None, **changes, "experts": None}
    if isinstance(data, str | Path):
        fields["data"] = str(data)
    alone = contract if data is None and not needs_data else None
    if "data" not in fields and data is None and alone is None:
        raise ConfigError(
            "the coreset does not say what data it stands for; name the data set",
            code="unknown-data",
        )
    if "model" not in changes:
        custom.refuse_code(fields, "the coreset was made with")
    if "model" in changes:  # another network has its own width and norm
        fields = {k: v for k, v in fields.items() if k in changes or k not in NETWORK_FIELDS}
    fields = {name: value for name, value in fields.items() if value is not None}
    is_embedded = isinstance(data, Dataset) and data.embedded is not None
    if alone is None and not is_embedded and not {"features", "feature_weights"} & {*changes}:
        backbone.refuse_code(fields, "the coreset was made with")
    setup = config.build(Setup, fields, what="setup")
    given: Dataset | DataSpec | None
    if alone is not None:
        given = alone.data
    else:
        given = _own_data(setup) if data is None else _other_data(data, setup)
    problem = build(
        setup,
        given,
        device=device,
        network=network,
        preprocess=None if "preprocess" in changes else _preprocess(contract, device),
        likelihood=None if contract is None else _likelihood(contract),
    )
    problem.check_fits(coreset)
    fingerprint = coreset.provenance.get("data_fingerprint")
    if data is None and fingerprint not in (None, problem.data.fingerprint):
        raise DataError(
            f"the coreset was made from another {problem.data.name!r} than the one found here"
            f" (their fingerprints differ); name the data set (--data {setup.data}) to use it"
            " all the same",
            code="other-data",
            data=setup.data,
        )
    return problem


def provenance_table(coreset: Coreset, name: str) -> dict[str, Any]:
    """A table of a coreset's provenance, which a stranger may have written."""
    table = coreset.provenance.get(name, {})
    if not isinstance(table, Mapping):
        raise ArtifactError(
            f"the coreset's provenance has {name} = {table!r} where a table should be",
            code="invalid-provenance",
            name=name,
        )
    return dict(table)


def mismatches(coreset: Coreset, fitted: Inference, problem: Problem) -> list[str]:
    """What an inference does otherwise than the coreset's method assumed, a sentence each."""
    contract = coreset.contract
    if contract is None or not contract.inference:
        return []
    (name, options), own = intended(coreset), inferences.name_of(fitted)
    method = str(coreset.provenance.get("method", "its method"))
    if name != own and not (_is_sampler(name) and _is_sampler(own)):
        return [
            f"{method} made these points for inference by {name}, with a {contract.likelihood}"
            f" likelihood; this is by {own}"
        ]
    prior = {"kind": problem.prior.kind, "scale": problem.prior.scale}
    assumed = config.build(inferences[name].make, options, what=name)
    meant, used = _posterior(assumed, contract.prior), _posterior(fitted, prior)
    if meant is not None and used is not None and meant != used:
        return [
            f"{method} made these points for the posterior {_words(*meant)}; this is the one"
            f" {_words(*used)}"
        ]
    return []


def unconverged(coreset: Coreset) -> list[str]:
    """What a coreset's own diagnostics say against it."""
    shift, length = (coreset.provenance.get(name) for name in ("mode_shift", "mode_length"))
    if not isinstance(shift, float) or not isinstance(length, float) or not shift > FAR:
        return []
    return [
        f"psvi had not converged: the mode on these points is {shift:.2g} posterior standard"
        f" deviations a parameter from that of the data, and {length:.2g} times as long; more"
        " num_steps or more points would bring it nearer"
    ]


class _Posterior(NamedTuple):
    """Which posterior an inference is of."""

    kind: str
    scale: float
    temperature: float
    select: str


def _posterior(inference: Inference, prior: Mapping[str, Any]) -> _Posterior | None:
    """By the options of an inference, under a problem's prior; None for one without a prior."""
    options = config.to_dict(inference)
    if "prior" not in options:
        return None
    return _Posterior(
        prior["kind"] if options["prior"] == "problem" else options["prior"],
        options.get("prior_scale", prior["scale"]),
        options.get("temperature", 1.0),
        options.get("select", "none"),
    )


def _words(kind: str, scale: float, temperature: float, select: str) -> str:
    if select != "none":
        return f"selected on training data (select = {select!r})"
    return f"under the {kind} prior of scale {scale:g} at temperature {temperature:g}"


def _is_sampler(name: str) -> bool:
    return name in inferences and inferences[name].kind == "sampler"


def _setup_fields(contract: Contract | None) -> dict[str, Any]:
    """What a contract says of a setup, which a stranger may have written."""
    if contract is None:
        return {}
    network = {name: contract.model.get(name) for name in ("model", *NETWORK_FIELDS)}
    return {
        **network,
        "preprocess": contract.preprocess.get("kind"),
        "prior": contract.prior.get("kind"),
        "prior_scale": contract.prior.get("scale"),
        "task": "regression" if contract.data.task == "regression" else None,
        "target_noise": contract.target.get("noise"),
    }


def _preprocess(contract: Contract | None, device: str) -> Preprocess | None:
    if contract is None:
        return None
    where = device_of(device)
    with stage("preprocess", where):
        constants = {name: values.to(where) for name, values in contract.constants.items()}
        return whiten.restore(contract.preprocess, constants, contract.data.shape)


def _likelihood(contract: Contract) -> Likelihood | None:
    """That of a regression; None for classes."""
    return Gaussian(**contract.target) if contract.data.task == "regression" else None


def _own_data(setup: Setup) -> Dataset:
    """The data a coreset was made from."""
    if setup.data.startswith(hugging_face.PREFIX):
        raise ConfigError(
            f"the coreset was made from {setup.data}, which is not fetched just because a file"
            f" names it; name it yourself (--data {setup.data}, or data=)",
            code="remote-data",
            data=setup.data,
        )
    try:
        with stage("load"):
            return read(setup.data, reading(setup))
    except DataError as error:
        raise DataError(
            f"{error}; if the coreset's data has moved, say where it is (--data)",
            code=error.code,
            **error.fields,
        ) from error


def _other_data(data: Data, setup: Setup) -> Dataset:
    """Data in place of those a coreset was made from, read alike as far as that applies."""
    with stage("load"):
        return read(data, reading(setup, lenient=True))
