"""Networks from outside by module:function: what they compute, what is refused, and that no file's
word runs them.
"""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pseudocore import assembly as setups
from pseudocore.assembly.contracts import build_problem
from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.models import custom
from pseudocore.models.flat import FlatModel

SHAPE = (1, 8, 8)
SOURCE = """
import torch
from torch import nn

CALLS = []

class Net(nn.Module):
    def __init__(self, num_classes, channels=1, width=4, **layers):
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = layers.get("norm") or nn.BatchNorm2d(width, eps=1e-3)
        self.extra = layers.get("extra") or nn.Identity()
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.fc = nn.Linear(4 * width, num_classes)
        self.after = layers.get("after") or nn.Identity()
    def forward(self, x):
        x = self.pool(torch.relu(self.norm(self.conv(x))))
        return self.after(self.fc(self.extra(x.flatten(1))))

class Noisy(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, self.training)

class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
    def forward(self, x):
        self.calls.add_(1)
        return x + self.calls

def net(num_classes, shape, width=4):
    CALLS.append((num_classes, shape, width))
    return Net(num_classes, shape[0], width)

def sequential(num_classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, num_classes))
def nothing(): return nn.Sequential(nn.Flatten())
def lone(num_classes): return nn.Linear(64, num_classes)
def wrong_classes(): return Net(7)
def dropout(num_classes): return Net(num_classes, extra=nn.Dropout(0.5))
def idle_dropout(num_classes): return Net(num_classes, extra=nn.Dropout(0.0))
def noisy(num_classes): return Net(num_classes, extra=Noisy())
def stateful(num_classes): return Net(num_classes, extra=Counts())
def softmax(num_classes): return Net(num_classes, after=nn.Softmax(1))
def larger(num_classes): return nn.Sequential(nn.Flatten(), nn.Linear(100, num_classes))
def transposed(num_classes): return nn.Sequential(nn.Conv2d(1, 4, 2, 2), nn.Flatten(2), nn.Linear(16, num_classes))
def number(num_classes): return 3
def picky(num_classes, secret): return Net(num_classes)
def broken(num_classes): raise ValueError("out of paint")
HELD = 3
"""


