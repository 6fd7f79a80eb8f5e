"""Folders of pictures, written with Pillow: pixels, labels, splits and complaints."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pseudocore.core.errors import DataError
from pseudocore.data import Reading, load

RANDOM = np.random.default_rng(0)


def picture(path: Path, mode: str = "RGB", size: tuple[int, int] = (4, 3)) -> np.ndarray:
    """Write random pixels; returns them as (channels, height, width)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    pixels = RANDOM.integers(0, 256, (size[1], size[0], channels), dtype=np.uint8)
    Image.fromarray(pixels[..., 0] if mode == "L" else pixels, mode=None).save(path)
    return pixels.transpose(2, 0, 1)


def test_train_and_test_folders_are_read(tmp_path: Path) -> None:
    written = {
        (part, word, i): picture(tmp_path / "pets" / part / word / f"{i}.png")
        for part, num in (("train", 3), ("test", 2)) for word in ("dog", "cat") for i in range(num)
    }  # fmt: skip
    (tmp_path / "pets/train/dog/notes.txt").write_text("not a picture")
    picture(tmp_path / "pets/train/dog/.hidden.png")
    data = load(tmp_path / "pets")
    assert data.class_names == ("cat", "dog")
    assert data.name == "pets"
    for part, examples, num in (("train", data.train, 3), ("test", data.test, 2)):
        expected = [written[part, word, i] for word in ("cat", "dog") for i in range(num)]
        np.testing.assert_array_equal(examples.x, expected)
        assert examples.y.tolist() == [0] * num + [1] * num


def test_grey_pictures_stay_grey_unless_one_has_colour(tmp_path: Path) -> None:
    grey = [
        picture(tmp_path / part / word / "0.png", "L") for part in ("train", "val") for word in "ab"
    ]
    np.testing.assert_array_equal(
        np.concatenate([load(tmp_path).train.x, load(tmp_path).test.x]), grey
    )
    colour = picture(tmp_path / "val/b/1.png", "RGBA")
    data = load(tmp_path)
    np.testing.assert_array_equal(data.train.x[0], np.repeat(grey[0], 3, 0))
    np.testing.assert_array_equal(data.test.x[2], colour[:3])


def test_a_folder_without_a_test_set_is_split_by_name(tmp_path: Path) -> None:
    written = {
        (word, i): picture(tmp_path / "one" / word / f"{i}.png")
        for word in ("10", "9")
        for i in range(10)
    }
    data = load(tmp_path / "one")
    assert "4 of 20 pictures are held out" in data.notes[0]
    assert data.class_names == ("9", "10")  # whole numbers in the order of their values
    assert data.class_counts.tolist() == [8, 8]
    assert data.test.y.bincount().tolist() == [2, 2]
    read = sorted(x.numpy().tobytes() for x in (*data.train.x, *data.test.x))
    assert read == sorted(pixels.tobytes() for pixels in written.values())
    shutil.move(tmp_path / "one", tmp_path / "two")
    assert load(tmp_path / "two").fingerprint == data.fingerprint


def test_jpegs_are_decoded(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for i, word in enumerate("ab"):
            path = tmp_path / part / word / "flat.JPG"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (8, 8), (200, 100 * i, 50)).save(path)
    data = load(tmp_path)
    assert abs(data.train.x[1].float().mean((1, 2)).numpy() - [200, 100, 50]).max() < 3


def test_mixed_sizes_name_two_pictures(tmp_path: Path) -> None:
    for word in "ab":
        picture(tmp_path / "train" / word / "0.png")
        picture(tmp_path / "test" / word / "0.png")
    picture(tmp_path / "test/b/odd.png", size=(5, 3))
    with pytest.raises(DataError, match=r"train/a/0.png is 4x3 and .*test/b/odd.png is 5x3"):
        load(tmp_path)


