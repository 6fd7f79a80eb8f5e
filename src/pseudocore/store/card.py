"""The card of a coreset on the Hugging Face Hub: metadata for its search, and a page for people.

Metadata are YAML, of which JSON is a part. Nothing of the coreset's provenance, which may be
anyone's, can leave its place on the page: backticks and line ends are taken out.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import methods
from pseudocore.core.types import Coreset
from pseudocore.store.files import encode_json

_SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}


def check_license(name: str) -> None:
    """Refuse what cannot be an identifier in the Hub's list of licences."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", name):
        message = f"license = {name!r} must be an identifier such as 'cc-by-4.0', or 'unknown'"
        raise ConfigError(message, code="invalid-options", option="license")


def dataset_card(coreset: Coreset, repository: str, license: str) -> str:
    """The card: what the points stand for, how they were made, how faithful they are."""
    about = coreset.provenance
    method, data = _word(about.get("method", "unknown")), _data(coreset)
    kind = "image" if coreset.x.ndim == 4 else "tabular"
    size = next((text for most, text in _SIZES.items() if len(coreset) < most), "n>1M")
    metadata = {
        "license": license,
        "pretty_name": f"{data} by {method}",
        "tags": sorted({"coreset", "dataset-distillation", "pseudocore", method}),
        "task_categories": [f"{kind}-classification"],
        "size_categories": [size],
        "configs": [{"config_name": "default", "data_files": "data/train.parquet"}],
    }
    sections = [
        "---\n"
        + "".join(f"{key}: {json.dumps(value)}\n" for key, value in metadata.items())
        + "---",
        f"# {data} by {method}",
        f"{len(coreset)} weighted points that stand for {_counted(coreset)} of {data}, made by"
        f" `{method}`{_paper(method)} with pseudocore.",
        "```python\nimport pseudocore\n\n"
        f'coreset = pseudocore.Coreset.from_hub("{repository}")\n'
        "posterior = pseudocore.infer(coreset)  # log-probabilities: posterior(x)\n```",
        "## Points\n\n" + _table(_points(coreset)),
        "## Method\n\n" + _table({"method": method, **_mapping(about.get("options"))}),
        "## Setup\n\n" + _table({"seed": about.get("seed"), **_mapping(about.get("setup"))}),
        "## Fidelity\n\n" + _fidelity(about.get("fidelity")),
        "## License\n\n" + _license(coreset, license),
        "## Provenance\n\n```json\n" + _quoted(encode_json(about, indent=2)) + "\n```",
    ]
    return "\n\n".join(sections) + "\n"


def _data(coreset: Coreset) -> str:
    if coreset.contract is not None:
        return _word(coreset.contract.data.name)
    return _word(_mapping(coreset.provenance.get("setup")).get("data", "unknown data"))


def _counted(coreset: Coreset) -> str:
    contract = coreset.contract
    return (
        "the training examples" if contract is None else f"the {contract.data.num_train} examples"
    )


def _paper(method: str) -> str:
    paper = methods[method].paper if method in methods.names() else ""
    return f" ({paper})" if paper else ""


def _points(coreset: Coreset) -> dict[str, Any]:
    kind = "class probabilities (`p_NAME`)" if coreset.is_soft else "one class each"
    return {
        "points": len(coreset),
        "shape": "x".join(map(str, coreset.x.shape[1:])),
        "classes": ", ".join(coreset.class_names) or coreset.num_classes,
        "labels": "numbers" if coreset.task == "regression" else kind,
        "sum of weights": float(coreset.weight.sum()),
        "are": "training examples" if coreset.indices is not None else "learned",
    }


def _fidelity(measured: Any) -> str:
    """Distance to inference on all the data, as `pseudocore fidelity` keeps it."""
    if not isinstance(measured, Mapping):
        return "Not measured. `pseudocore fidelity RUN` compares it with inference on all the data."
    return "Distance to inference on all the data, beside its floor.\n\n" + _table(measured)


def _license(coreset: Coreset, license: str) -> str:
    copies = " The points are copies of training examples." if coreset.indices is not None else ""
    return f"`{license}`.{copies} The licence of the data they were made from applies to them."


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _table(values: Mapping[str, Any]) -> str:
    rows = [f"| {_word(name)} | {_word(_shown(value))} |" for name, value in values.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else encode_json(value)


def _word(value: Any) -> str:
    """Text that stays within its line and its cell, and is no markup."""
    return re.sub(r"[\s`|<>\[\]]+", " ", str(value)).strip()[:300]


def _quoted(text: str) -> str:
    return text.replace("`", "'")
