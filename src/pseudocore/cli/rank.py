"""`pseudocore rank RUN`: what a distilled set is worth beyond its labels and its augmentation."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from pseudocore.assembly import Setup
from pseudocore.cli import flags as flagging
from pseudocore.cli.console import out, print_json, progress
from pseudocore.cli.evaluate import NOT_CHANGEABLE
from pseudocore.cli.flags import AtLeastOne, Device, Json, Whole
from pseudocore.core.registry import inferences
from pseudocore.workflows.ranking import ranking

NAME = "rank"


def make_app(words: Sequence[str]) -> App:
    """The verb with the flags of the inference that `words` ask for."""
    name = flagging.value_of(words, "--inference") or "sgd"
    of_inference = flagging.parameters(inferences[name].make, f"Inference: {name}")
    of_setup = flagging.parameters(
        Setup, "Change what the coreset was made with", skip=(*NOT_CHANGEABLE, "augment")
    )
    return flagging.verb(NAME, _verb(name), [*of_inference, *of_setup])


def _verb(name: str) -> Callable[..., Any]:
    def rank(
        run: Path,
        /,
        *,
        inference: Annotated[
            str | None,
            Parameter(help=f"One of {', '.join(inferences.names())}. Defaults to sgd."),
        ] = None,
        augment: str | None = None,
        weight: float = 0.5,
        reference: str | None = None,
        seeds: Annotated[int, AtLeastOne] = 3,
        first_seed: Annotated[int, Whole] = 0,
        data: str | None = None,
        device: Device = "auto",
        json: Json = False,
        **given: Any,
    ) -> int:
        """Score a RUN or a coreset file as DD-Ranking does.

        Args:
            run: RUN folder or coreset file.
            augment: Augmentation that belongs to the set, such as color_crop_cutout_scale_rotate;
                without it there is no augmentation-robust score.
            weight: Weight of the improvement over random, 0 to 1.
            reference: Inference on all data. Defaults to the same as on the set.
            seeds: Trainings of each kind.
            first_seed: Seed of the first.
            data: Data set. Defaults to the one the coreset was made from.
        """
        kinds = inferences[name].make
        with progress(f"{name} on {run}, all data and random examples", seeds) as advance:
            found = ranking(
                run,
                data,
                inference=name,
                augment=augment,
                weight=weight,
                reference=reference,
                seeds=seeds,
                first_seed=first_seed,
                device=device,
                setup=flagging.given(given, Setup),
                on_seed=lambda seed, scores: advance(seed + 1 - first_seed, {"lrs": scores["lrs"]}),
                **flagging.given(given, kinds),
            )
        if json:
            print_json(found.to_dict())
        else:
            out.print(f"{run}  {name}, {found.labels} labels, against {found.reference}")
            out.print(found.table())
        return 0

    return rank
