"""The shipped digits against scikit-learn's copy."""

import numpy as np
import torch
from sklearn.datasets import load_digits

from pseudocore.data import digits


def test_digits_are_scikit_learns_images_and_labels() -> None:
    reference = load_digits()
    images = np.rint(reference.images * 255 / 16).astype(np.uint8)
    pairs = zip(images, reference.target, strict=True)
    expected = sorted((image.tobytes(), int(label)) for image, label in pairs)
    data = digits()
    x, y = torch.cat([data.train.x, data.test.x]), torch.cat([data.train.y, data.test.y])
    ours = sorted((image.numpy().tobytes(), int(label)) for image, label in zip(x, y, strict=True))
    assert ours == expected


def test_digits_have_a_frozen_stratified_split() -> None:
    data = digits()
    assert data.train.x.shape == (1437, 1, 8, 8)
    assert data.test.x.shape == (360, 1, 8, 8)
    assert data.train.x.dtype == torch.uint8
    share = data.test.y.bincount() / (data.test.y.bincount() + data.class_counts)
    assert (share - 0.2).abs().max() < 0.01
    assert data.class_names == tuple("0123456789")
    assert data.fingerprint == "ac87c02471fe2b4c04be144b0965e9e86675a2af261768811839076ca223f287"
