"""Presets: a file of settings that flags win over, checked before anything is made."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

Refused = Callable[[str], str]
Done = Callable[[str], Any]

PRESET = """
method = "vbpc"
data = "digits"
seed = 7

[setup]
model = "convnet-wide"
width = 4

[options]
per_class = 2
num_steps = 3
batch_size = 16
image_lr = 0.005

[evaluate]
inference = "sgd"
num_steps = 5
momentum = 0.5
"""


@pytest.fixture
def preset() -> Callable[[str], None]:
    def write(text: str) -> None:
        Path("mine.toml").write_text(text)

    return write


def test_flags_win_over_the_preset_and_the_preset_over_defaults(
    preset: Callable[[str], None], done: Done
) -> None:
    preset(PRESET)
    assert "10 points" in done("reduce vbpc --preset mine.toml --ipc 1 --width 5 --out run").out
    config = tomllib.loads(Path("run/config.toml").read_text())
    assert config["method"] == "vbpc"
    assert config["seed"] == 7
    written_out = {
        "preprocess": "standard",
        "siamese": True,
        "prior": "fan-in",
        "prior_scale": 2.0,
        "precision": "float32",
    }
    assert config["setup"] == {"data": "digits", "model": "convnet-wide", "width": 5, **written_out}
    assert config["options"]["per_class"] == 1
    assert config["options"]["num_steps"] == 3
    assert config["options"]["image_lr"] == 0.005
    assert config["options"]["ridge"] == 0.01
    assert config["evaluate"] == {"inference": "sgd", "num_steps": 5, "momentum": 0.5}


def test_seed_data_and_share_on_the_command_line_win(
    preset: Callable[[str], None], done: Done
) -> None:
    preset(PRESET.replace('model = "convnet-wide"', 'model = "mlp"'))
    done("reduce vbpc moons --preset mine.toml --yes --seed 1 --fraction 0.02 --out run")
    config = tomllib.loads(Path("run/config.toml").read_text())
    assert (config["setup"]["data"], config["seed"]) == ("moons", 1)
    assert config["options"]["fraction"] == 0.02
    assert "per_class" not in config["options"]


def test_evaluation_starts_from_what_the_makers_meant(
    preset: Callable[[str], None], done: Done
) -> None:
    preset(PRESET)
    done("reduce vbpc --preset mine.toml --out run")
    assert "run  sgd  accuracy" in done("evaluate run --seeds 1 --step-size 0.1").out
    kept = json.loads(Path("run/evaluations/sgd.step_size-0.1.json").read_text())
    assert (
        kept["options"].items()
        >= {
            "num_steps": 5,
            "step_size": 0.1,
            "momentum": 0.5,
            "weight_decay": 5e-4,
            "batch_size": 256,
        }.items()
    )
    assert "--momentum" in done("evaluate --seeds 1 run --help").out


def test_the_configuration_of_a_run_is_a_preset(preset: Callable[[str], None], done: Done) -> None:
    preset(PRESET)
    done("reduce vbpc --preset mine.toml --out run")
    done("reduce vbpc --preset run/config.toml --out again")
    assert Path("again/config.toml").read_bytes() == Path("run/config.toml").read_bytes()
    assert Path("again/metrics.jsonl").read_bytes() == Path("run/metrics.jsonl").read_bytes()


def test_a_preset_for_another_method_is_refused(
    preset: Callable[[str], None], refused: Refused
) -> None:
    preset(PRESET)
    assert "is for method 'vbpc', not 'frepo'" in refused(
        "reduce frepo --preset mine.toml --out run"
    )
    assert "is for method 'vbpc', not 'uniform'" in refused(
        "reduce uniform --preset vbpc2025/cifar10-ipc1 --out run"
    )


@pytest.mark.parametrize(("answer", "starts"), [("y", True), ("", False), (None, False)])
def test_a_preset_for_other_data_asks_before_it_starts(
    preset: Callable[[str], None],
    cli: Done,
    monkeypatch: pytest.MonkeyPatch,
    answer: str | None,
    starts: bool,
) -> None:
    """At a terminal; elsewhere it needs --yes. A run that is resumed was asked for before."""
    preset(PRESET.replace('model = "convnet-wide"', 'model = "mlp"'))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: answer is not None))
    monkeypatch.setattr("builtins.input", lambda: answer)
    said = cli("reduce vbpc moons --preset mine.toml --out run")
    assert Path("run").exists() == starts
    assert ("is for digits; use it on moons? [y/N]" in said.err) == (answer is not None)
    if starts:
        assert cli("reduce vbpc moons --preset mine.toml --out run --resume").code == 0
    else:
        assert (said.code, "is for digits, not moons; --yes" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seed = 7", "seed = ", ["mine.toml, line 4"]),
        ("[options]", "[options", ["mine.toml, line 10"]),
        ("seed = 7", "sed = 7", ["unknown entry 'sed'", "did you mean 'seed'"]),
        ("seed = 7", 'seed = "x"', ["seed = 'x' is not a whole number"]),
        ("seed = 7", "seed = 1.5", ["seed = 1.5 is not a whole number"]),
        ("[options]", "[option]", ["unknown entry 'option'", "did you mean 'options'"]),
        (
            "[setup]\n",
            "setup = 3\n[spare]\n",
            ["setup = 3 is not a table", "unknown entry 'spare'"],
        ),
        ("per_class = 2", "per_clas = 2", ["unknown option 'per_clas'", "did you mean 'per_class"]),
        ("per_class = 2", "per_class = 2.5", ["= 2.5 is not a whole number"]),
        ("width = 4", "with = 4", ["setup: unknown option 'with'", "did you mean 'width'"]),
        ('model = "convnet-wide"', "model = 3", ["setup: model = 3 is not a string"]),
        (
            "momentum = 0.5",
            "momentom = 0.5",
            ["evaluate by sgd: unknown option 'momentom'", "did you mean 'momentum'"],
        ),
        (
            'inference = "sgd"',
            'inference = "sdg"',
            ["unknown inference 'sdg'", "did you mean 'sgd'"],
        ),
        ('inference = "sgd"', "inference = 3", ["unknown inference '3'"]),
        (
            "image_lr = 0.005",
            "image_lr = -1.0\nridge = 0",
            ["image_lr = -1.0 must be above 0", "ridge = 0.0 must be above 0"],
        ),
    ],
)
def test_a_preset_with_a_mistake_is_refused(
    preset: Callable[[str], None], refused: Refused, old: str, new: str, words: list[str]
) -> None:
    preset(PRESET.replace(old, new))
    sentence = refused("reduce vbpc --preset mine.toml --out run")
    for word in words:
        assert word in sentence
    assert not Path("run").exists()


def test_all_that_is_wrong_with_a_preset_is_said_at_once(
    preset: Callable[[str], None], refused: Refused
) -> None:
    preset(
        'method = "vbpc"\nseed = 1.5\n[setup]\nmodell = "x"\n[options]\nper_clas = 2\n'
        '[optoins]\n[evaluate]\ninference = "sdg"\n'
    )
    sentence = refused("reduce vbpc digits --preset mine.toml --out run")
    for word in (
        "entry 'optoins'",
        "seed = 1.5",
        "setup: unknown option 'modell'",
        "vbpc: unknown option 'per_clas'",
        "inference 'sdg'",
    ):
        assert word in sentence
    preset('method = "vbpc"\n[setup]\nwidth = 0\n[evaluate]\ninference = "sdg"\n')
    sentence = refused("reduce vbpc digits --preset mine.toml --out run")
    for word in ("setup: width = 0", "unknown inference 'sdg'"):
        assert word in sentence


def test_a_preset_that_is_not_there_is_refused(refused: Refused) -> None:
    assert "cannot read mine.toml: no such file" in refused(
        "reduce vbpc --preset mine.toml --out run"
    )
    Path("mine.toml").write_bytes(b'method = "\xff"')
    assert "mine.toml, line 1: byte 0xff is not UTF-8" in refused(
        "reduce vbpc --preset mine.toml --out run"
    )
