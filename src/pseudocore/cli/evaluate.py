"""`pseudocore evaluate RUN`: test-set metrics of an inference on the coreset of a run or a file."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from pseudocore import api
from pseudocore.assembly import PRIOR_FIELDS, READING_FIELDS, Setup
from pseudocore.assembly.contracts import DEFAULT_INFERENCE
from pseudocore.assembly.contracts import intended as intended_for
from pseudocore.cli import engine
from pseudocore.cli import flags as flagging
from pseudocore.cli.console import err, hint, out, print_json, progress
from pseudocore.cli.flags import AtLeastOne, Device, Switch, Whole
from pseudocore.cli.output import file_name, keep_and_show, warn_of_divergence
from pseudocore.core.registry import inferences
from pseudocore.evaluation.names import DETAILS, format_metric, num_digits
from pseudocore.store.coreset_file import CORESET_FILE, load_coreset
from pseudocore.store.run_folder import Run
from pseudocore.workflows.on_engine import FOLDER

NAME = "evaluate"
_NUM_ROBUST = 1000
NOT_CHANGEABLE = ("data", *READING_FIELDS, *PRIOR_FIELDS, "experts")
"""Setup fields that an evaluation cannot change: inferences have flags of the prior's names."""


def make_app(words: Sequence[str]) -> App:
    """The verb with the flags of the inference that `words` ask for."""
    name = flagging.value_of(words, "--inference") or intended(words)
    of_inference = flagging.parameters(inferences[name].make, f"Inference: {name}")
    of_setup = flagging.parameters(
        Setup, "Change what the coreset was made with", skip=NOT_CHANGEABLE
    )
    return flagging.verb(NAME, _verb(name, words), [*engine.parameters(), *of_inference, *of_setup])


def intended(words: Sequence[str]) -> str:
    """The inference that the run or coreset file among `words` is meant for."""
    for path in map(Path, words):
        is_run = (path / CORESET_FILE).is_file()
        if is_run or (path.suffix == ".safetensors" and path.is_file()):
            return intended_for(load_coreset(path))[0]
    return DEFAULT_INFERENCE


