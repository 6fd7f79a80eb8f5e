"""A coreset in a plain torch loop: its points have weights and class probabilities."""

import torch
from torch.utils.data import DataLoader

import pseudocore as pc

coreset = pc.reduce("lcmat-s", "digits", per_class=10, model="linear").coreset
network = torch.nn.Sequential(
    torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
)
optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
for _ in range(60):
    for x, p, weight in DataLoader(coreset.dataset(), batch_size=25, shuffle=True):
        log_probs = network(x).log_softmax(1)
        loss = -(weight * (p * log_probs).sum(1)).sum() / weight.sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

test = pc.dataset("digits").test
with torch.no_grad():
    right = network(test.x / 255).argmax(1) == test.y
print(f"accuracy {right.double().mean():.3f} from {len(coreset)} points")
