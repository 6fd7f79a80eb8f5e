"""States as flat dicts of tensors: dotted names, round trip, copies, refusal of a checkpoint of
something else.
"""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pseudocore.core.errors import RunError
from pseudocore.core.tree import clone, flatten, unflatten


class Momentum(NamedTuple):
    velocity: Tensor
    taken: Tensor


class State(NamedTuple):
    x: Tensor
    momentum: Momentum


def test_a_state_flattens_to_dotted_names_and_back() -> None:
    state = State(torch.ones(2), Momentum(torch.zeros(3), torch.tensor(4)))
    flat = flatten(state)
    assert list(flat) == ["x", "momentum.velocity", "momentum.taken"]
    back = unflatten(state, flat)
    assert isinstance(back, State)
    assert isinstance(back.momentum, Momentum)
    assert all(
        torch.equal(a, b) for a, b in zip(flatten(back).values(), flat.values(), strict=True)
    )
    flat["x"].add_(1)
    assert back.x.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"x": torch.ones(3)}, "x"),
        ({"x": torch.ones(2, dtype=torch.float64)}, "x"),
        ({"momentum.taken": None}, "momentum.taken"),
        ({"extra": torch.ones(1), "x": None}, "extra, x"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    change: dict[str, Tensor | None], names: str
) -> None:
    state = State(torch.ones(2), Momentum(torch.zeros(3), torch.tensor(4)))
    foreign = {
        name: value for name, value in {**flatten(state), **change}.items() if value is not None
    }
    with pytest.raises(
        RunError, match=rf"does not fit this method and problem \(it differs in {names}\)"
    ):
        unflatten(state, foreign)


def test_a_clone_shares_no_memory() -> None:
    state = State(torch.ones(2), Momentum(torch.zeros(3), torch.tensor(4)))
    copy = clone(state)
    for value in flatten(state).values():
        value.add_(1)
    assert (copy.x.tolist(), copy.momentum.velocity.tolist(), copy.momentum.taken.item()) == (
        [1.0, 1.0],
        [0.0, 0.0, 0.0],
        4,
    )