def test_mixed_sizes_are_resized_on_request(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for word, size in (("a", (9, 6)), ("b", (4, 8))):
            picture(tmp_path / part / word / "0.png", size=size)
    even = picture(tmp_path / "train/a/1.png", size=(5, 5))
    data = load(tmp_path, reading=Reading(resize=5))
    assert data.shape == (3, 5, 5)
    np.testing.assert_array_equal(data.train.x[1], even)


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "gif", "webp", "TIF"])
def test_formats_without_loss_are_read_exactly(tmp_path: Path, suffix: str) -> None:
    written = []
    for part in ("train", "test"):
        for word in "ab":
            path = tmp_path / part / word / f"0.{suffix}"
            path.parent.mkdir(parents=True)
            pixels = RANDOM.integers(0, 256, (3, 4), dtype=np.uint8)
            other = Image.fromarray(RANDOM.integers(0, 256, (3, 4), dtype=np.uint8))
            frames = {"save_all": True, "append_images": [other]} if suffix == "gif" else {}
            lossless = {"lossless": True} if suffix == "webp" else {}
            Image.fromarray(pixels).save(path, **frames, **lossless)
            written.append(pixels)
    data = load(tmp_path)
    read = torch.cat([data.train.x, data.test.x])[:, 0]  # of a moving picture the first frame
    np.testing.assert_array_equal(read, written)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_kept(tmp_path: Path, suffix: str) -> None:
    deep = RANDOM.integers(0, 65536, (3, 4), dtype=np.uint16)
    for part in ("train", "test"):
        for word in "ab":
            picture(tmp_path / part / word / "0.png", "L")
    Image.fromarray(deep).save(tmp_path / f"train/b/1.{suffix}")
    data = load(tmp_path)
    np.testing.assert_array_equal(data.train.x[2, 0], deep.astype(np.float32) / 65535)
    shallow = np.asarray(Image.open(tmp_path / "train/a/0.png"))
    np.testing.assert_array_equal(data.train.x[0, 0], shallow.astype(np.float32) / 255)


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for i, word in enumerate("ab"):
            path = tmp_path / part / word / "flat.jpg"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (16, 8), (200, 100 * i, 50)).save(path)
    lying = Image.new("RGB", (8, 16), (0, 0, 0))
    lying.paste((255, 255, 255), (0, 0, 8, 8))  # white above; turned left it is to the left
    exif = Image.Exif()
    exif[0x0112] = 8
    lying.save(tmp_path / "train/a/lying.jpg", exif=exif)
    upright = load(tmp_path).train.x[1].float()
    assert upright[:, :, :7].min() > 245
    assert upright[:, :, 9:].max() < 10


def test_only_listed_formats_are_decoded(tmp_path: Path) -> None:
    """A file of another format under an innocent name reaches none of Pillow's other decoders."""
    for part in ("train", "test"):
        for word in "ab":
            picture(tmp_path / part / word / "0.png")
    Image.new("RGB", (4, 3)).save(tmp_path / "train/a/1.png", format="PPM")
    with pytest.raises(DataError, match=r"train/a/1\.png cannot be read as a picture"):
        load(tmp_path)


def test_unfit_folders_are_named(tmp_path: Path) -> None:
    for word in "ab":
        picture(tmp_path / "train" / word / "0.png")
    with pytest.raises(DataError, match="no test or val folder"):
        load(tmp_path)
    picture(tmp_path / "test/c/0.png")
    with pytest.raises(DataError, match="class 'c'"):
        load(tmp_path)
    (tmp_path / "test/c").rename(tmp_path / "test/a")
    (tmp_path / "train/empty").mkdir()
    with pytest.raises(DataError, match=r"train/empty holds no pictures \(\.png"):
        load(tmp_path)
    (tmp_path / "train/empty").rmdir()
    (tmp_path / "train/a/1.png").write_bytes((tmp_path / "train/a/0.png").read_bytes()[:50])
    with pytest.raises(DataError, match=r"train/a/1\.png cannot be read as a picture"):
        load(tmp_path)
    Image.fromarray(RANDOM.random((3, 4), dtype=np.float32)).save(tmp_path / "train/a/1.tif")
    (tmp_path / "train/a/1.png").unlink()
    with pytest.raises(DataError, match=r"train/a/1\.tif has pixels of Pillow mode 'F'.*16 bits"):
        load(tmp_path)


