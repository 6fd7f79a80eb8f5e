"""Twelve points that predict as 2,000 do: a target in its own units, with intervals."""

import numpy as np

import pseudocore as pc

rng = np.random.default_rng(0)
x = rng.normal(size=(2500, 6))
price = 300 + 40 * x @ [1.0, -2.0, 0.5, 0.0, 1.5, 0.2] + 25 * rng.normal(size=2500)
data = pc.dataset(x[:2000], price[:2000], test=(x[2000:], price[2000:]))  # fractions: a regression

uniform = pc.reduce("uniform", data, model="linear", points=12)
run = pc.reduce("psvi", data, model="linear", points=12)
print("noise", round(run.problem.gaussian.noise, 1))  # chosen on training data
for made in (uniform, run):
    print(made.coreset.provenance["method"])
    print(pc.evaluate(made, seeds=1, fidelity=True).table())

prediction = pc.infer(run.coreset).predict(data.test.x[:3])  # needs no data
low, high = prediction.interval(0.9)
for row in zip(prediction.mean, low, high, data.test.y[:3, 0], strict=True):
    print("{:.0f} ({:.0f} to {:.0f}), was {:.0f}".format(*row))
