"""The numbers of a run in other programs: TensorBoard, Weights & Biases, MLflow.

A logger is called with a step and its values, as `on_log` is:

    with pseudocore.loggers.TensorBoard("events") as log:
        pseudocore.reduce("vbpc", "digits", on_log=log)

Each needs the extra of its name and is imported when it is made. Nothing is sent anywhere unless an
address is given. What a run folder keeps in metrics.jsonl does not depend on any of this.
"""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from pseudocore.core.optional import optional_module

__all__ = ["MLflow", "TensorBoard", "WandB", "check", "opened"]

PROJECT = "pseudocore"
"""The default project, or experiment, that runs are filed under."""

Name = Literal["tensorboard", "wandb", "mlflow"]

OnLog = Callable[[int, Mapping[str, float]], None]


class Logger(Protocol):
    """Where numbers go."""

    where: str
    """What was written, and how to look at it."""

    def __call__(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class _Closing:
    """`with logger:` closes it."""

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class TensorBoard(_Closing):
    """Scalars as TensorBoard's event files; all is on disk after every call.

    Args:
        folder: Where the event files go.
        config: Settings to show beside the curves.
        first_step: Earlier points at this step and later ones are hidden, as after resuming.
    """

    def __init__(
        self, folder: str | Path, *, config: Mapping[str, Any] | None = None, first_step: int = 0
    ) -> None:
        optional_module("tensorboard", "tensorboard", "tensorboard")
        module = optional_module("torch.utils.tensorboard", "tensorboard", "tensorboard")
        self.where = f"TensorBoard events are in {folder}; view: tensorboard --logdir {folder}"
        self._writer = module.SummaryWriter(str(folder), purge_step=first_step)
        for name, value in _flat(config or {}).items():
            self._writer.add_text(name, str(value), first_step)
        self._writer.flush()

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB(_Closing):
    """A run of Weights & Biases, offline by default: `wandb sync` uploads it later.

    Args:
        folder: Where its folder `wandb` goes.
        project: The project to file it under.
        name: The run's name. Defaults to one that wandb makes up.
        mode: "offline" or "online". Defaults to WANDB_MODE, else offline.
        config: Settings to show beside the curves.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        project: str = PROJECT,
        name: str | None = None,
        mode: Literal["offline", "online"] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        wandb = optional_module("wandb", "wandb", "wandb")
        Path(folder).mkdir(parents=True, exist_ok=True)
        how = mode or os.environ.get("WANDB_MODE") or "offline"
        self._run = wandb.init(
            project=project,
            name=name,
            dir=str(folder),
            mode=how,
            config=dict(config or {}),
            settings=wandb.Settings(silent=True, console="off"),
        )
        files = Path(self._run.dir).parent
        how_to = f"upload: wandb sync {files}" if how == "offline" else str(self._run.url)
        self.where = f"wandb files are in {files}; {how_to}"

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow(_Closing):
    """A run of MLflow, in a database file or on a tracking server.

    Args:
        folder: Where the database mlflow.db goes, if there is no `uri`.
        uri: Address of a tracking server. Defaults to MLFLOW_TRACKING_URI, else the folder.
        experiment: The experiment to file it under.
        name: The run's name. Defaults to one that MLflow makes up.
        config: Settings to show beside the curves.
    """

    def __init__(
        self,
        folder: str | Path = ".",
        *,
        uri: str | None = None,
        experiment: str = PROJECT,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        mlflow = optional_module("mlflow", "mlflow", "mlflow")
        uri = uri or os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            Path(folder).mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{(Path(folder) / 'mlflow.db').resolve().as_posix()}"
        self.where = f"MLflow's run is in {uri}; view: mlflow ui --backend-store-uri {uri}"
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name(experiment)
        place = self._client.create_experiment(experiment) if known is None else known.experiment_id
        self._run = self._client.create_run(place, run_name=name).info.run_id
        for key, value in _flat(config or {}).items():
            self._client.log_param(self._run, key, value)

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if math.isfinite(value):  # not every store of MLflow keeps NaN
                self._client.log_metric(self._run, name, float(value), step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


def check(names: Sequence[Name]) -> None:
    """Refuse loggers whose package is missing."""
    for name in names:
        optional_module(name, name, name)


@contextmanager
def opened(
    names: Sequence[Name],
    folder: Path,
    *,
    config: Mapping[str, Any],
    first_step: int = 0,
    said: Callable[[str], object] = lambda sentence: None,
) -> Iterator[OnLog]:
    """The loggers of a run folder, each in a folder of its own name there, as one function.

    Args:
        names: Which.
        folder: The run folder.
        config: Settings to show beside the curves.
        first_step: The step the run begins at.
        said: Called with a sentence about where each writes.
    """
    with ExitStack() as stack:
        guarded = []
        for name in dict.fromkeys(names):
            about = {"first_step": first_step} if name == "tensorboard" else {"name": folder.name}
            place = folder if name == "wandb" else folder / name  # it makes a folder of its own
            make = partial(_MAKERS[name], place, config=config, **about)
            guarded.append(logger := _Guarded(name, make))
            stack.callback(logger.close)
            if logger.kept is not None:
                said(logger.kept.where)

        def log(step: int, values: Mapping[str, float]) -> None:
            for logger in guarded:
                logger(step, values)

        yield log


class _Guarded:
    """A logger that is given up with a warning when it fails: a run does not end for it."""

    def __init__(self, name: str, make: Callable[[], Logger]) -> None:
        self._name = name
        self.kept: Logger | None = None
        with self._guard():
            self.kept = make()

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        with self._guard():
            if self.kept is not None:
                self.kept(step, values)

    def close(self) -> None:
        with self._guard():
            if self.kept is not None:
                self.kept.close()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # another program's, of any kind
            self.kept = None
            text = f"{self._name} stopped logging ({type(error).__name__}: {error})"
            warnings.warn(f"{text}; metrics.jsonl has all numbers", stacklevel=4)


_MAKERS: dict[str, Callable[..., Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Entries of tables in tables, under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{above}{name}.")
        else:
            flat[f"{above}{name}"] = value
    return flat
