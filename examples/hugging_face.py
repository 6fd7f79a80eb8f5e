"""A Hugging Face data set in, a coreset out as another, and back: nothing is fetched."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import numpy as np
import torch

import pseudocore as pc

rng = np.random.default_rng(0)
labels = rng.integers(0, 2, 300)
features = datasets.Features(
    {"height": datasets.Value("float32"), "length": datasets.Value("float32"),
     "species": datasets.ClassLabel(names=["cat", "dog"])}
)  # fmt: skip
columns = {
    "height": rng.normal(25 + 20 * labels, 8),
    "length": rng.normal(45 + 30 * labels, 12),
    "species": labels,
}
animals = datasets.Dataset.from_dict(columns, features=features)

run = pc.reduce("giga", animals, target="species", model="linear", points=8)
run.coreset.to_hf().save_to_disk("coreset")

back = datasets.load_from_disk("coreset").with_format("torch")
x = torch.stack([back[:][name] for name in run.coreset.feature_names], 1)
assert torch.equal(x, run.coreset.x)
print(back.features)
print(pc.evaluate(run, seeds=2).table())