def test_a_class_of_one_picture_cannot_be_split(tmp_path: Path) -> None:
    for i in range(3):
        picture(tmp_path / "a" / f"{i}.png")
    picture(tmp_path / "b" / "0.png")
    with pytest.raises(DataError, match="holds only 1 picture"):
        load(tmp_path)


def tiny_imagenet(folder: Path) -> list[str]:
    """Three classes, four flat pictures each to survive JPEG, named out of order in wnids.txt; one
    picture is grey.
    """
    wnids = ["n03", "n01", "n02"]
    for label, wnid in enumerate(wnids):
        for i in range(4):
            path = folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            mode, colour = (
                ("L", 10 + label) if (label, i) == (1, 2) else ("RGB", (100 * label, 60 * i, 5))
            )
            Image.new(mode, (64, 64), colour).save(path)
    (folder / "val/images").mkdir(parents=True)
    for i in range(5):
        Image.new("RGB", (64, 64), (0, 50 * i, 0)).save(folder / f"val/images/val_{i}.JPEG")
    rows = [f"val_{i}.JPEG\t{wnids[i % 3]}\t0\t0\t63\t63" for i in range(5)]
    (folder / "val/val_annotations.txt").write_text("\n".join(rows) + "\n")
    (folder / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (folder / "words.txt").write_text(
        "n00\tother\nn01\tgoldfish, Carassius auratus\nn02\tsalamander\n"
    )
    return wnids


def test_tiny_imagenet_is_read(tmp_path: Path) -> None:
    tiny_imagenet(tmp_path)
    data = load(tmp_path)
    assert (data.name, data.num_classes, data.shape) == ("tiny-imagenet", 3, (3, 64, 64))
    assert data.class_names == ("n03", "goldfish", "salamander")
    assert data.train.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.test.y.tolist() == [0, 1, 2, 0, 1]
    means = data.train.x.float().mean((2, 3)).numpy()
    expected = [(100 * label, 60 * i, 5) for label in range(3) for i in range(4)]
    expected[6] = (11, 11, 11)
    np.testing.assert_allclose(means, expected, atol=3)
    np.testing.assert_allclose(
        data.test.x.float().mean((2, 3))[:, 1], [0, 50, 100, 150, 200], atol=3
    )


def test_damaged_tiny_imagenet_is_named(tmp_path: Path) -> None:
    tiny_imagenet(tmp_path)
    annotations = tmp_path / "val/val_annotations.txt"
    for text, message in (
        ("val_0.JPEG\tn99\t0\n", "of no class of wnids"),
        ("../../secret\tn01\t0\n", "no plain file name"),
        ("nothing\n", "of no class of wnids"),
        ("", "is empty"),
        ("val_9.JPEG\tn01\t0\n", r"val_9\.JPEG cannot be read"),
    ):
        annotations.write_text(text)
        with pytest.raises(DataError, match=message):
            load(tmp_path)
    annotations.unlink()
    with pytest.raises(DataError, match=r"val_annotations.txt is missing"):
        load(tmp_path)
    shutil.rmtree(tmp_path / "train/n02")
    with pytest.raises(DataError, match="n02/images holds no"):
        load(tmp_path)
    (tmp_path / "wnids.txt").write_text("")
    with pytest.raises(DataError, match="names no classes"):
        load(tmp_path)


def test_pictures_without_pillow_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("train", "test"):
        picture(tmp_path / part / "a" / "0.png")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(DataError, match=r'pip install "pseudocore\[images\]"'):
        load(tmp_path)
