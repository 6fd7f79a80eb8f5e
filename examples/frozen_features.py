"""Your embeddings: a posterior of the last layer on six points of a frozen network's features."""

import torch
from torch import nn

import pseudocore as pc

torch.manual_seed(0)
backbone = nn.Sequential(  # stands for a pre-trained network; a `timm:` name works, too
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten()
).eval()

digits = pc.dataset("digits")
keep = digits.train.y < 3, digits.test.y < 3
data = pc.dataset(
    digits.train.x[keep[0]], digits.train.y[keep[0]],
    test=(digits.test.x[keep[1]], digits.test.y[keep[1]]), layout="NCHW",
)  # fmt: skip

run = pc.reduce("vbpc", data, features=backbone, model="linear", per_class=2, num_steps=100)
print(run.coreset, "nearest training images:", run.coreset.provenance["nearest"])
print(pc.evaluate(run, seeds=1, fidelity=True).table())

with torch.no_grad():
    embedded = backbone(data.test.x[:3].float() / 255)
print(pc.infer(run.coreset).predict(embedded).probs)  # features in, probabilities out
