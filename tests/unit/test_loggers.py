"""Loggers get what metrics.jsonl has, and never decide about a run."""

import json
import shlex
import sys
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import pseudocore as pc
from pseudocore import loggers
from pseudocore.cli.main import main

Fails = Callable[..., AbstractContextManager[None]]

TRAIN = "reduce dm digits --ipc 1 --model linear --num-steps 20 --batch-size 16 --out run"
CONFIG = {"method": "dm", "options": {"step_size": 0.5}}


@pytest.fixture(autouse=True)
def own_world(own_world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    return own_world


class Recorder:
    """Stands in for a program: `calls` are those of the methods that its documentation names."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.room = 10**9
        """Numbers after which the disk is full."""

    def note(self, *call: Any) -> None:
        self.calls.append(call)
        if len(self.scalars()) > self.room:
            raise OSError("no space left")

    def scalars(self) -> list[tuple[str, float, int]]:
        return [call[1:] for call in self.calls if call[0] == "scalar"]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """All three programs, as modules that note what they are told."""
    said = Recorder()

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int) -> None:
            said.note("open", folder, purge_step)

        def add_text(self, name: str, text: str, step: int) -> None:
            said.note("config", name, text)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            said.note("scalar", name, value, step)

        def flush(self) -> None:
            said.note("flush")

        def close(self) -> None:
            said.note("close")

    class WandbRun:
        dir, url = "place/files", "https://example.org/run"

        def log(self, values: dict[str, float], step: int) -> None:
            for name, value in values.items():
                said.note("scalar", name, value, step)

        def finish(self) -> None:
            said.note("close")

    def init(**options: Any) -> WandbRun:
        said.note("open", options)
        return WandbRun()

    class MlflowClient:
        def __init__(self, tracking_uri: str) -> None:
            said.note("open", tracking_uri)

        def get_experiment_by_name(self, name: str) -> None:
            said.note("experiment", name)

        def create_experiment(self, name: str) -> str:
            return "7"

        def create_run(self, experiment: str, run_name: str | None) -> Any:
            assert experiment == "7"
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r"))

        def log_param(self, run: str, name: str, value: Any) -> None:
            said.note("config", name, value)

        def log_metric(self, run: str, name: str, value: float, step: int) -> None:
            said.note("scalar", name, value, step)

        def set_terminated(self, run: str) -> None:
            said.note("close")

    def module(name: str, **parts: Any) -> None:
        made = types.ModuleType(name)
        vars(made).update(parts)
        monkeypatch.setitem(sys.modules, name, made)

    module("tensorboard")
    module("torch.utils.tensorboard", SummaryWriter=SummaryWriter)
    module("wandb", init=init, Settings=lambda **options: options)
    module("mlflow", MlflowClient=MlflowClient)
    return said


def lines() -> list[tuple[str, float, int]]:
    """What metrics.jsonl of the run has."""
    table = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    return [(name, one[name], one["step"]) for one in table for name in one if name != "step"]


def run(line: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(line))
    return int(stop.value.code or 0)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_logger_gets_what_the_run_folder_keeps(
    name: str, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"{TRAIN} --log {name}") == 0
    expected = [one for one in lines() if one[1] is not None]
    assert len(expected) > 0
    assert recorder.scalars() == expected
    assert [call[0] for call in (recorder.calls[0], recorder.calls[-1])] == ["open", "close"]
    where = {"tensorboard": "run/tensorboard", "wandb": "wandb sync place", "mlflow": "run/mlflow/"}
    assert where[name] in capsys.readouterr().err


def test_loggers_change_neither_the_metrics_nor_the_points(recorder: Recorder) -> None:
    assert run(TRAIN) == 0
    alone, points = lines(), pc.load("run")
    assert run(f"{TRAIN} --overwrite --log tensorboard --log wandb --log mlflow") == 0
    assert lines() == alone
    assert pc.load("run").x.equal(points.x)
    assert len(recorder.scalars()) == 3 * len(alone)


@pytest.mark.filterwarnings("always:tensorboard stopped logging")
def test_a_logger_that_fails_is_given_up_with_a_warning(
    recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder.room = 1
    assert run(f"{TRAIN} --log tensorboard") == 0
    said = capsys.readouterr().err
    assert "warning: tensorboard stopped logging (OSError: no space left)" in said
    assert said.count("stopped logging") == 1
    assert len(lines()) > 2
    assert len(recorder.scalars()) == 2  # it was left alone afterwards


@pytest.mark.parametrize(
    ("name", "maker"),
    [("tensorboard", "TensorBoard"), ("wandb", "WandB"), ("mlflow", "MLflow")],
)
def test_without_its_package_a_logger_says_what_to_install(
    name: str, maker: str, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    with fails("missing-package", f'pip install "pseudocore[{name}]"'):
        getattr(loggers, maker)("somewhere")
    assert run(f"{TRAIN} --log {name}") == 2
    assert not Path("run").exists()
    assert not Path("somewhere").exists()


def test_python_takes_a_logger_as_on_log(recorder: Recorder) -> None:
    with loggers.TensorBoard("events", config=CONFIG, first_step=4) as log:
        made = pc.reduce("dm", "digits", per_class=1, model="linear", num_steps=10, on_log=log)
    assert ("open", "events", 4) in recorder.calls
    assert ("config", "options.step_size", "0.5") in recorder.calls
    expected = [(n, one[n], one["step"]) for one in made.history for n in one if n != "step"]
    assert recorder.scalars() == expected
    assert recorder.calls[-1] == ("close",)


def test_nothing_is_sent_anywhere_unless_asked(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "wandb sync" in loggers.WandB("w").where
    assert recorder.calls[-1][1]["mode"] == "offline"
    loggers.MLflow("m")
    assert recorder.calls[-2] == ("open", f"sqlite:///{Path('m/mlflow.db').resolve().as_posix()}")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    assert "https://example.org/run" in loggers.WandB("w").where
    loggers.MLflow("m")
    assert recorder.calls[-2] == ("open", "http://localhost:1")
    loggers.MLflow("m", uri="http://localhost:2")(3, {"loss": float("nan"), "kl": 1.0})
    assert recorder.calls[-1] == ("scalar", "kl", 1.0, 3)


def test_tensorboard_itself_reads_the_curves() -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert run(f"{TRAIN} --log tensorboard") == 0
    read = EventAccumulator("run/tensorboard").Reload()
    for name in read.Tags()["scalars"]:
        curve = [(name, one.value, one.step) for one in read.Scalars(name)]
        assert curve == [
            (n, pytest.approx(value, rel=1e-6), step) for n, value, step in lines() if n == name
        ]
    assert len(read.Tags()["scalars"]) > 0


@pytest.mark.filterwarnings("ignore")  # its own
def test_wandb_itself_takes_them_offline() -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    assert run(f"{TRAIN} --log wandb") == 0
    assert len(list(Path("run/wandb").glob("offline-run-*/*.wandb"))) == 1


@pytest.mark.filterwarnings("ignore")  # its own
def test_mlflow_itself_keeps_them() -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="mlflow has no database here")
    assert run(f"{TRAIN} --log mlflow") == 0
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{Path('run/mlflow/mlflow.db').resolve()}")
    (found,) = client.search_runs([client.get_experiment_by_name("pseudocore").experiment_id])
    assert (found.info.status, found.data.params["method"]) == ("FINISHED", "dm")
    name, *_ = lines()[0]
    kept = [(name, m.value, m.step) for m in client.get_metric_history(found.info.run_id, name)]
    assert kept == [one for one in lines() if one[0] == name]
