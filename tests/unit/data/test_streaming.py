"""data import --stream: the arrays that reading everything at once would give."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pseudocore.core.errors import ConfigError, DataError, PseudocoreError
from pseudocore.data import load, streaming
from pseudocore.data.sources import import_dataset


@pytest.fixture
def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(500, 3)).astype(np.float32), rng.integers(0, 3, 500)


def parquet_of(path: Path, x: np.ndarray, y: Any) -> None:
    arrow = pytest.importorskip("pyarrow")
    columns: dict[str, Any] = {f"c{place}": x[:, place] for place in range(x.shape[1])}
    import pyarrow.parquet as parquet

    parquet.write_table(arrow.table({**columns, "kind": y}), path, row_group_size=70)


def test_parquet_files(table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "ROWS", 64)
    x, y = table
    texts = np.array(["b", "c", "a"])[y]
    (tmp_path / "big").mkdir()
    parquet_of(tmp_path / "big" / "one.parquet", x[:300], texts[:300])
    parquet_of(tmp_path / "big" / "two.parquet", x[300:450], texts[300:450])
    parquet_of(tmp_path / "big" / "test.parquet", x[450:], texts[450:])
    made = import_dataset(
        tmp_path / "big", "mine", tmp_path, streaming_reading("kind"), stream=True
    )
    data = load(made)
    assert data.class_names == ("a", "b", "c")
    assert np.array_equal(data.train.x.numpy(), x[:450])
    assert np.array_equal(data.test.x.numpy(), x[450:])
    assert np.array_equal(data.train.y.numpy(), np.array([1, 2, 0])[y[:450]])
    assert np.array_equal(data.test.y.numpy(), np.array([1, 2, 0])[y[450:]])
    assert load("mine", root=tmp_path).fingerprint == data.fingerprint


def streaming_reading(target: str | None = None) -> Any:
    from pseudocore.data.reading import Reading

    return Reading(target=target)


def test_shards_in_half_precision_with_examples_held_out(table: Any, tmp_path: Path) -> None:
    x, y = table
    (tmp_path / "shards").mkdir()
    for place in range(5):
        part = slice(100 * place, 100 * (place + 1))
        np.savez(tmp_path / "shards" / f"{place}.npz", x=x[part], y=y[part])
    made = streaming.import_streamed(tmp_path / "shards", tmp_path / "kept", half=True)
    data = load(made)
    assert str(data.dtype) == "torch.float16"
    assert (data.num_train, len(data.test.y)) == (400, 100)
    both = np.concatenate([data.train.x.numpy(), data.test.x.numpy()])
    assert {*map(bytes, both)} == {*map(bytes, x.astype(np.float16))}
    # Labels stay with their inputs.
    label = {bytes(row): kind for row, kind in zip(x.astype(np.float16), y, strict=True)}
    assert [label[bytes(row)] for row in data.test.x.numpy()] == data.test.y.tolist()


def test_what_is_refused(table: Any, tmp_path: Path) -> None:
    x, y = table
    parquet_of(tmp_path / "a.parquet", x, y)
    parquet_of(tmp_path / "b.parquet", x, y / 2)
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "c.npz", x=1e6 * x, y=y)
    for source, options, kind, what in (
        ("a.parquet", {}, ConfigError, "name the column"),
        ("a.parquet", {"target": "what"}, ConfigError, "one of c0, c1, c2, kind"),
        ("b.parquet", {"target": "kind"}, DataError, "regressions cannot be streamed"),
        ("empty", {}, DataError, "of one kind"),
        ("c.npz", {"target": "kind"}, ConfigError, "holds arrays; leave it out"),
        ("c.npz", {"half": True}, DataError, "above 65,504"),
    ):
        with pytest.raises(kind, match=what):
            streaming.import_streamed(tmp_path / source, tmp_path / "kept", **options)
    assert not (tmp_path / "kept").exists()
    assert not list(tmp_path.glob(".kept*"))
    with pytest.raises(PseudocoreError, match="half is of what is streamed"):
        import_dataset(tmp_path / "c.npz", "mine", tmp_path, half=True)
