"""pseudocore evaluate RUN: test-set metrics of Bayesian inference, or plain training, on the
coreset of a run or of a file.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from pseudocore import api
from pseudocore.assembly import Setup
from pseudocore.cli import flags as flagging
from pseudocore.cli.console import err, out, print_json, progress
from pseudocore.cli.flags import AtLeastOne, Device, Switch, Whole
from pseudocore.cli.output import file_name, keep_and_show, warn_of_divergence
from pseudocore.core.config import options
from pseudocore.core.registry import inferences
from pseudocore.evaluation.names import DETAILS
from pseudocore.evaluation.tables import format_metric
from pseudocore.store.coreset_file import load_coreset
from pseudocore.store.run_folder import Run

NAME = "evaluate"
HELP = "Evaluate a RUN, or a coreset file: fit by --inference on its coreset, predict the test set, mean ± sd over fresh networks."
NUM_ROBUST = 1000
_CHANGEABLE = (
    "model",
    "width",
    "depth",
    "norm",
    "init",
    "preprocess",
    "augment",
    "siamese",
    "precision",
)


def make_app(words: Sequence[str]) -> App:
    """The verb with the flags of the inference that these words ask for."""
    app = App(name=NAME, help=HELP)
    name = _asked_for(words)
    of_inference = flagging.parameters(inferences[name].make, f"Inference: {name}")
    skip = [option.name for option in options(Setup) if option.name not in _CHANGEABLE]
    of_setup = flagging.parameters(Setup, "Change what the coreset was made with", skip=skip)
    app.default(flagging.command(_verb(name, words), of_inference, of_setup))
    return app


def _asked_for(words: Sequence[str]) -> str:
    """The value of --inference; else the inference that the makers of the named run or coreset
    meant; else the default.
    """
    if name := flagging.asked_for(words, "--inference"):
        return name
    meant: Any = next((found for word in words if (found := _meant(Path(word))) is not None), {})
    return (
        str(meant.get("inference", "last-layer-vi"))
        if isinstance(meant, Mapping)
        else "last-layer-vi"
    )


def _meant(path: Path) -> Any:
    """How to evaluate what lies there, in the words of who made it; nothing for what is neither a
    run nor a coreset.
    """
    if (path / "config.toml").is_file():
        return Run.open(path).config.get("evaluate", {})
    return (
        load_coreset(path).provenance.get("evaluate", {})
        if path.suffix == ".safetensors" and path.is_file()
        else None
    )


def _verb(name: str, words: Sequence[str]) -> Callable[..., Any]:
    def evaluate(
        run: Annotated[Path, Parameter(help="RUN folder, or a coreset file.")],
        /,
        *,
        inference: Annotated[
            str | None, Parameter(help=f"One of {', '.join(entry.name for entry in inferences)}.")
        ] = None,
        seeds: Annotated[int, AtLeastOne, Parameter(help="Fresh networks to fit.")] = 5,
        first_seed: Annotated[int, Whole, Parameter(help="Seed of the first network.")] = 0,
        severity: Annotated[
            list[int] | None,
            Parameter(
                help="Also score test images under all 15 corruptions at this severity, 1 to 5; repeat for several.",
                negative="",
            ),
        ] = None,
        ood: Annotated[
            str | None,
            Parameter(
                help="Also tell test inputs from those of this other data set by uncertainty."
            ),
        ] = None,
        num_robust: Annotated[
            int, AtLeastOne, Parameter(help="Test inputs used for --severity and --ood.")
        ] = NUM_ROBUST,
        published: Annotated[
            bool,
            Switch,
            Parameter(
                help="Also give NLL and ECE as published evaluators compute them, to compare with printed numbers."
            ),
        ] = False,
        landscape: Annotated[
            bool,
            Switch,
            Parameter(
                help="Also draw the losses of coreset and data between networks trained on either, for the report."
            ),
        ] = False,
        data: Annotated[
            str | None, Parameter(help="Data set, when it is not the run's own.")
        ] = None,
        device: Device = "auto",
        json: Annotated[
            bool,
            Switch,
            Parameter(help="Print a flat object of metrics, each {mean, sd}, and nothing else."),
        ] = False,
        **given: Any,
    ) -> int:
        chosen, changes = flagging.given(given, inferences[name].make), flagging.given(given, Setup)
        folder = None if run.is_file() else Run.open(run)
        coreset = load_coreset(run) if folder is None else folder.coreset()
        if folder is not None:
            warn_of_divergence(folder)
        with progress(f"{name} on {run}", seeds) as advance:
            result = api.evaluate(
                coreset, data, inference=name, seeds=seeds, first_seed=first_seed, device=device, setup=changes,
                severities=tuple(severity or ()), ood=ood, num_robust=num_robust, published=published, landscape=landscape,
                on_seed=lambda seed, metrics: advance(seed + 1 - first_seed, {"accuracy": metrics.accuracy, "nll": metrics.nll}), **chosen,
            )  # fmt: skip
        if folder is None:
            _show(result, f"{run}  {name}", json)
            if not json:
                err.print(
                    "not kept, as a file has no place for it; --json prints the numbers for you to keep"
                )
            return 0
        elsewhere = {"data": result["data"]} if data is not None else {}
        elsewhere |= {"severity": "".join(map(str, severity))} if severity else {}
        elsewhere |= {"ood": result["ood"]} if ood is not None else {}
        elsewhere |= (
            {"num_robust": num_robust} if result["robust"] and num_robust != NUM_ROBUST else {}
        )
        added = {
            word: "yes"
            for word, asked in {"published": published, "landscape": landscape}.items()
            if asked
        }
        later = {"first_seed": first_seed} if first_seed else {}
        kept = {
            **result,
            "reduction_cost": folder.manifest.get("cost"),
            "command": shlex.join(["pseudocore", NAME, *words]),
        }
        keep_and_show(
            lambda: _show(result, f"{run}  {name}", json),
            lambda: folder.save_evaluation(
                file_name(name, {**changes, **chosen, **elsewhere, **added, **later}), kept
            ),
        )
        if not json:
            err.print(
                f"kept in {run}/evaluations; next: pseudocore compare {run} OTHER… or pseudocore report {run} --out report.html"
            )
        return 0

    evaluate.__doc__ = HELP
    return evaluate


def _show(result: Mapping[str, Any], title: str, as_json: bool) -> None:
    if as_json:
        print_json(result["metrics"])
    else:
        scores = "  ".join(
            f"{metric} {format_metric(score['mean'], score['sd'])}"
            for metric, score in result["metrics"].items()
            if metric not in DETAILS
        )
        out.print(
            f"{title}  {scores}  ({result['seeds']} network{'s' * (result['seeds'] > 1)}, {result['seconds']:.1f} s)"
        )
        if result.get("chosen"):
            err.print(f"chosen, not on the test set: {_in_words(result['chosen'])}")
    for sentence in result.get("warnings", []):
        err.print(f"warning: {sentence}")


def _in_words(chosen: Sequence[Mapping[str, float]]) -> str:
    """Each setting that was chosen, over all seeds."""
    names = [name for name in chosen[0] if name not in ("seed", "held_out_nll")]
    spans = {name: sorted({f"{one[name]:.3g}" for one in chosen}, key=float) for name in names}
    return ", ".join(
        f"{name} {span[0]}" + (f" to {span[-1]}" if len(span) > 1 else "")
        for name, span in spans.items()
    )
