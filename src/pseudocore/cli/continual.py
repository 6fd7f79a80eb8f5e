"""`pseudocore continual RUN`: class-incremental learning from a memory made as the run was made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.table import Table

from pseudocore.assembly import NETWORK_FIELDS, Reduction, reading
from pseudocore.assembly.trust import refuse_named_code
from pseudocore.cli import flags as flagging
from pseudocore.cli.console import hint, out, print_json, progress
from pseudocore.cli.flags import AtLeastOne, Device, Json
from pseudocore.cli.output import file_name, keep_and_show
from pseudocore.core.registry import inferences
from pseudocore.data import read
from pseudocore.evaluation.names import format_metric, metric_title
from pseudocore.reproduce import continual as protocol
from pseudocore.store.files import write_json
from pseudocore.store.run_folder import Run, refuse_own_file

NAME = "continual"


def make_app(words: Sequence[str]) -> App:
    """The verb with the flags of the inference that `words` ask for."""
    name = flagging.value_of(words, "--inference") or "sgd"
    of_inference = flagging.parameters(inferences[name].make, f"Inference: {name}")
    return flagging.verb(NAME, _function(name), of_inference)


def _function(name: str) -> Callable[..., Any]:
    def continual(
        run: Path,
        /,
        *,
        stages: Annotated[int, AtLeastOne] = 5,
        seeds: Annotated[int, AtLeastOne] = 3,
        inference: Annotated[str | None, Parameter(show_default=False)] = None,
        keep: Annotated[Path | None, Parameter(name="--out")] = None,
        model: Annotated[str | None, Parameter(show_default=False)] = None,
        device: Device = "auto",
        json: Json = False,
        **given: Any,
    ) -> int:
        """Run the protocol.

        Args:
            run: RUN folder, whose method, options, data and model are used stage by stage.
            stages: Stages the classes arrive in.
            seeds: Orders of the classes to run through.
            inference: How to fit the memory. Defaults to sgd.
            keep: JSON file for the results, besides RUN.
            model: Network. Defaults to RUN's; one of your own must be named here.
        """
        folder = Run.open(run)
        if keep is not None:
            refuse_own_file(keep)
        reduction = Reduction.from_config(folder.config)
        named = () if model is None else ("model",)
        own = reduction.to_config()
        refuse_named_code(own["setup"], own["options"], f"{run} was made with", named=named)
        if model is not None and model != reduction.setup.model:  # which has its own width and norm
            others: dict[str, Any] = dict.fromkeys(NETWORK_FIELDS)
            setup = replace(reduction.setup, model=model, **others)
            reduction = replace(reduction, setup=setup)
        options, data = (
            flagging.given(given, inferences[name].make),
            read(reduction.setup.data, reading(reduction.setup)),
        )
        results: list[protocol.Stage] = []
        with progress(f"continual on {run}", stages * seeds) as advance:

            def on_stage(stage: protocol.Stage) -> None:
                results.append(stage)
                advance(len(results), {"accuracy": stage.metrics["accuracy"]})

            protocol.continual(
                reduction,
                data,
                num_stages=stages,
                inference=name,
                options=options,
                seeds=seeds,
                device=device,
                on_stage=on_stage,
            )
        document = {
            "run": str(run),
            "inference": name,
            "options": options,
            "stages": [stage._asdict() for stage in results],
        }
        keep_and_show(
            lambda: print_json(document) if json else out.print(_table(results)),
            lambda: folder.save_continual(file_name(f"{name}-{stages}-stages", options), document),
            *([] if keep is None else [lambda: _copy(document, keep)]),
        )
        return 0

    return continual


def _copy(document: Mapping[str, Any], file: Path) -> None:
    write_json(file, document)
    hint(f"kept in {file}")


def _table(results: Sequence[protocol.Stage]) -> Table:
    """A row for each stage: mean ± sd over seeds."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    names = list(results[0].metrics)
    for title in ("stage", "classes", "memory", *map(metric_title, names)):
        table.add_column(title, justify="right")
    for number in sorted({stage.stage for stage in results}):
        alike = [stage for stage in results if stage.stage == number]
        cells = []
        for name in names:
            values = [stage.metrics[name] for stage in alike]
            cells.append(format_metric(mean(values), stdev(values) if len(values) > 1 else None))
        table.add_row(str(number), str(alike[0].num_classes), str(alike[0].memory), *cells)
    return table