@pytest.fixture(autouse=True)
def _own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_mine.py").write_text(SOURCE)
    (tmp_path / "nets_with_a_typo.py").write_text("def net(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)


def load(word: str) -> FlatModel:
    return custom.load(f"nets_of_mine:{word}", SHAPE, 5)


def original(word: str, model: FlatModel, theta: Tensor) -> nn.Module:
    """The factory's own network with theta's values in it."""
    import nets_of_mine  # type: ignore[import-not-found]

    made: nn.Module = nets_of_mine.net(5, SHAPE) if word == "net" else nets_of_mine.sequential(5)
    with torch.no_grad():
        for parameter in made.parameters():
            piece, theta = theta[: parameter.numel()], theta[parameter.numel() :]
            parameter.copy_(piece.view_as(parameter))
    assert len(theta) == 0
    return made


@pytest.mark.parametrize("word", ["net", "sequential"])
def test_it_computes_what_the_module_computes(word: str) -> None:
    model = load(word)
    theta = model.init(Rng(0)) + 0.1 * Rng(1).normal(model.num_parameters)
    x = Rng(2).normal(6, *SHAPE)
    network = original(word, model, theta)
    torch.testing.assert_close(model.logits(theta, x), network.train()(x))
    both = model.logits(torch.stack([theta, 2 * theta]), x)
    torch.testing.assert_close(both[0], network(x))
    assert bool(model.statistics(theta, x)) == (word == "net")


def test_a_class_and_options_are_welcome() -> None:
    model = custom.load("nets_of_mine:Net", (3, 8, 8), 5, {"width": 2, "init": "he"})
    assert model.num_parameters == 3 * 2 * 9 + 2 * 2 + 9 * 5
    assert model.describe() == {
        "name": "nets_of_mine:Net",
        "width": 2,
        "init": "he",
        "num_parameters": model.num_parameters,
    }
    bound = math.sqrt(6 / 27)
    weights = model.init(Rng(0))[:54]
    assert 0.9 * bound < weights.abs().max() <= bound


def test_the_factory_hears_classes_and_shape_and_leaves_the_global_stream_alone() -> None:
    import nets_of_mine

    nets_of_mine.CALLS.clear()
    before = torch.get_rng_state()
    custom.load("nets_of_mine:net", SHAPE, 5, {"width": 3})
    assert nets_of_mine.CALLS == [(5, SHAPE, 3)]
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_that_drops_nothing_is_welcome() -> None:
    assert load("idle_dropout").num_parameters == load("net").num_parameters


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("nets_of_yours:net", "import", r"'nets_of_yours'.*\(ModuleNotFoundError.*PYTHONPATH"),
        ("nets_with_a_typo:net", "import", "SyntaxError"),
        ("nets_of_mine:nett", "missing", "'nets_of_mine' has no 'nett'"),
        ("nets_of_mine:", "name", "package.module:function"),
        (":net", "name", None),
        ("nets_of_mine:net()", "name", None),
        ("nets_of_mine:HELD", "not-callable", "is a int"),
        ("nets_of_mine:nothing", "head", "no nn.Linear"),
        ("nets_of_mine:lone", "head", "no nn.Linear"),
        ("nets_of_mine:wrong_classes", "classes", r"7 outputs .*\(fc\), but the data has 5"),
        ("nets_of_mine:dropout", "dropout", r"'extra'.*network\.eval\(\)"),
        ("nets_of_mine:noisy", "random", None),
        ("nets_of_mine:stateful", "buffers", r"extra\.calls"),
        ("nets_of_mine:softmax", "logits", None),
        ("nets_of_mine:larger", "input-shape", r"\(1, 8, 8\) \(RuntimeError"),
        ("nets_of_mine:number", "not-a-module", "is a int"),
        ("nets_of_mine:picky", "parameters", "requires secret.*num_classes, shape, channels"),
        ("nets_of_mine:broken", "factory", "ValueError: out of paint"),
        ("nets_of_mine:transposed", "features", r"\(2, 4, 16\), not \(n, 16\)"),
    ],
)
def test_what_cannot_be_used_is_refused(name: str, code: str, words: str | None) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        custom.load(name, SHAPE, 5)
    assert error.value.code == f"network-{code}"


def test_an_option_the_factory_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no depth; .* num_classes, shape, width") as error:
        custom.load("nets_of_mine:net", SHAPE, 5, {"depth": 2})
    assert error.value.code == "network-options"


# --- through a setup
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures() -> Dataset:
    part = Examples(Rng(0).integers(256, 8, *SHAPE).to(torch.uint8), torch.arange(8) % 2)
    return Dataset("pictures", part, part, 2)


def test_a_setup_names_one(pictures: Dataset) -> None:
    problem = setups.build(setups.Setup(model="nets_of_mine:net", width=2), pictures, device="cpu")
    assert problem.model.describe()["name"] == "nets_of_mine:net"
    assert problem.model.num_features == 8


def test_a_coresets_word_runs_no_code(pictures: Dataset) -> None:
    import nets_of_mine

    x = torch.zeros(2, *SHAPE)
    coreset = Coreset(
        x, torch.tensor([0, 1]), torch.ones(2), provenance={"setup": {"model": "nets_of_mine:net"}}
    )
    nets_of_mine.CALLS.clear()
    with pytest.raises(
        ConfigError, match=r"just because a file names it.*--model nets_of_mine:net"
    ):
        build_problem(coreset, pictures, device="cpu")
    assert nets_of_mine.CALLS == []
    problem = build_problem(coreset, pictures, device="cpu", model="nets_of_mine:net")
    assert problem.model.describe()["name"] == "nets_of_mine:net"
