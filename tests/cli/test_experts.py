"""pseudocore experts: trained, shown, resumed, extended, used and refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pseudocore.store.expert_folder import ExpertFolder
from pseudocore.training.experts import Trainer

Cli = Callable[[str], Any]
Refused = Callable[[str], str]

MLP = "--model mlp --width 8"
EXPERTS = f"experts digits {MLP} --num 2 --epochs 3 --out buffer"
REDUCE = "reduce bpc-fkl digits --model mlp --ipc 1 --num-steps 2 --num-inner-steps 2 --num-draws 2"


def test_experts_are_trained_and_shown(done: Cli) -> None:
    said = done(EXPERTS)
    scores = r"train loss \d\.\d{3} ± \.\d{3}  accuracy \.\d{3} ± \.\d{3}"
    size = r"2 experts of 3 epochs in buffer \(0\.0 MiB\)"
    assert re.fullmatch(rf"{size}  {scores}  \([\d.]+ s, [\d,]+ images/s\)\n", said.out)
    following = f"--experts buffer {MLP} --out RUN\n"
    assert said.err == f"next: pseudocore reduce METHOD DATA {following}"
    assert "nothing was missing" in done(EXPERTS).out


def test_json_is_one_document_and_what_is_missing_is_trained(done: Cli) -> None:
    said = done(f"{EXPERTS} --json")
    facts = json.loads(said.out)
    assert facts.keys() == {
        "experts", "num_experts", "num_epochs", "trained_epochs", "seconds", "images_per_second",
        "bytes", "train_loss", "accuracy",
    }  # fmt: skip
    assert facts["accuracy"].keys() == {"mean", "sd"}
    assert 0 < facts["accuracy"]["mean"] < 1
    assert said.err == ""
    grown = json.loads(done(f"experts digits {MLP} --num 3 --epochs 4 --out buffer --json").out)
    assert (grown["num_experts"], grown["num_epochs"], grown["trained_epochs"]) == (3, 4, 2 + 4)


def test_settings_reach_training(done: Cli) -> None:
    done(
        "experts digits --model convnet3 --width 4 --norm batch --preprocess zca --no-siamese "
        "--augment crop_scale --loss focal --lr .1 --momentum .5 --weight-decay .01 "
        "--batch-size 100 --storage bfloat16 --seed 7 --group 2 --num 2 --epochs 1 --out buffer"
    )
    identity = ExpertFolder.open("buffer").identity
    numbers = {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01, "batch_size": 100}
    assert identity["training"] == {"loss": "focal", **numbers}
    assert (identity["model"]["width"], identity["model"]["norm"]) == (4, "batch")
    assert identity["preprocess"]["kind"] == "zca"
    assert identity["augment"]["strategy"] == "crop_scale"
    assert identity["augment"]["siamese"] is False
    assert (identity["seed"], identity["storage"]) == (7, "bfloat16")


def test_other_settings_need_overwrite(done: Cli, refused: Refused) -> None:
    done(EXPERTS)
    sentence = refused(f"{EXPERTS} --lr .02")
    assert "training.lr: stored 0.01, given 0.02" in sentence
    assert "--overwrite" in sentence
    facts = json.loads(done(f"{EXPERTS} --lr .02 --overwrite --json").out)
    assert facts["trained_epochs"] == 6


def test_interrupted_it_keeps_what_it_has(
    cli: Cli, done: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = Trainer.epoch, []

    def epoch(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return whole(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "epoch", epoch)
        said = cli(f"{EXPERTS} --overwrite")
    assert said.code == 130
    assert said.out == ""
    assert said.err == f"interrupted; what was trained is kept, resume with: pseudocore {EXPERTS}\n"
    assert ExpertFolder.open("buffer").epochs() == {0: 3, 1: 1}
    assert json.loads(done(f"{EXPERTS} --json").out)["trained_epochs"] == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("experts --out buffer", ["DATA is missing"]),
        ("experts digits", ["--out is missing"]),
        ("experts digit --out buffer", ["unknown data set 'digit'", "did you mean 'digits'"]),
        (f"{EXPERTS} --num 3", ["--num", "multiple times"]),
        (f"{EXPERTS} --loss hinge", ['"hinge"', '"multi-margin"']),
        ("experts digits --out buffer --epochs 0", ["--epochs", ">= 1"]),
        ("experts digits --out buffer --lr -1", ["lr = -1.0 must be above 0"]),
        ("experts digits --out buffer --storage float16", ['"float16"', '"bfloat16"']),
        ("experts digits --out buffer --model mpl", ["unknown model 'mpl'", "did you mean 'mlp'"]),
        ("reduce bpc-fkl digits --out run --experts buffer", ["there is no folder buffer"]),
        ("reduce uniform digits --out run --experts buffer", ["there is no folder buffer"]),
    ],
)
def test_wrong_command_lines(
    refused: Refused, own_world: Path, line: str, words: list[str]
) -> None:
    sentence = refused(line)
    for word in words:
        assert word in sentence
    assert not list(own_world.iterdir())


def test_divergence_is_a_sentence(refused: Refused) -> None:
    sentence = refused(f"{EXPERTS} --lr 1e30")
    assert "expert 0 became NaN or infinite in epoch 1, trained with lr = 1e+30" in sentence


# --- used


def test_a_method_uses_them_or_trains_its_own(done: Cli) -> None:
    done(EXPERTS)
    done(f"{REDUCE} --width 8 --max-start 2 --experts buffer --out run")
    assert 'experts = "buffer"' in Path("run/config.toml").read_text()
    assert not Path("run/experts").exists()
    done("evaluate run --inference sgd --num-steps 2 --seeds 1")
    done(f"{REDUCE} --width 8 --max-start 2 --num-experts 2 --out own")
    assert ExpertFolder.open("own/experts").epochs() == {0: 2, 1: 2}
    done(f"{REDUCE} --width 8 --max-start 2 --experts own/experts --out again")


def test_what_does_not_fit_leaves_no_run_behind(
    done: Cli, refused: Refused, npz: Callable[..., str]
) -> None:
    done(EXPERTS)
    for words, answer in {
        "--width 16 --max-start 2": "model.width: stored 8, given 16",
        "--width 8 --preprocess none --max-start 2": "preprocess.kind: stored 'standard', given",
        "--width 8 --max-start 20": "trained for 3 epochs, but bpc-fkl with these options needs 20",
    }.items():
        sentence = refused(f"{REDUCE} {words} --experts buffer --out run")
        assert answer in sentence
    (command,) = re.findall(r"run `pseudocore (.*)`", sentence)
    assert not Path("run").exists()
    assert json.loads(done(f"{command} --json").out)["num_epochs"] == 20
    done(f"experts {npz('mine')} {MLP} --num 1 --epochs 3 --out other")
    sentence = refused(f"{REDUCE} --width 8 --max-start 2 --experts other --out run")
    assert "the experts in other do not fit: they were trained on other data" in sentence


def test_a_damaged_shard_is_a_sentence(done: Cli, refused: Refused) -> None:
    done(EXPERTS)
    shard = Path("buffer/expert-0001.safetensors")
    shard.write_bytes(shard.read_bytes()[:-1])
    for line in (f"{REDUCE} --width 8 --max-start 2 --experts buffer --out run", EXPERTS):
        assert "expert-0001.safetensors is truncated, damaged" in refused(line)
    shard.unlink()
    assert json.loads(done(f"{EXPERTS} --json").out)["trained_epochs"] == 3
