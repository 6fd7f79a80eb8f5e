r"""Classification losses per example, of logits $z$ and label $y$, for experts and as energies.

| `Loss` | with $p = \operatorname{softmax}(z)$ and $k$ classes |
|---|---|
| `cross-entropy` | $-\log p_y$ |
| `focal` | $-(1 - p_y)^2 \log p_y$ (Lin et al. 2017, $\gamma = 2$) |
| `multi-margin` | $\tfrac1k \sum_{j \ne y} \max(0,\, 1 - z_y + z_j)$ (Crammer & Singer 2001) |

Under soft labels each is its mean over the label's distribution.
"""

from typing import Literal

from torch import Tensor

from pseudocore.core.problem import label_log_likelihood

Loss = Literal["cross-entropy", "focal", "multi-margin"]

FOCUS = 2
"""The exponent γ of the focal loss; 0 would be the cross-entropy."""


def per_example(kind: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """Losses (..., n) of logits (..., n, classes) at labels (n,) or (..., n), or soft labels (n,
    classes).
    """
    if kind == "multi-margin":
        return _multi_margin(logits, y)
    log_probs = logits.log_softmax(-1)
    if kind == "cross-entropy":
        return -label_log_likelihood(log_probs, y)
    miss = -log_probs.expm1()  # 1 − p, exact where p is near 1
    return -label_log_likelihood(miss**FOCUS * log_probs, y)


def _multi_margin(logits: Tensor, y: Tensor) -> Tensor:
    if y.is_floating_point():
        # z_other − z_label, (..., n, label, other)
        pairs = logits.unsqueeze(-2) - logits.unsqueeze(-1)
        violation = (1 + pairs).relu().sum(-1) - 1  # without the label's own term, which is 1
        return (y * violation).sum(-1) / logits.shape[-1]
    own = label_log_likelihood(logits, y).unsqueeze(-1)
    return ((1 + (logits - own)).relu().sum(-1) - 1) / logits.shape[-1]
