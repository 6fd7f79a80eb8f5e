"""Tables with texts and gaps: encoded by what the training rows hold, or refused by column and
row.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import pseudocore
from pseudocore.core.dataset import feature_names
from pseudocore.data.tables import Rows, encode, encoding_from, fit

Fails = Callable[..., Any]

TRAIN = pd.DataFrame(
    {
        "age": [20.0, None, 40.0, 60.0],
        "colour": ["red", "blue", None, "blue"],
        "y": ["no", "yes", "no", "yes"],
    }
)
TEST = pd.DataFrame({"y": ["yes", "no"], "colour": [None, "green"], "age": [None, 50.0]})


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("of", [lambda f: f, pl.from_pandas, pa.Table.from_pandas])
def test_gaps_and_categories_follow_the_training_rows(of: Callable[[Any], Any]) -> None:
    data = pseudocore.dataset(of(TRAIN), target="y", test=of(TEST), missing="impute")
    expected = [[20, 0, 1], [40, 1, 0], [40, 1, 0], [60, 1, 0]]  # age, colour=blue, colour=red
    assert data.train.x.tolist() == expected
    assert data.test.x.tolist() == [[40, 1, 0], [50, 0, 0]]  # green was never seen
    assert data.class_names == ("no", "yes")
    assert data.test.y.tolist() == [1, 0]
    assert data.encoding == (
        {"name": "age", "fill": 40.0},
        {"name": "colour", "values": ["blue", "red"], "fill": "blue"},
    )
    said = "\n".join(data.notes)
    for part in (
        "1 gaps in column 'age' are filled with its median, 40",
        "column 'colour' is one-hot encoded (2 values)",
        "1 gaps in column 'colour' are filled with its most frequent text, 'blue'",
        "1 rows of test data hold a value of column 'colour' that no training row holds, such as"
        " 'green'",
    ):
        assert part in said


def test_an_encoding_comes_back_from_its_description() -> None:
    table = {"a": np.array([1.0, 2.0, 4.0]), "b": np.array(["u", "v", "u"], dtype=object)}
    rows = Rows(table, np.arange(1, 4), "it")
    encoding, _ = fit(rows, "impute")
    again = encoding_from(encoding.describe())
    assert again == encoding
    assert feature_names(encoding.describe()) == ("a", "b=u", "b=v")
    assert encode(rows, again)[0].tolist() == [[1, 1, 0], [2, 0, 1], [4, 1, 0]]


def test_nothing_is_learned_from_rows_held_out() -> None:
    """An outlier among the rows held out leaves the median of the others alone."""
    frame = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20) % 2})
    held_out = pseudocore.dataset(frame, "y").test.x.flatten().int().tolist()
    frame.loc[held_out, "x"] = 1e6
    first = next(row for row in range(20) if row not in held_out)
    frame.loc[first, "x"] = None
    data = pseudocore.dataset(frame, "y", missing="impute")
    rest = [row for row in range(20) if row not in [first, *held_out]]
    assert data.train.x.max() < 1e6
    assert data.train.x[0, 0] == np.float32(np.median(rest))


def test_arrays_are_imputed_too() -> None:
    x = np.array([[1.0, np.nan], [3.0, 5.0], [np.nan, 7.0]])
    data = pseudocore.dataset(x, [0, 1, 0], test=(x[:1], [0]), missing="impute")
    assert data.train.x.tolist() == [[1, 6], [3, 5], [2, 7]]
    assert data.test.x.tolist() == [[1, 6]]
    assert data.notes == ("3 gaps are filled with medians",)


def test_a_csv_file_as_people_write_them(tmp_path: Path) -> None:
    text = '\ufeff;age; city ;y\n1; 3,5 ;Bern;a\n\n2;NA;"Rio; RJ";b\n3;?; ;a\n4;1e1;Bern;b\n'
    path = write(tmp_path / "people.csv", text.replace("3,5", "3.5"))
    data = pseudocore.dataset(path, target="y", test=path, missing="impute")
    assert [one["name"] for one in data.encoding] == ["age", "city"]
    assert data.encoding[1]["values"] == ["Bern", "Rio; RJ"]
    assert data.train.x.tolist() == [[3.5, 1, 0], [6.75, 0, 1], [6.75, 1, 0], [10, 1, 0]]
    assert "a column without a name" in data.notes[0]
    small = pseudocore.dataset(path, target="y", test=path, drop=" city,", missing="impute")
    assert small.train.x.tolist() == [[3.5], [6.75], [6.75], [10]]


def test_a_column_of_numbers_may_turn_into_texts_late(tmp_path: Path) -> None:
    """After more rows than are converted at once."""
    rows = ["3+" if row == 25_000 else str(row % 3) for row in range(25_001)]
    text = "x,n,y\n" + "".join(f"{i % 7},{n},{i % 2}\n" for i, n in enumerate(rows))
    data = pseudocore.dataset(write(tmp_path / "long.csv", text), target="y")
    assert data.encoding[1]["values"] == ["0", "1", "2", "3+"]
    assert len(data.train.y) + len(data.test.y) == 25_001
    assert data.train.x[:, 1:].sum() == len(data.train.y)


def test_whole_numbers_in_texts_keep_their_spelling() -> None:
    frame = pd.DataFrame({"k": ["01", "1", "01", "1"], "c": [5, 6, 5, 6], "y": [0, 1, 0, 1]})
    frame["c"] = frame["c"].astype("category")
    encoding = pseudocore.dataset(frame, "y", test=frame).encoding
    assert [one["values"] for one in encoding] == [["01", "1"], ["5", "6"]]


CSV: dict[str, tuple[str, str, str]] = {
    "gap": ("a,y\n1,0\n,1\n3,0\n,1\n", "missing-values", "column 'a' of {} has no value in row 2"),
    "gap in text": ("a,y\nu,0\n,1\nv,0\n", "missing-values", "(1 in all); missing='impute'"),
    "gap in target": ("a,y\n1,0\n2,\n3,1\n", "unfit-labels", "column 'y' of {} has no label in row 2"),
    "empty column": ("a,b,y\n1,,0\n2,,1\n3,,0\n", "empty-column", "column 'b' of {} holds no values"),
    "ragged": ("a,y\n1,0\n2,1,9\n", "ragged-row", "row 2 of {} has 3 fields, but there are 2"),
    "no rows": ("a,y\n", "no-examples", "{} has no rows below its header"),
    "no text": ("", "no-header", "{} has no header line"),
    "no header": ("1,2\n3,4\n", "no-header", "must name the columns, but holds only numbers"),
    "repeated": ("a,a,y\n1,2,0\n", "repeated-column", "two columns named 'a'"),
    "infinite": ("a,y\n1,0\ninf,1\n3,0\n4,1\n", "not-finite", "column 'a' of {} holds inf in row 2"),
    "too large": ("a,y\n1,0\n2,1\n3,0\n1e300,1\n", "not-finite", "in row 4, which is infinite or"),
    "identifier": (
        "a,y\n" + "".join(f"id{i},{i % 2}\n" for i in range(200)),
        "too-many-values",
        "different texts, such as 'id0'; categories have at most 100",
    ),
    "one odd number": (
        "a,y\n" + "".join(f"{'12m' if i == 122 else i},{i % 2}\n" for i in range(200)),
        "too-many-values",
        "holds '12m' in row 123 where most rows hold numbers",
    ),
    "infinite target": ("a,y\n1,0.5\n2,inf\n3,1\n", "unfit-targets", "no finite target in row 2"),
}  # fmt: skip


@pytest.mark.parametrize("what", CSV)
def test_unfit_csv_files_are_refused(what: str, tmp_path: Path, fails: Fails) -> None:
    text, code, part = CSV[what]
    path = write(tmp_path / "bad.csv", text)
    with fails(code, part.format(path)):
        pseudocore.dataset(path, target="y")


def test_files_that_are_no_tables_are_refused(tmp_path: Path, fails: Fails) -> None:
    for content, part in ((b"a,y\n\xe9,0\n", "not UTF-8 text (it holds the byte 0xe9)"),
                          (b'a,y\n"' + b"x" * 200_000, "cannot be read as CSV (field larger")):  # fmt: skip
        (tmp_path / "bad.csv").write_bytes(content)
        with fails("damaged-data", "bad.csv", part):
            pseudocore.dataset(tmp_path / "bad.csv", target="y")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 garbage")
    with fails("damaged-data", "bad.parquet cannot be read as a Parquet file"):
        pseudocore.dataset(tmp_path / "bad.parquet", target="y")


def test_test_rows_must_fit(fails: Fails) -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [0, 1, 0]})
    with fails("unknown-column", "column 'a' of test data is missing"):
        pseudocore.dataset(frame, "y", test=frame.rename(columns={"a": "b"}))
    with fails("not-a-number", "column 'a' of test data holds 'x' in row 2, where training rows"):
        pseudocore.dataset(frame, "y", test=pd.DataFrame({"a": ["1", "x"], "y": [0, 1]}))
    with fails("missing-values", "column 'a' of test data has no value in row 1"):
        pseudocore.dataset(frame, "y", test=pd.DataFrame({"a": [None, 1.0], "y": [0, 1]}))
    with fails("halves-differ", "must both be tables"):
        pseudocore.dataset(frame, "y", test=(np.zeros((2, 5)), [0, 1]))


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"when": pd.to_datetime(["2020-01-01", "2021-01-01"]), "y": [0, 1]}),
        pd.DataFrame({"when": [[1], [2]], "y": [0, 1]}),
        pl.DataFrame({"when": [[1.0], [2.0]], "y": [0, 1]}),
        pa.table({"when": [[1], [2]], "y": [0, 1]}),
    ],
)
def test_columns_of_other_things_are_refused(frame: Any, fails: Fails) -> None:
    with fails("unfit-column", "column 'when' of the frame holds", "neither numbers nor texts"):
        pseudocore.dataset(frame, "y")
    frame = frame.drop_columns("when") if isinstance(frame, pa.Table) else frame
    with fails("repeated-column", "two columns named 'a'"):
        pseudocore.dataset(pd.DataFrame([[1, 2, 0]], columns=["a", "a", "y"]), "y")


def test_rows_keep_their_numbers_when_some_are_held_out(fails: Fails) -> None:
    frame = pd.DataFrame({"a": np.arange(20.0), "y": np.arange(20) % 2})
    for row in (0, 7, 19):
        broken = frame.copy()
        broken.loc[row, "a"] = None
        with fails("missing-values", f"has no value in row {row + 1} (1 in all)"):
            pseudocore.dataset(broken, "y")


def test_a_coreset_carries_the_encoding_of_its_table() -> None:
    frame = pd.concat([TRAIN, TRAIN])
    made = pseudocore.reduce(
        "uniform", frame, target="y", missing="impute", per_class=1, model="linear"
    )
    data = pseudocore.dataset(frame, "y", missing="impute")
    assert encoding_from(made.coreset.provenance["encoding"]).describe() == list(data.encoding)
    assert len(pseudocore.evaluate(made.coreset, frame, seeds=1, num_steps=2).per_seed) == 1
