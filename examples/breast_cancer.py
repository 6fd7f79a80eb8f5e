"""scikit-learn's breast cancer data: a coreset of 20 of 455 patients, and what it predicts."""

from sklearn.datasets import load_breast_cancer

import pseudocore as pc

data = pc.dataset(load_breast_cancer())
print(data)

run = pc.reduce("vbpc", data, model="linear", per_class=10, num_steps=200)
print(run.coreset)

posterior = pc.infer(run)
prediction = posterior.predict(data.test.x[:3])
for probabilities in prediction.probs:
    print(dict(zip(data.class_names, probabilities.tolist(), strict=True)))

print(pc.evaluate(run, seeds=2).table())
