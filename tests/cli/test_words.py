"""What is typed wrong is answered in one sentence that says what would work, and nothing is
written.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Refused = Callable[[str], str]

REDUCE = "reduce vbpc digits --out run"

WRONG_NAMES = {
    "reduc vbpc digits": "unknown command 'reduc' … demo, methods, … compare, report, export; … "
    "did you mean 'reduce'",
    "frobnicate": "unknown command 'frobnicate' … compare, report, export (see pseudocore --help)",
    "reduce vbcp digits --out run": "unknown method 'vbcp' … did you mean 'vbpc' … frepo",
    "reduce digits vbpc --out run": "unknown method 'digits' … vbpc",
    "reduce BPC-FKL digits --out run": "did you mean 'bpc-fkl'?",
    "reduce --out run": "name the method first … reduce METHOD DATA --out RUN … vbpc",
    "reduce vbpc --out run": "name the data set … data list",
    "reduce vbpc digits": "--out is missing … reduce vbpc --help",
    "reduce vbpc digit --out run": "unknown data set 'digit' … did you mean 'digits'",
    "reduce vbpc cifar10 --out run": "no cifar10 here … home/pseudocore … cifar-10-binary.tar.gz",
    f"{REDUCE} --imagelr 3": "--imagelr … did you mean '--image-lr'?",
    f"{REDUCE} --colour red": "unknown option '--colour' (see",
    f"{REDUCE} --colour=red": "unknown option '--colour' (see",
    f"{REDUCE} --num=3": "unknown option '--num'; did you mean '--num-steps'?",
    f"{REDUCE} --num-experts 3": "; --num-experts is an option of bpc-cd, … more (see",
    f"{REDUCE} --num-expert 3": "; did you mean '--num-experts', an option of",
    "evaluate run --num-leapfrog 3": "'--num-leapfrog'; --num-leapfrog is an option of hmc",
    "evaluate run --no-flip-kinetic": "'--no-flip-kinetic'; --flip-kinetic is an option of hmc (",
    "fidelity run --num-leap 3": "did you mean '--num-leapfrog', an option of hmc?",
    f"{REDUCE} --num-burn 3": "; --num-burn is for evaluate, an option of ",
    "evaluate run --averaging 3": "; --averaging is for reduce, an option of ",
    f"{REDUCE} extra": "'extra'",
    f"{REDUCE} --ipc": "--ipc needs a value",
    f"{REDUCE} --ipc 1 --ipc 2": "--ipc … multiple times",
    f"{REDUCE} --model convnet-wid": "unknown model 'convnet-wid' … 'convnet-wide' … mlp",
    f"{REDUCE} --preset vbpc2025/cifar10-ipc9": "unknown preset … did you mean "
    "'vbpc2025/cifar10-ipc1 … .toml",
    f"{REDUCE} --augment flop": "unknown augmentation 'flop' … did you mean 'flip' … rotate",
    "evaluate": "RUN is missing",
    "evaluate run --inference last-layer-v": "unknown inference 'last-layer-v' … did you mean "
    "'last-layer-vi' … sgd",
    "evaluate run --inference": "--inference needs a value",
    "evaluate run": "there is no folder run",
    "compare": "at least one RUN",
    "compare run": "there is no folder run",
    "report": "at least one RUN",
    "report run": "there is no folder run",
    "export run": "TARGET is missing",
    "export run x.npz": "there is no folder run",
    "export run x --format jpg": '"jpg" … "npz", "csv", "png"',
    "data info nope": "unknown data set 'nope' … digits",
    "data inf digits": "unknown command 'inf' … did you mean 'info'?",
    "data import nope.npz mine": "there is no file or folder nope.npz",
    "testbed --method vbpc": "the test bed has no 'vbpc' (",
    "testbed --size 0": 'invalid value "0" for --size',
    "testbed --size 5 --size 0": 'invalid value "5, 0"',
    "table kim2022": "did you mean 'kim2022-1', 'kim2022-5', 'kim2022-6' or 'kim2022-7'?",
}

WRONG_VALUES = {
    "--ipc 0": "per_class (--ipc) = 0 must be at least 1",
    "--ipc -3": "per_class (--ipc) = -3 must be at least 1",
    "--ipc 1.5": "--ipc … '1.5' is not a whole number",
    "--num-steps 1e3": "--num-steps … '1e3' is not a whole number",
    "--width none": "--width … 'none' is not a whole number",
    "--batch-size 99999999999999999999": "--batch-size … too large",
    "--fraction 0": "fraction = 0.0 must be above 0",
    "--fraction 2": "fraction = 2.0 must be at most 1",
    "--fraction nan": "fraction = nan must be a finite number",
    "--fraction .1 --ipc 3": "fraction and per_class (--ipc) exclude each other",
    "--points 9": "a budget of 9 is less than one point for each of the 10 classes",
    "--image-lr abc": '--image-lr … "abc" … float',
    "--image-lr nan": "image_lr = nan must be a finite number",
    "--image-lr -1 --batch-size 0": "image_lr = -1.0 must be above 0 … batch_size = 0 must be at "
    "least 1",
    "--image-lr -1 --width 0": "vbpc: image_lr = -1.0 must be above 0 … setup: width = 0 must be",
    "--initial reel": '"reel" … "real", "mix", "noise"',
    "--norm None": '"None" … "instance", "batch", "none"',
    "--siamese=maybe": '--siamese … "maybe"',
    "--model mlp --norm batch": "model 'mlp' has no norm … depth, width",
    "--model convnet3 --depth 9": "depth 9 … 512×512",
    "--device gpu": '"gpu" … "auto", "cpu", "cuda"',
    "--compile maybe": '"maybe" … "auto", "on", "off"',
    "--seed x": "--seed … 'x' is not a whole number",
    "--checkpoint-every 0": "--checkpoint-every … >= 1",
    "--checkpoint-seconds -1": "--checkpoint-seconds … >= 0",
    "--resume --overwrite": "--resume and --overwrite exclude each other",
}


@pytest.mark.parametrize(
    ("line", "parts"),
    [*WRONG_NAMES.items(), *((f"{REDUCE} {line}", text) for line, text in WRONG_VALUES.items())],
)
def test_what_is_wrong_and_what_would_work_is_said_and_nothing_is_written(
    refused: Refused, own_world: Path, line: str, parts: str
) -> None:
    sentence = refused(line)
    for part in parts.split(" … "):
        assert part in sentence
    assert not list(own_world.iterdir())


def test_an_unknown_preset_is_not_answered_with_all_there_are(refused: Refused) -> None:
    sentence = refused(f"{REDUCE} --preset nosuch")
    assert "did you mean" not in sentence
    assert len(sentence) < 200
    sentence = refused(f"{REDUCE} --preset vbpc2025/cifar10-ipc9")
    assert sentence.count("'vbpc2025/") == 1 + 3
    sentence = refused(f"{REDUCE} --preset vbpc2025")
    assert "did you mean 'vbpc2025/cifar10-ipc1', " in sentence
    assert "more?" in sentence


def test_a_gpu_that_is_not_there_is_refused(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    sentence = refused(f"{REDUCE} --device cuda")
    assert "no CUDA device" in sentence
    assert "use cpu or auto" in sentence


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("reduce full digits --out run --fraction .5", "unknown option '--fraction'"),
        ("reduce vbpc moons --out run --model convnet3", "'convnet3' needs images"),
        ("reduce vbpc moons --out run --augment flip", "needs images"),
        (f"{REDUCE} --model mlp --num-steps 1 --batch-size {4 * 10**18}", "not enough memory"),
    ],
)
def test_what_does_not_go_together_is_refused(refused: Refused, line: str, words: str) -> None:
    assert words in refused(line)


@pytest.mark.parametrize(
    ("line", "switches"),
    [
        ("evaluate --inference hmc --help", ["--flip-kinetic", "--mismatched-mom", "--published"]),
        ("evaluate --inference sgd --help", ["--published", "--num-moments"]),
        ("fidelity --inference hmc --help", ["--flip-kinetic", "--mismatched-mom"]),
    ],
)
def test_published_faults_have_a_heading_of_their_own(
    done: Callable[[str], Any], line: str, switches: list[str]
) -> None:
    below = done(line).out.partition("Published faults")[2].partition("╰")[0]
    assert all(switch in below for switch in switches)
    assert "--num-chains" not in below


@pytest.mark.parametrize("seeds", ["0", "-1", "two"])
def test_evaluate_needs_at_least_one_network(
    done: Callable[[str], object], refused: Refused, seeds: str
) -> None:
    done("reduce uniform digits --out run --ipc 1")
    assert "--seeds" in refused(f"evaluate run --seeds {seeds}")


def test_the_prior_is_kept_for_inference(done: Callable[[str], Any]) -> None:
    said = done("reduce uniform digits --out run --ipc 1 --prior isotropic --prior-scale 3")
    assert said.err == ""
    config = Path("run/config.toml").read_text()
    assert 'prior = "isotropic"' in config
    assert "prior_scale = 3.0" in config


def test_brackets_and_colons_in_names_are_printed_as_they_are(
    refused: Refused, done: Callable[[str], Any]
) -> None:
    assert "'[bold]x[/bold]:smile:'" in refused("reduce '[bold]x[/bold]:smile:' digits --out run")
    said = done("reduce uniform digits --out 'run [red] :smile:' --ipc 1")
    assert "10 points in run [red] :smile: after" in said.out
    assert "pseudocore evaluate 'run [red] :smile:'" in said.out
