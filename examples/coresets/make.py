"""Ready-made coresets of the data in the package, each with a card: python examples/coresets/make.py

Takes about ten minutes on two CPU cores. Needs no network and no other data.
"""

from pathlib import Path
from typing import Any

import pseudocore as pc
from pseudocore.store.card import dataset_card

HERE = Path(__file__).parent
LICENCES = {"digits": "cc-by-4.0", "logistic": "apache-2.0", "moons": "apache-2.0"}
IMAGES: dict[str, Any] = {"model": pc.models.ConvNetWide(width=32)}
CORESETS: dict[str, tuple[Any, str, dict[str, Any], Any]] = {
    "digits-vbpc-1": (
        pc.methods.VBPC(per_class=1, num_steps=400, batch_size=128), "digits", IMAGES,
        pc.inference.LastLayerVI(num_steps=200),
    ),
    "digits-vbpc-5": (
        pc.methods.VBPC(per_class=5, num_steps=400, batch_size=128), "digits", IMAGES,
        pc.inference.LastLayerVI(num_steps=200),
    ),
    "digits-bpc-pcd-5-linear": (
        pc.methods.BPCPersistentChains(per_class=5), "digits", {"model": "linear"}, pc.inference.HMC(),
    ),
    "logistic-psvi-5": (
        pc.methods.PSVI(per_class=5, num_steps=500), "logistic", {"model": "linear"},
        pc.inference.HMC(),
    ),
    "moons-bpc-pcd-5": (
        pc.methods.BPCPersistentChains(per_class=5), "moons", {"model": pc.models.MLP(width=32, depth=1)},
        pc.inference.HMC(),
    ),
}  # fmt: skip


def main() -> None:
    for name, (method, data, setup, inference) in CORESETS.items():
        run = pc.reduce(method, data, **setup)
        gap = pc.fidelity(run, inference=inference, seeds=3)
        coreset = run.coreset.with_provenance(fidelity=gap.summary())
        coreset.save(HERE / f"{name}.safetensors")
        card = dataset_card(coreset, name, LICENCES[data])
        card = card.replace(
            f'pseudocore.Coreset.from_hub("{name}")', f'pseudocore.load("{name}.safetensors")'
        )
        (HERE / f"{name}.md").write_text(card[card.index("# ") :], encoding="utf-8")
        print(name, gap.table(), sep="\n")


if __name__ == "__main__":
    main()
