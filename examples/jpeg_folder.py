"""A folder of JPEG files of mixed sizes, in three classes of unequal size, made here."""

from pathlib import Path

import numpy as np
from PIL import Image

import pseudocore as pc

rng = np.random.default_rng(0)
for name, num, colour in (("grass", 30, 1), ("sand", 12, 0), ("sea", 20, 2)):
    folder = Path("pictures") / name
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(num):
        height, width = rng.integers(24, 64, 2)
        pixels = rng.integers(0, 120, (height, width, 3), dtype=np.uint8)
        pixels[..., colour] += 100
        Image.fromarray(pixels).save(folder / f"{number}.jpg")

data = pc.dataset("pictures", resize=16)
print(data, data.class_counts.tolist())

run = pc.reduce("herding", data, fraction=0.2, allocate="equal", space="inputs")
print(run.coreset.labels.bincount().tolist(), run.coreset.weight.unique().tolist())
run.coreset.save("chosen", "png")

print(pc.evaluate(run, inference="sgd", model="linear", num_steps=50, seeds=2).table())
