"""Random streams: pure functions of seed and path, independent of each other and of the global
generator.
"""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pseudocore.core.rng import Rng

NAMES = st.lists(st.one_of(st.text(max_size=5), st.integers(-5, 5)), max_size=4).map(tuple)


def test_equal_seed_and_path_give_equal_draws() -> None:
    for _ in range(2):
        assert torch.equal(Rng(3)("step", 7).normal(5), Rng(3)("step", 7).normal(5))
        assert torch.equal(Rng(3)("step", 7).permutation(9), Rng(3)("step", 7).permutation(9))
        assert torch.equal(Rng(3)("step", 7).integers(100, 5), Rng(3)("step", 7).integers(100, 5))
        assert torch.equal(Rng(3)("step", 7).uniform(5), Rng(3)("step", 7).uniform(5))


def test_the_numbers_are_those_of_every_machine_and_version() -> None:
    """Checkpoints and published coresets rely on these: changing them is a change of format."""
    assert Rng(0).number() == 9183883414534618160
    assert Rng(0)("step", 7)("batch").number() == 4765614478210090212


@given(NAMES, NAMES)
def test_splitting_step_by_step_or_at_once_is_the_same(
    first: tuple[str | int, ...], second: tuple[str | int, ...]
) -> None:
    assert Rng(1)(*first)(*second) == Rng(1)(*first, *second)
    assert Rng(1)(*first)(*second).number() == Rng(1)(*first, *second).number()


@given(NAMES, NAMES, st.integers(0, 3), st.integers(0, 3))
def test_other_paths_and_seeds_are_other_streams(
    a: tuple[str | int, ...], b: tuple[str | int, ...], s: int, t: int
) -> None:
    assert (Rng(s)(*a).number() == Rng(t)(*b).number()) == ((s, a) == (t, b))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1,), ("1",)),
        (("a", "b"), ("ab",)),
        (("a", "b"), ("b", "a")),
        ((), ("",)),
        ((1, 12), (11, 2)),
        (("a', 'b",), ("a", "b")),
    ],
)
def test_paths_that_look_alike_are_told_apart(
    a: tuple[str | int, ...], b: tuple[str | int, ...]
) -> None:
    assert Rng(0)(*a).number() != Rng(0)(*b).number()


def test_drawing_from_one_stream_moves_no_other() -> None:
    rng = Rng(0)
    before = rng("b").normal(4)
    rng.normal(100)
    rng("a").normal(100)
    rng("b", "c").normal(100)
    assert torch.equal(rng("b").normal(4), before)


def test_the_global_generator_is_neither_read_nor_moved() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    draws = [Rng(0).normal(3), Rng(0).uniform(3), Rng(0).integers(9, 3), Rng(0).permutation(3)]
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again = [Rng(0).normal(3), Rng(0).uniform(3), Rng(0).integers(9, 3), Rng(0).permutation(3)]
    assert all(torch.equal(a, b) for a, b in zip(draws, again, strict=True))


def test_draws_have_their_distributions() -> None:
    n = 20_000
    normal, uniform = (
        Rng(0)("n").normal(n, dtype=torch.float64),
        Rng(0)("u").uniform(n, dtype=torch.float64),
    )
    assert abs(normal.mean()) * n**0.5 < 4
    assert abs(normal.var() - 1) * (n / 2) ** 0.5 < 4
    assert abs(uniform.mean() - 0.5) * (12 * n) ** 0.5 < 4
    assert 0 <= uniform.min() <= uniform.max() < 1
    count = torch.bincount(Rng(0)("i").integers(5, n), minlength=5)
    assert len(count) == 5
    assert (
        (count - n / 5).square() / (n / 5)
    ).sum() < 23.5  # chi-squared with 4 degrees of freedom, p = 1e-4
    assert Rng(0).permutation(50).sort().values.tolist() == list(range(50))


def test_neighbouring_streams_are_uncorrelated() -> None:
    n = 200
    draws = torch.stack([Rng(0)("step", i).normal(n, dtype=torch.float64) for i in range(30)])
    correlation = draws @ draws.T / n
    off = correlation[~torch.eye(30, dtype=torch.bool)]
    assert off.abs().max() * n**0.5 < 5
    first = torch.stack([Rng(0)("step", i).normal(1, dtype=torch.float64)[0] for i in range(2000)])
    assert abs(first.mean()) * 2000**0.5 < 4


def test_shapes_and_types_are_as_asked() -> None:
    assert Rng(0).normal(2, 3, dtype=torch.float64).shape == (2, 3)
    assert Rng(0).normal(2, dtype=torch.float64).dtype == torch.float64
    assert Rng(0).uniform().shape == ()
    assert Rng(0).integers(4, 2, 2).dtype == torch.int64


def test_a_stream_is_a_value() -> None:
    assert {Rng(0)("a"), Rng(0)("a"), Rng(1)("a")} == {Rng(0, ("a",)), Rng(1, ("a",))}
    with pytest.raises(dataclasses.FrozenInstanceError):
        Rng(0).seed = 1  # type: ignore[misc]


@given(st.integers(-(2**70), 2**70), NAMES)
def test_numbers_seed_any_generator(seed: int, path: tuple[str | int, ...]) -> None:
    number = Rng(seed)(*path).number()
    assert 0 <= number < 2**63
    assert Rng(seed)(*path).generator().initial_seed() == number
