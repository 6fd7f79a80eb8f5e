"""`pseudocore bench`: the speed of steps, their memory, and how both grow."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter, validators

from pseudocore.cli import flags as flagging
from pseudocore.cli.console import err, hint, out, print_json
from pseudocore.cli.flags import CompileMode, Device, Json
from pseudocore.cli.output import keep_and_show
from pseudocore.core import config
from pseudocore.reproduce import records
from pseudocore.reproduce.bench import formatting, plan, tasks
from pseudocore.reproduce.bench.workload import SIZES, Workload, device_of
from pseudocore.store.files import write_json
from pseudocore.store.run_folder import refuse_own_file

NAME = "bench"
_Names = Annotated[list[str] | None, Parameter(negative="", show_default=False)]


def make_app(words: Sequence[str]) -> App:
    """The verb with the sizes of the workload as flags."""
    return flagging.verb(NAME, _function(), flagging.parameters(Workload, "Workload"))


def _function() -> Callable[..., Any]:
    def bench(
        *,
        method: _Names = None,
        part: _Names = None,
        growth: _Names = None,
        seconds: Annotated[float, Parameter(validator=validators.Number(gt=0))] = 90.0,
        size: Literal["auto", "small", "full"] = "auto",
        device: Device = "auto",
        compile: CompileMode = "auto",
        file: Annotated[Path | None, Parameter(name="--out")] = None,
        commit: str = "",
        json: Json = False,
        **given: Any,
    ) -> int:
        """Time steps.

        Args:
            method: A method to time, default all with steps; repeat for several.
            part: A part to time, default all, or none if a method is named; repeat for several.
            growth: A method to measure at other sizes too, default bpc-fkl and vbpc, or none if
                a method or part is named; repeat for several.
            seconds: Start nothing new after this long.
            size: Sizes to start from: full, the published ones, on a GPU.
            file: JSON file for the numbers, or a .jsonl file to add them to as a line.
            commit: Kept with the numbers: what was timed.
        """
        if file is not None:
            refuse_own_file(file)
        where = device_of(device)
        start = SIZES[size if size != "auto" else "full" if where == "cuda" else "small"]
        fields = {**config.to_dict(start), **flagging.given(given, Workload)}
        names, growing = [*(method or ()), *(part or ())], [*(growth or ())]
        if not (names or growing):
            names, growing = [*plan.default_methods(), *tasks.PARTS], [*plan.GROWTH_METHODS]
        say = (err if json else out).print
        document = plan.run(
            config.build(Workload, fields, what=NAME),
            names=names,
            growing=growing,
            device=where,
            compile=compile,
            seconds=seconds,
            commit=commit,
            on_ceilings=lambda found: say(
                f"{formatting.ceilings_line(found)}\n{formatting.HEADER}"
            ),
            on_row=lambda row: say(formatting.row_line(row)),
            on_curve=lambda curve: say(formatting.curve_line(curve)),
        )
        for line in formatting.closing_lines(document):
            err.print(line)
        keep_and_show(
            lambda: print_json(document) if json else None,
            *([] if file is None else [lambda: _keep(document, file)]),
        )
        return 0

    return bench


def _keep(document: Mapping[str, Any], file: Path) -> None:
    if file.suffix == ".jsonl":
        records.put(file, {"name": document["date"], **document})
    else:
        write_json(file, document)
    hint(f"numbers in {file}")
