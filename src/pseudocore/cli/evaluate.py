"""pseudocore evaluate RUN: test-set metrics of Bayesian inference, or plain training, on a run's coreset."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from pseudocore import api
from pseudocore.cli import flags as flagging
from pseudocore.cli.console import err, out, print_json, progress
from pseudocore.cli.reduce import command_line
from pseudocore.core.config import options
from pseudocore.core.registry import inferences
from pseudocore.evaluation.tables import format_metric
from pseudocore.setup import Setup
from pseudocore.store.runs import Run

__all__ = ["make_app"]

_CHANGEABLE = ("model", "width", "depth", "norm", "init", "preprocess", "augment", "siamese", "precision")


def make_app(tokens: Sequence[str]) -> App:
    """The verb with the flags of the inference that these words ask for."""
    app = App(
        name="evaluate",
        help="Evaluate a RUN: fit by --inference on its coreset, predict the test set, mean ± sd over fresh networks.",
    )
    name = _asked_for(tokens)
    of_inference = flagging.parameters(inferences[name].make, f"Inference: {name}") if name else []
    skip = [option.name for option in options(Setup) if option.name not in _CHANGEABLE]
    app.default(flagging.command(_verb(), of_inference, flagging.parameters(Setup, "Change what the coreset was made with", skip=skip)))
    return app


def _asked_for(tokens: Sequence[str]) -> str | None:
    """The value of --inference; else, when a run is named, the inference its makers meant; else the default."""
    for place, token in enumerate(tokens):
        if token == "--inference" and place + 1 < len(tokens):
            return tokens[place + 1]
        if token.startswith("--inference="):
            return token.partition("=")[2]
    folder = next((Path(token) for token in tokens if not token.startswith("-")), None)
    if folder is not None and (folder / "config.toml").is_file():
        return str(Run.open(folder).config.get("evaluate", {}).get("inference", "last-layer-vi"))
    return "last-layer-vi"


def _verb() -> Callable[..., Any]:
    def evaluate(
        run: Annotated[Path, Parameter(help="RUN folder.")],
        /,
        *,
        inference: Annotated[str | None, Parameter(help=f"One of {', '.join(entry.name for entry in inferences)}.")] = None,
        seeds: Annotated[int, Parameter(help="Fresh networks to fit.")] = 5,
        first_seed: Annotated[int, Parameter(help="Seed of the first network.")] = 0,
        data: Annotated[str | None, Parameter(help="Data set, when it is not the run's own.")] = None,
        device: Annotated[str, Parameter(help="auto, cpu or cuda.")] = "auto",
        json: Annotated[bool, Parameter(help="Print a flat object of metrics, each {mean, sd}, and nothing else.", negative="")] = False,
        **given: Any,
    ) -> int:
        name = _asked_for([str(run), *(["--inference", inference] if inference else [])]) or ""
        chosen = flagging.given(given, inferences[name].make)
        changes = {key: value for key, value in flagging.given(given, Setup).items() if key in _CHANGEABLE and key not in chosen}
        folder = Run.open(run)
        with progress(f"{name} on {run}", seeds) as advance:
            result = api.evaluate(
                folder.coreset(), data, inference=name, seeds=seeds, first_seed=first_seed, device=device, setup=changes,
                on_seed=lambda seed, metrics: advance(seed + 1 - first_seed, {"accuracy": metrics.accuracy, "nll": metrics.nll}), **chosen,
            )  # fmt: skip
        folder.save_evaluation(_file_name(name, changes, chosen), {**result, "command": command_line()})
        if json:
            print_json(result["metrics"])
        else:
            words = "  ".join(f"{metric} {format_metric(score['mean'], score['sd'])}" for metric, score in result["metrics"].items())
            out.print(f"{run}  {name}  {words}  ({seeds} networks, {result['seconds']:.1f} s)")
            err.print(f"kept in {run}/evaluations; next: pseudocore compare {run} OTHER… or pseudocore report {run} --out report.html")
        return 0

    evaluate.__doc__ = "Evaluate a RUN: fit by --inference on its coreset, predict the test set, mean ± sd over fresh networks."
    return evaluate


def _file_name(inference: str, changes: dict[str, Any], options: dict[str, Any]) -> str:
    """A name of its own for every way of evaluating, so that none overwrites another."""
    parts = [f"{key}-{value}" for key, value in sorted({**changes, **options}.items())]
    return ".".join([inference, *parts]).replace("/", "_")
