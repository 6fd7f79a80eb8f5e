"""`pseudocore size DATA --within 0.05`: the smallest coreset that stays this near full-data inference."""

import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter, validators

from pseudocore.assembly import Setup
from pseudocore.cli import flags as flagging
from pseudocore.cli.console import err, hint, out, print_json, progress
from pseudocore.cli.flags import AtLeastOne, Device, Json, Switch, Whole
from pseudocore.core.config import Option, alternatives, options
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import inferences, methods
from pseudocore.evaluation.size import Size
from pseudocore.store.files import write_bytes
from pseudocore.workflows import size as sizing

NAME = "size"
CURVE_FILE = "curve.svg"
NOT_MET = 3
"""Exit code where no coreset met the bound."""

Share = validators.Number(gt=0, lt=1)
Above0 = validators.Number(gt=0)


def make_app(words: Sequence[str]) -> App:
    """The verb with the flags of a setup."""
    of_setup = flagging.parameters(Setup, "Data and model", skip=["data", "experts"])
    return flagging.verb(NAME, _verb(words), of_setup)


def _verb(words: Sequence[str]) -> Any:
    def size(
        data: str,
        /,
        *,
        within: Annotated[float, Parameter(validator=Above0)],
        out: Path,
        methods: str = ",".join(sizing.METHODS),
        budgets: str = ",".join(map(str, sizing.BUDGETS)),
        confidence: Annotated[float, Parameter(validator=Share)] = 0.9,
        inference: Annotated[
            str | None, Parameter(help=f"One of {', '.join(inferences.names())}.")
        ] = None,
        seeds: Annotated[int, AtLeastOne] = 2,
        seed: Annotated[int, Whole] = 0,
        every: Annotated[bool, Switch] = False,
        set_: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
        device: Device = "auto",
        json: Json = False,
        **given: Any,
    ) -> int:
        """Find the smallest coreset of DATA within a bound of full-data inference.

        Exit code 3 says that none met it; the nearest is the answer then.

        Args:
            data: Data set: a name (see `pseudocore data list`) or a path.
            within: Bound on KL(full ‖ coreset) of predictions, in nats, on held-out training points.
            out: Folder for the answer, the curve and the runs; the same command resumes there.
            methods: Methods to try, with commas.
            budgets: Points per class to try, with commas.
            confidence: Confidence in the bound, over held-out points and seeds.
            inference: On coresets and on all data alike. Defaults to the best sampler that the size
                of data and model allow.
            seeds: Coresets of each method and budget.
            seed: The first of their seeds, and that of the reference.
            every: Try all budgets, for the whole curve.
            set_: An option of a method, as vbpc.num_steps=300; repeat for several.
        """
        names, sizes = methods.split(","), _numbers(budgets)
        with progress(f"size of {data}", len(names) * len(sizes)) as advance:
            result = sizing.size(
                data,
                within=within,
                methods=names,
                budgets=sizes,
                confidence=confidence,
                inference=inference,
                seeds=seeds,
                seed=seed,
                out=out,
                every=every,
                method_options=_options(set_ or []),
                device=device,
                on_row=lambda row, done, _: advance(done, {"kl": row.kl, "below": row.upper}),
                on_skip=lambda name, why: err.print(f"{name} is left out: {why}"),
                **flagging.given(given, Setup),
            )
        if find_spec("matplotlib"):
            from pseudocore.report.size_figure import curve

            write_bytes(out / CURVE_FILE, curve(result))
        _show(result, out, json)
        return 0 if result.met else NOT_MET

    return size


def _show(result: Size, folder: Path, as_json: bool) -> None:
    if as_json:
        print_json(result.to_dict())
        return
    out.print(result.table())
    out.print(result.sentence())
    answer = folder / "coreset.safetensors"
    following = shlex.join(["pseudocore", "fidelity", str(answer)])
    hint(f"the coreset is in {answer}, the curve in {folder}; next: {following}")


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--budgets {text} is not a list of whole numbers, such as 1,2,5",
            code="invalid-budgets",
            budgets=text,
        ) from None


def _options(texts: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
    """`method.field=value` by method and field."""
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        target, _, value = text.partition("=")
        name, _, field = target.partition(".")
        if not (value and field):
            raise ConfigError(
                f"--set {text} is not METHOD.FIELD=VALUE", code="invalid-setting", setting=text
            )
        known = {option.name: option for option in options(methods[name].make)}
        if field not in known:
            raise ConfigError(
                f"method {name!r} has no {field}; it has {', '.join(known)}",
                code="unknown-option",
                method=name,
                option=field,
            )
        found.setdefault(name, {})[field] = _value(known[field], value)
    return found


def _value(option: Option, text: str) -> Any:
    kinds = alternatives(option.type)
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                pass
    return text == "true" if bool in kinds else text
