"""pseudocore bench: how fast steps are here, how much memory they take, and how that grows."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter, validators

from pseudocore.cli import flags as flagging
from pseudocore.cli.console import err, out, print_json
from pseudocore.cli.flags import Device, Json
from pseudocore.cli.output import keep_and_show
from pseudocore.core import config
from pseudocore.reproduce.bench import formatting as lines
from pseudocore.reproduce.bench import plan, tasks
from pseudocore.reproduce.bench.workload import SIZES, Workload, device_of
from pseudocore.runtime import COMPILE_HELP, Compile
from pseudocore.store.files import write_json
from pseudocore.store.run_folder import refuse_own_file

NAME = "bench"


def make_app(words: Sequence[str]) -> App:
    """The verb with the sizes of the workload as flags."""
    return flagging.verb(NAME, _verb(), flagging.parameters(Workload, "Workload"))


def _several(help: str) -> Any:
    return Parameter(negative="", show_default=False, help=f"{help}; repeat it for several.")


def _verb() -> Callable[..., Any]:
    def bench(
        *,
        method: Annotated[
            list[str] | None,
            _several(f"A method to time [default: {' '.join(plan.usual_methods())}]"),
        ] = None,
        part: Annotated[
            list[str] | None,
            _several(
                f"A part to time [default: all, or none if a method is named: {' '.join(tasks.PARTS)}]"
            ),
        ] = None,
        growth: Annotated[
            list[str] | None,
            _several(
                f"A method to measure at other sizes too [default: {' '.join(plan.GROWING)}, or none]"
            ),
        ] = None,
        seconds: Annotated[
            float,
            Parameter(
                validator=validators.Number(gt=0), help="After this long nothing new is begun."
            ),
        ] = 90.0,
        size: Annotated[
            Literal["auto", "small", "full"],
            Parameter(help="Sizes to start from: full, the published ones, on a GPU."),
        ] = "auto",
        device: Device = "auto",
        compile: Annotated[Compile, Parameter(help=COMPILE_HELP)] = "auto",
        file: Annotated[
            Path | None, Parameter(name="--out", help="JSON file to keep the numbers in.")
        ] = None,
        commit: Annotated[str, Parameter(help="Kept beside the numbers: what was timed.")] = "",
        json: Json = False,
        **given: Any,
    ) -> int:
        if file is not None:
            refuse_own_file(file)
        where = device_of(device)
        start = SIZES[size if size != "auto" else "full" if where == "cuda" else "small"]
        workload = config.build(
            Workload, {**config.to_dict(start), **flagging.given(given, Workload)}, what=NAME
        )
        everything = not (method or part or growth)
        say = (err if json else out).print
        document = plan.run(
            workload,
            names=[*plan.usual_methods(), *tasks.PARTS]
            if everything
            else [*(method or ()), *(part or ())],
            growing=plan.GROWING if everything else growth or (),
            device=where,
            compile=compile,
            seconds=seconds,
            commit=commit,
            on_ceilings=lambda ceilings: say(f"{lines.of_ceilings(ceilings)}\n{lines.HEADER}"),
            on_row=lambda row: say(lines.of_row(row)),
            on_curve=lambda curve: say(lines.of_curve(curve)),
        )
        for line in lines.closing(document):
            err.print(line)
        keep_and_show(
            lambda: print_json(document) if json else None,
            *([] if file is None else [lambda: _keep(document, file)]),
        )
        return 0

    return bench


def _keep(document: Mapping[str, Any], file: Path) -> None:
    write_json(file, document)
    err.print(f"numbers in {file}")
