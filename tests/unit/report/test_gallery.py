"""Which points of a coreset are shown, and what is said about the others."""

import pytest
import torch

from pseudocore.core.types import Coreset
from pseudocore.report.gallery import MAX_SHOWN, show


def pictures(labels: list[int], values: torch.Tensor | None = None) -> Coreset:
    x = torch.full((len(labels), 1, 2, 2), 0.5) if values is None else values
    return Coreset(x, torch.tensor(labels), torch.ones(len(labels)))


def test_a_large_coreset_is_cut_evenly_and_says_so() -> None:
    got = show(pictures([label for label in range(10) for _ in range(50)]), [])
    assert [(cache.name, len(cache.pictures)) for cache in got.shelves] == [
        (str(label), 10) for label in range(10)
    ]
    assert got.notes == ["Showing 100 of 500 points, at most 10 of a class."]
    assert not got.is_tiles


def test_more_classes_than_room_show_one_picture_each() -> None:
    got = show(pictures(list(range(250))), [])
    assert len(got.shelves) == MAX_SHOWN
    assert got.is_tiles
    assert got.notes == ["Showing 100 of 250 points, at most 1 of a class."]


def test_a_small_coreset_is_shown_whole_without_a_word() -> None:
    got = show(pictures([1, 0, 1]), ["no", "yes"])
    assert [(cache.name, len(cache.pictures)) for cache in got.shelves] == [("no", 1), ("yes", 2)]
    assert got.notes == []


def test_a_label_without_a_name_is_its_number() -> None:
    assert [cache.name for cache in show(pictures([-1, 0, 7]), ["zero"]).shelves] == [
        "-1",
        "zero",
        "7",
    ]


def test_pixels_out_of_range_are_counted() -> None:
    values = torch.tensor([[-1.0, 0.5], [0.5, 2.0]]).reshape(1, 1, 2, 2)
    assert show(pictures([0], values), []).notes == [
        "50.0% of the pixel values lie outside [0, 1] and are shown as black or white."
    ]


@pytest.mark.parametrize("shape", [(12, 4, 2, 2), (12, 3), (12, 5, 5)])
def test_points_that_are_no_pictures_become_numbers(shape: tuple[int, ...]) -> None:
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    got = show(Coreset(x, torch.arange(12) % 2, torch.ones(12)), [])
    assert got.shelves == []
    assert got.numbers is not None
    assert {len(row) for row in got.numbers.rows} == {len(got.numbers.head)}
    assert [row[0] for row in got.numbers.rows] == ["0"] * 5 + ["1"] * 5 + ["…"]
    assert got.numbers.rows[1][1] == f"{float(x.flatten(1)[2, 0]):.3g}"
    assert (got.numbers.head[-1] == "…") == (x[0].numel() > 8)


def test_stored_bytes_are_shown_as_they_are() -> None:
    bright = show(
        Coreset(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8), torch.tensor([0]), torch.ones(1)),
        [],
    )
    grey = show(
        Coreset(torch.full((1, 1, 2, 2), 128, dtype=torch.uint8), torch.tensor([0]), torch.ones(1)),
        [],
    )
    same_grey = show(pictures([0], torch.full((1, 1, 2, 2), 128 / 255)), [])
    assert (
        grey.shelves[0].pictures[0].source
        == same_grey.shelves[0].pictures[0].source
        != bright.shelves[0].pictures[0].source
    )