def _verb(name: str, words: Sequence[str]) -> Callable[..., Any]:
    def evaluate(
        run: Path,
        /,
        *,
        inference: Annotated[
            str | None, Parameter(help=f"One of {', '.join(inferences.names())}.")
        ] = None,
        seeds: Annotated[int, AtLeastOne] = 5,
        first_seed: Annotated[int, Whole] = 0,
        severity: Annotated[list[int] | None, Parameter(negative="")] = None,
        ood: str | None = None,
        num_robust: Annotated[int, AtLeastOne] = _NUM_ROBUST,
        published: Annotated[bool, Switch, Parameter(group=flagging.FAULTS)] = False,
        landscape: Annotated[bool, Switch] = False,
        discrepancy: Annotated[bool, Switch] = False,
        fidelity: Annotated[bool, Switch] = False,
        reference: str | None = None,
        data: str | None = None,
        device: Device = "auto",
        json: Annotated[bool, Switch] = False,
        **given: Any,
    ) -> int:
        """Evaluate a RUN or a coreset file.

        Args:
            run: RUN folder or coreset file.
            seeds: Fresh networks to fit.
            first_seed: Seed of the first network.
            severity: Also score test images under all 15 corruptions at this severity, 1 to 5;
                repeat for several.
            ood: Also detect test inputs of this other data set by uncertainty.
            num_robust: Test inputs used for --severity and --ood.
            published: Also compute NLL and ECE as published evaluators do, to compare with printed
                numbers.
            landscape: Also compute the losses of coreset and data between networks trained on
                either, for the report.
            discrepancy: Also compute MMD and KSD, how far the points are from the data.
            fidelity: Also measure the distance to inference on all data, which takes as long as that
                does; it is kept for next time.
            reference: As for pseudocore fidelity; implies --fidelity.
            data: Data set. Defaults to the one the coreset was made from.
            json: Print only a flat object of metrics, each {mean, sd}.
        """
        options_given = flagging.given(given, inferences[name].make)
        changes = flagging.given(given, Setup)
        folder = None if run.is_file() else Run.open(run)
        chosen = engine.chosen(given, device)
        coreset = load_coreset(run) if folder is None else folder.coreset()
        if folder is not None:
            warn_of_divergence(folder)
        what_differs = {
            "data": data,
            "severity": "".join(map(str, severity or ())),
            "ood": ood,
            "num_robust": num_robust if severity or ood is not None else None,
            "published": "yes" if published else None,
            "landscape": "yes" if landscape else None,
            "discrepancy": "yes" if discrepancy else None,
            "fidelity": "yes" if fidelity or reference else None,
            "reference": reference and Path(reference).name,
            "first_seed": first_seed,
        }
        asked = {field: value for field, value in what_differs.items() if value}
        if num_robust == _NUM_ROBUST:
            asked.pop("num_robust", None)
        own = file_name(name, {**changes, **options_given, **asked})
        kept = None if folder is None else folder.seeds_file(own)
        with progress(f"{name} on {run}", seeds) as advance:
            result = api.evaluate(
                coreset,
                data,
                inference=name,
                seeds=seeds,
                first_seed=first_seed,
                device=device,
                setup=changes,
                severities=tuple(severity or ()),
                ood=ood,
                num_robust=num_robust,
                published=published,
                landscape=landscape,
                discrepancy=discrepancy,
                fidelity=fidelity if reference is None else reference,
                engine=chosen,
                engine_folder=None if chosen is None else _work(run),
                on_seed=lambda seed, metrics: advance(
                    seed + 1 - first_seed, dict(list(metrics.scalars().items())[:2])
                ),
                resume=kept,
                **options_given,
            )
        if folder is None or kept is None:
            _show(result, f"{run}  {name}", json)
            if not json:
                err.print("not saved, as there is no RUN folder; --json prints the numbers")
            return 0
        named: dict[str, Any] = {
            field: result[field] for field in ("data", "ood") if field in asked
        }
        saved = {
            **result,
            "reduction_cost": folder.manifest.get("cost"),
            "command": shlex.join(["pseudocore", NAME, *words]),
        }

        def keep() -> None:
            own_name = file_name(name, {**changes, **options_given, **asked, **named})
            folder.save_evaluation(own_name, saved)
            kept.unlink(missing_ok=True)

        keep_and_show(lambda: _show(result, f"{run}  {name}", json), keep)
        if not json:
            hint(
                f"saved in {run}/evaluations; next: pseudocore compare {run} OTHER… "
                f"or pseudocore report {run} --out report.html"
            )
        return 0

    return evaluate


def _work(run: Path) -> Path:
    """Where workers keep what they measured."""
    return (run if run.is_dir() else run.parent) / FOLDER


def _show(result: Mapping[str, Any], title: str, as_json: bool) -> None:
    if as_json:
        print_json(result["metrics"])
    else:
        scores = "  ".join(
            f"{metric} {format_metric(**score, digits=num_digits(metric))}"
            for metric, score in result["metrics"].items()
            if metric not in DETAILS
        )
        networks = f"{result['seeds']} network{'s' * (result['seeds'] > 1)}"
        out.print(f"{title}  {scores}  ({networks}, {result['seconds']:.1f} s)")
        if result.get("chosen"):
            err.print(f"chosen, not on the test set: {_spans(result['chosen'])}")
    for sentence in result.get("warnings", []):
        err.print(f"warning: {sentence}")


def _spans(chosen: Sequence[Mapping[str, float]]) -> str:
    """The range over seeds of each setting that was chosen."""
    texts = []
    for name in chosen[0]:
        if name not in ("seed", "held_out_nll"):
            values = sorted({f"{one[name]:.3g}" for one in chosen}, key=float)
            texts.append(f"{name} {values[0]}" + (f" to {values[-1]}" if len(values) > 1 else ""))
    return ", ".join(texts)
