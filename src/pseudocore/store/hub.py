"""A coreset on the Hugging Face Hub: a data set repository of three files.

`coreset.safetensors` is the coreset itself, digest included; `data/train.parquet` shows it to other
programs and to the Hub's viewer; `README.md` is the data set card. Reading takes the first alone:
nothing in a repository is executed.
"""

import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.optional import optional_module
from pseudocore.core.types import Coreset
from pseudocore.store.card import check_license, dataset_card
from pseudocore.store.coreset_file import CORESET_FILE, load_coreset, save_coreset
from pseudocore.store.export import to_hf

PARQUET_FILE = "data/train.parquet"
CARD_FILE = "README.md"


def push(
    coreset: Coreset,
    repository: str,
    *,
    license: str = "unknown",
    private: bool | None = None,
    token: str | None = None,
    message: str = "Upload a coreset",
    endpoint: str | None = None,
) -> str:
    """Write a coreset into a data set repository, made if there is none; its address.

    File names and paths in the setup are cut to their last part.

    Args:
        coreset: The coreset.
        repository: OWNER/NAME.
        license: Identifier of the licence of the points, as the Hub lists them ("cc-by-4.0"). A
            selected point is a copy of a training example, under the licence of its data.
        private: Whether a repository that is made is private. Defaults to the owner's setting.
        token: Defaults to that of `hf auth login`.
        message: Of the commit.
        endpoint: Address of the Hub. Defaults to HF_ENDPOINT, else huggingface.co.
    """
    check_license(license)
    hub = optional_module("huggingface_hub", "huggingface_hub", "huggingface")
    published = _without_paths(coreset)
    with tempfile.TemporaryDirectory() as folder, _hub_errors(repository, "write to"):
        save_coreset(file := Path(folder) / CORESET_FILE, published)
        api = hub.HfApi(endpoint=endpoint, token=token)
        made = api.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        card = dataset_card(published, made.repo_id, license)
        contents = {
            CORESET_FILE: file.read_bytes(),
            PARQUET_FILE: _parquet(published),
            CARD_FILE: card.encode(),
        }
        operations = [
            hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=data)
            for name, data in contents.items()
        ]
        api.create_commit(made.repo_id, operations, commit_message=message, repo_type="dataset")
    return str(made)


def pull(
    repository: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
) -> Coreset:
    """Read the coreset of a data set repository, from the library's cache if it is unchanged.

    Args:
        repository: OWNER/NAME.
        revision: A branch, tag or commit. Defaults to the main branch.
        token: Defaults to that of `hf auth login`.
        endpoint: Address of the Hub. Defaults to HF_ENDPOINT, else huggingface.co.
    """
    hub = optional_module("huggingface_hub", "huggingface_hub", "huggingface")
    with _hub_errors(repository, "read"):
        path = hub.hf_hub_download(
            repository,
            CORESET_FILE,
            repo_type="dataset",
            revision=revision,
            token=token,
            endpoint=endpoint,
        )
    return load_coreset(path)


def _parquet(coreset: Coreset) -> bytes:
    """The table of `to_hf`; its own way to Parquet draws a progress bar."""
    parquet = optional_module("pyarrow.parquet", "pyarrow", "huggingface")
    rows, buffer = to_hf(coreset), io.BytesIO()
    parquet.write_table(rows.data.table.cast(rows.features.arrow_schema), buffer)
    return buffer.getvalue()


def _without_paths(coreset: Coreset) -> Coreset:
    """The folders of a machine are nobody else's business."""

    def cut(value: Any) -> Any:
        is_path = isinstance(value, str) and PurePath(value).name not in ("", value)
        return PurePath(value).name if is_path and "://" not in value else value

    setup = coreset.provenance.get("setup")
    if not isinstance(setup, dict):
        return coreset
    shown = {name: cut(value) for name, value in setup.items()}
    return replace(coreset, provenance={**coreset.provenance, "setup": shown})


@contextmanager
def _hub_errors(repository: str, doing: str) -> Iterator[None]:
    """Each failure of the library as one sentence."""
    kinds = optional_module("huggingface_hub.errors", "huggingface_hub", "huggingface")
    try:
        yield
    except kinds.HFValidationError as error:
        message = f"{repository!r} is no name of a repository; write OWNER/NAME"
        raise ConfigError(message, code="invalid-name", name=repository) from error
    except (OSError, ValueError, *kinds.HfHubHTTPError.__bases__) as error:
        answered = (kinds.RepositoryNotFoundError, kinds.RevisionNotFoundError)
        is_missing = isinstance(error, (*answered, kinds.EntryNotFoundError))
        if is_missing and not isinstance(error, kinds.LocalEntryNotFoundError):
            what = "is not on the Hub, holds no coreset, or is private and needs a token"
            message = f"{repository} {what}"
            raise DataError(message, code="not-on-hub", name=repository) from error
        reason = next(filter(None, str(error).splitlines()), type(error).__name__)
        message = f"cannot {doing} {repository} on the Hugging Face Hub ({reason})"
        raise DataError(message, code="unreachable-hub", name=repository) from error
