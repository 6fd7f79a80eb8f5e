"""Names, the search path, imports, and the errors of a set that is not there."""

import os
from pathlib import Path

import numpy as np
import pytest

from pseudocore.core.errors import ConfigError, DataError, RunError
from pseudocore.data import (
    arrays,
    available,
    digits,
    find,
    import_dataset,
    load,
    search_path,
    sources,
    user_folder,
)

DEBIAN = sources.SYSTEM_FOLDER
ROOT_ONLY = ["mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "tiny-imagenet"]


@pytest.fixture(autouse=True)
def empty_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set of this machine is in sight."""
    monkeypatch.delenv("PSEUDOCORE_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setattr(sources, "SYSTEM_FOLDER", tmp_path / "system")
    monkeypatch.chdir(tmp_path)


def write_features(path: Path, shift: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    x = np.arange(12.0).reshape(6, 2) + shift
    np.savez(path, X=x, y=np.arange(6) % 2, Xt=x[:2], yt=np.arange(2))
    return path


def first(name: str, root: Path | None = None) -> float:
    return float(load(name, root=root).train.x[0, 0])


@pytest.mark.parametrize("name", ["digits", "moons", "logistic"])
def test_builtin_sets_need_nothing(name: str) -> None:
    data = load(name)
    assert data.name == name
    assert data.fingerprint == load(name).fingerprint


def test_roots_are_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PSEUDOCORE_DATA", os.pathsep.join([str(tmp_path / "b"), str(tmp_path / "c")])
    )
    for shift, folder in (
        (4, user_folder()),
        (3, tmp_path / "c"),
        (2, tmp_path / "b"),
        (1, tmp_path / "a"),
    ):
        write_features(folder / "mine.npz", shift)
        assert first("mine", root=tmp_path / "a") == shift
    assert first("mine") == 2
    assert search_path(Path("x"))[0] == Path("x")
    write_features(tmp_path / "system" / "theirs.npz", 5)
    assert first("theirs") == 5


def test_the_system_folder_is_debians() -> None:
    """dataset-fashion-mnist installs /usr/share/datasets/fashion-mnist/*.gz."""
    assert str(DEBIAN) == "/usr/share/datasets"


def test_user_folder_follows_the_desktop_convention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/somewhere")
    assert user_folder() == Path("/somewhere/.local/share/pseudocore")


@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "mnist.npz"])
def test_known_names_are_found_where_people_keep_them(tmp_path: Path, place: str) -> None:
    images, labels = np.arange(640, dtype=np.uint8).reshape(10, 8, 8), np.arange(10, dtype=np.uint8)
    path = tmp_path / place
    if path.suffix:
        np.savez(path, train_x=images, train_y=labels, test_x=images, test_y=labels)
    else:
        path.mkdir(parents=True)
        for part in ("train", "t10k"):
            (path / f"{part}-images-idx3-ubyte").write_bytes(
                bytes([0, 0, 8, 3, 0, 0, 0, 10, 0, 0, 0, 8, 0, 0, 0, 8]) + images.tobytes()
            )
            (path / f"{part}-labels-idx1-ubyte").write_bytes(
                bytes([0, 0, 8, 1, 0, 0, 0, 10]) + labels.tobytes()
            )
    data = load("mnist", root=tmp_path)
    assert find("mnist", root=tmp_path) == path
    assert (data.name, data.shape, data.class_names) == ("mnist", (1, 8, 8), tuple("0123456789"))


@pytest.mark.parametrize("name", ROOT_ONLY)
def test_a_missing_set_says_where_it_was_sought_and_what_to_put_there(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(DataError) as error:
        load(name, root=tmp_path)
    text = str(error.value)
    assert text.startswith(f"no {name} here")
    assert f"{tmp_path}, {user_folder()}, {tmp_path / 'system'}" in text
    assert f"into {tmp_path}" in text


def test_unknown_names_get_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="unknown data set 'cifar01'; did you mean 'cifar10'"):
        load("cifar01")
    write_features(tmp_path / "weather.npz")
    with pytest.raises(DataError, match="did you mean 'weather'"):
        load("wether", root=tmp_path)


def test_paths_are_read_in_place(tmp_path: Path) -> None:
    path = write_features(tmp_path / "here" / "mine.npz")
    assert load(path).name == load(str(path)).name == load("here/mine.npz").name == "mine"
    with pytest.raises(DataError, match=r"there is no file or folder nowhere/set.npz"):
        load("nowhere/set.npz")
    (tmp_path / "here" / "text.txt").write_text("hello")
    for unreadable in (tmp_path / "here", tmp_path / "here" / "text.txt", "here"):
        with pytest.raises(DataError, match="in no layout known here"):
            load(unreadable)


def test_a_name_wins_over_a_folder_of_that_name(tmp_path: Path) -> None:
    write_features(tmp_path / "root" / "mine.npz", shift=7)
    (tmp_path / "mine").mkdir()
    assert first("mine", root=tmp_path / "root") == 7
    (tmp_path / "digits").mkdir()
    assert load("digits").fingerprint == digits().fingerprint


def test_available_lists_builtin_known_and_imported(tmp_path: Path) -> None:
    path = write_features(tmp_path / "root" / "mine.npz")
    (tmp_path / "root" / "unrelated").mkdir()
    write_features(user_folder() / "svhn.npz")
    listed = dict(available(tmp_path / "root"))
    assert listed["digits"] == listed["moons"] == listed["logistic"] == "built in"
    assert listed["mine"] == str(path)
    assert listed["svhn"] == str(user_folder() / "svhn.npz")
    assert listed["cifar10"] is None
    assert set(listed) == {"digits", "moons", "logistic", "mine", *ROOT_ONLY}


def test_import_keeps_the_same_set_under_a_name(tmp_path: Path) -> None:
    data = digits()
    train, test = data.train, data.test
    halves = {"X": train.x[:, 0], "y": train.y, "Xt": test.x[:, 0], "yt": test.y}
    names = np.array([f"n{i}" for i in range(10)])
    np.savez(tmp_path / "source.npz", **halves, class_names=names)
    path = import_dataset(tmp_path / "source.npz", "my-digits")
    assert path == user_folder() / "my-digits.npz"
    imported = load("my-digits")
    assert imported.fingerprint == data.fingerprint
    assert imported.class_names == tuple(f"n{i}" for i in range(10))
    assert [entry.name for entry in path.parent.iterdir()] == ["my-digits.npz"]


def test_import_keeps_images_whose_axes_are_ambiguous(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (4, 3, 5, 3), dtype=np.uint8)
    y = np.arange(4) % 2
    np.savez(tmp_path / "odd.npz", train_x=x, train_y=y, test_x=x, test_y=y, layout="NCHW")
    path = import_dataset(tmp_path / "odd.npz", "odd", tmp_path / "root")
    np.testing.assert_array_equal(load("odd", root=tmp_path / "root").train.x, x)
    assert path.parent == tmp_path / "root"


def test_import_refuses_unfit_names_and_folders(tmp_path: Path) -> None:
    source = write_features(tmp_path / "source.npz")
    for name in ("../up", "a b", "", ".hidden", "a.npz"):
        with pytest.raises(ConfigError, match="cannot name a data set"):
            import_dataset(source, name)
    with pytest.raises(ConfigError, match="built-in"):
        import_dataset(source, "digits")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        import_dataset(source, "mine", tmp_path / "file")


def test_a_new_import_is_a_new_file(tmp_path: Path) -> None:
    """Whoever has the earlier one open goes on reading it whole."""
    path = import_dataset(write_features(tmp_path / "one.npz", 1), "mine")
    before = path.read_bytes()
    os.link(path, tmp_path / "still-open")
    import_dataset(write_features(tmp_path / "two.npz", 2), "mine")
    assert first("mine") == 2
    assert (tmp_path / "still-open").read_bytes() == before


def test_an_interrupted_import_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = import_dataset(write_features(tmp_path / "one.npz", 1), "mine")
    before = path.read_bytes()

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(arrays.np, "savez_compressed", killed)
    with pytest.raises(KeyboardInterrupt):
        import_dataset(write_features(tmp_path / "two.npz", 2), "mine")
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["mine.npz"]
