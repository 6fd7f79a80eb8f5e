"""`pseudocore fidelity RUN`: the distance from full-data inference of the coreset of a run or a file."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from pseudocore.assembly import Setup
from pseudocore.cli import flags as flagging
from pseudocore.cli.console import err, hint, out, print_json, progress
from pseudocore.cli.evaluate import NOT_CHANGEABLE, intended
from pseudocore.cli.flags import AtLeastOne, Device, Switch, Whole
from pseudocore.cli.output import file_name, keep_and_show, warn_of_divergence
from pseudocore.core.registry import inferences
from pseudocore.data import load as load_data
from pseudocore.evaluation.fidelity import Fidelity
from pseudocore.store.coreset_file import CORESET_FILE, load_coreset, save_coreset
from pseudocore.store.run_folder import Run
from pseudocore.workflows import fidelity as measuring
from pseudocore.workflows import references

NAME = "fidelity"
_ON = ("test", "held-out", "corrupted")


def make_app(words: Sequence[str]) -> App:
    """The verb with the flags of the inference that `words` ask for."""
    name = flagging.value_of(words, "--inference") or intended(words)
    of_inference = flagging.parameters(inferences[name].make, f"Inference: {name}")
    of_setup = flagging.parameters(
        Setup, "Change what the coreset was made with", skip=NOT_CHANGEABLE
    )
    return flagging.verb(NAME, _verb(name, words), [*of_inference, *of_setup])


def _verb(name: str, words: Sequence[str]) -> Callable[..., Any]:
    def fidelity(
        run: Path,
        /,
        *,
        reference: str | None = None,
        inference: Annotated[
            str | None, Parameter(help=f"One of {', '.join(inferences.names())}.")
        ] = None,
        on: str = "test",
        seeds: Annotated[int, AtLeastOne] = 2,
        first_seed: Annotated[int, Whole] = 0,
        save_reference: Path | None = None,
        record: Annotated[bool, Switch] = False,
        data: str | None = None,
        device: Device = "auto",
        json: Annotated[bool, Switch] = False,
        **given: Any,
    ) -> int:
        """Compare inference on the coreset of a RUN or file with inference on all its data.

        Args:
            run: RUN folder or coreset file.
            reference: Full-data inference to compare with: a name such as hmc, or a file of
                --save-reference. Defaults to the same inference as on the coreset.
            on: Inputs to compare predictions on: test, held-out training inputs, corrupted test
                images, or another data set.
            seeds: Fits to the coreset.
            first_seed: Seed of the first.
            save_reference: File to write the reference to, for others to compare with.
            record: Also write the result into the coreset's file.
            data: Data set. Defaults to the one the coreset was made from.
            json: Print only a flat object of numbers, fidelity_kl and so on.
        """
        options_given = flagging.given(given, inferences[name].make)
        changes = flagging.given(given, Setup)
        folder = None if run.is_file() else Run.open(run)
        coreset = load_coreset(run) if folder is None else folder.coreset()
        if folder is not None:
            warn_of_divergence(folder)
        inputs: Any = on if on in _ON else load_data(on)
        with progress(f"{name} on {run} and on all data", seeds) as advance:
            result = measuring.fidelity(
                coreset,
                data,
                inference=name,
                reference=reference,
                on=inputs,
                seeds=seeds,
                first_seed=first_seed,
                device=device,
                setup=changes,
                on_seed=lambda seed, measures: advance(
                    seed + 1 - first_seed, {"kl": measures["fidelity_kl"]}
                ),
                on_reference=lambda full: (
                    None if save_reference is None else references.save(save_reference, full)
                ),
                **options_given,
            )
        what_differs = {
            "reference": reference and Path(reference).name,
            "on": None if on == "test" else on,
            "data": result["data"] if data is not None else None,
            "seeds": seeds if seeds != 2 else None,
            "first_seed": first_seed,
        }
        asked = {field: value for field, value in what_differs.items() if value}
        saved = {**result, "command": shlex.join(["pseudocore", NAME, *words])}
        keep: list[Callable[[], object]] = []
        if folder is not None:
            stem = file_name(name, {**changes, **options_given, **asked})
            keep.append(lambda: folder.save_fidelity(stem, saved))
        if record:
            path = run if folder is None else run / CORESET_FILE
            marked = coreset.with_provenance(fidelity=result.summary())
            keep.append(lambda: save_coreset(path, marked))
        keep_and_show(lambda: _show(result, f"{run}  {name}", json), *keep)
        if not json:
            where = f"saved in {run}/fidelity" if folder is not None else "not saved: no RUN folder"
            hint(where + (f"; recorded in {run}" if record else ""))
        return 0

    return fidelity


def _show(result: Fidelity, title: str, as_json: bool) -> None:
    if as_json:
        print_json(result.flat())
    else:
        out.print(f"{title} against {result.reference}, {result.num_inputs} inputs")
        out.print(result.table())
    for sentence in result.warnings:
        err.print(f"warning: {sentence}")
