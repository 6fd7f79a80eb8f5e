"""A zoo of modules of the user's own, each right as a flat model and in reduce and infer, or refused
with a sentence.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pseudocore as pc
from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset
from pseudocore.models import custom

NUM, SIZE, CLASSES = 24, 8, 2


class Net(nn.Module):
    """Features (n, 8) as a sequence (n, 4, 2) or a line (n, 2, 4), through a body, to the head."""

    def __init__(self, body: nn.Module, shape: tuple[int, ...] = (), width: int = 8) -> None:
        super().__init__()
        self.head = nn.Linear(width, CLASSES)  # before the body: the order of calls decides
        self.body, self.shape = body, shape

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(1, self.shape) if self.shape else x
        out: Tensor = self.head(self.body(x).flatten(1))
        return out


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(0.1 * torch.randn(4, 2))
        self.attention = nn.MultiheadAttention(2, 1, dropout=0.1, batch_first=True).eval()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.place
        out: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return out


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(self.one(x).tanh())
        return out


class Waves(nn.Module):
    """Random Fourier features: constants in a buffer, and an integer one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(8, 8))
        self.register_buffer("order", torch.randperm(8))
        self.gain = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.gain * (x @ self.frequencies)[:, self.order].cos()
        return out


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.extra = nn.ModuleDict({"norm": nn.Sequential(nn.Sequential(nn.RMSNorm(8)))})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(self.extra["norm"](x)).relu()
        return x


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 2, padding_idx=0)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.table(x.round().abs().long() % 5).flatten(1)[:, :8]
        return out


ZOO: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: Net(Attention(), (4, 2)),
    "encoder": lambda: Net(
        nn.TransformerEncoderLayer(2, 1, 4, dropout=0.1, batch_first=True).eval(), (4, 2)
    ),
    "layer norm": lambda: Net(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())),
    "group norm": lambda: Net(nn.Sequential(nn.Conv1d(2, 4, 1), nn.GroupNorm(2, 4)), (2, 4), 16),
    "batch norm 1d": lambda: Net(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())),
    "batch norm 2d": lambda: Net(
        nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4, affine=False)), (2, 2, 2), 16
    ),
    "conv 1d": lambda: Net(nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.PReLU()), (2, 4), 16),
    "dropout out": lambda: Net(
        nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5).eval(), nn.AlphaDropout(0.5).eval())
    ),
    "tied": lambda: Net(Tied()),
    "buffers": lambda: Net(Waves()),
    "nested, residual": lambda: Net(Residual()),
    "embedding": lambda: Net(Words()),
}


def tied_head() -> nn.Module:
    net = Net(nn.Linear(8, CLASSES))
    net.head = nn.Linear(CLASSES, CLASSES)
    body = nn.Sequential(nn.Linear(8, CLASSES), nn.Linear(CLASSES, CLASSES))
    net.body, body[1].weight = body, net.head.weight
    return net


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "dropout": (lambda: Net(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))), "eval()"),
    "scripted": (lambda: torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))), "made"),
    "tied-head": (tied_head, "shares"),
    "lazy": (lambda: Net(nn.LazyLinear(8)), "once"),
    "in-place": (lambda: Net(nn.ReLU(inplace=True)), "in place"),
    "buffers": (lambda: Net(nn.InstanceNorm1d(2, track_running_stats=True), (2, 4)), "constants"),
}


@pytest.fixture(scope="module")
def data() -> Dataset:
    x, y = Rng(0)("x").normal(NUM, SIZE), torch.arange(NUM) % CLASSES
    return pc.dataset(x + 2 * y[:, None], y, test=(x[:4], y[:4]))


@pytest.mark.parametrize("name", ZOO)
def test_one_theta_is_the_module_with_its_values(name: str) -> None:
    torch.manual_seed(0)
    module = ZOO[name]()
    model = custom.load(module, (SIZE,), CLASSES)
    thetas, x = model.init(Rng(1), num=2), Rng(2).normal(5, SIZE)
    given = copy.deepcopy(module)
    own = [*dict.fromkeys(given.body.parameters()), given.head.weight, given.head.bias]  # type: ignore[union-attr, list-item, arg-type]
    with torch.no_grad():
        for value, piece in zip(own, model.tensors(thetas[1]), strict=True):
            value.copy_(piece)
        expected = given(x)
    both = model.logits(thetas, x)
    torch.testing.assert_close(model.logits(thetas[1], x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(both[1], expected, rtol=1e-4, atol=1e-5)
    if statistics := model.statistics(thetas[1], x):  # of this batch: the same outputs
        torch.testing.assert_close(model.logits(thetas[1], x, statistics), expected)


SHORT = {
    "vbpc": {"num_steps": 2, "pool_size": 1, "batch_size": 8},
    "dm": {"num_steps": 2},
    "bpc-fkl": {"num_steps": 2, "num_experts": 1},
}


@pytest.mark.parametrize("name", ZOO)
def test_each_is_reduced_and_inferred(name: str, data: Dataset) -> None:
    torch.manual_seed(0)
    module = ZOO[name]()
    for method, options in SHORT.items():
        if name == "embedding":
            with pytest.raises(ConfigError, match="no gradient in its inputs") as error:
                pc.reduce(method, data, model=module, per_class=2, **options)
            assert error.value.code == "no-input-gradient"
            continue
        run = pc.reduce(method, data, model=module, per_class=2, **options)
        assert run.status == "finished"
    run = pc.reduce("uniform", data, model=module, per_class=3)
    for inference, options in {
        "hmc": {"num_draws": 3, "num_burn": 3, "num_chains": 2, "num_leapfrog": 3},
        "sgd": {"num_steps": 3},
    }.items():
        posterior = pc.infer(run, inference, **options)
        log_probs = posterior(data.test.x)
        torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(4))


@pytest.mark.parametrize("name", REFUSED)
def test_the_others_are_refused_with_a_sentence(name: str) -> None:
    module, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words.replace("(", r"\(").replace(")", r"\)")) as error:
        custom.load(module(), (SIZE,), CLASSES)
    assert error.value.code == f"network-{name}"
