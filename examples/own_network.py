"""A network of your own: any nn.Module, with attention, norms, buffers and dropout."""

import torch
from torch import Tensor, nn

import pseudocore as pc


class Transformer(nn.Module):
    """Rows of an image as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.place = nn.Parameter(0.1 * torch.randn(8, 16))
        self.norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(self.embed(x.squeeze(1)) + self.place)
        out: Tensor = self.head((rows + self.attention(rows, rows, rows)[0]).mean(1))
        return out


run = pc.reduce("dm", "digits", model=Transformer, per_class=2, num_steps=20)
print(run.coreset, run.problem.model.num_parameters, "parameters")
posterior = pc.infer(run, "hmc", num_draws=10, num_burn=10)  # all parameters at once
print(posterior.draws.shape, posterior.predict(run.problem.dataset.test.x[:2]).probs.argmax(1))
