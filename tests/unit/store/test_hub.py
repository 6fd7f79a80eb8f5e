"""Coresets on the Hugging Face Hub, played by a server on this machine: the library's own client
talks to it over HTTP.
"""

import base64
import hashlib
import io
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pandas as pd
import pyarrow.parquet
import pytest
import torch
import yaml
from huggingface_hub import constants

import pseudocore
from pseudocore import Coreset
from pseudocore.store.card import dataset_card
from pseudocore.store.coreset_file import CORESET_FILE

Fails = Callable[..., Any]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class StandIn(ThreadingHTTPServer):
    """Data set repositories in memory, with the Hub's addresses and answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.created: list[dict[str, Any]] = []
        self.tokens: set[str | None] = set()
        self.status = 200

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.tokens.add(self.headers["Authorization"])
        parts = urlsplit(self.path).path.strip("/").split("/")
        if self.server.status != 200:
            self._answer(self.server.status, {"error": "no"})
        elif parts == ["api", "validate-yaml"]:
            self._answer(200, {"errors": [], "warnings": []})
        elif parts == ["api", "repos", "create"]:
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            is_new = name not in self.server.repositories
            self.server.created.append(asked)
            self.server.repositories.setdefault(name, {})
            url = f"{self.server.address}/datasets/{name}"
            self._answer(200 if is_new else 409, {"url": url, "name": name})
        elif parts[4] == "preupload":
            files = json.loads(body)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
            ]
            self._answer(200, {"files": modes})
        else:
            assert parts[4] == "commit"
            name = "/".join(parts[2:4])
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    data = base64.b64decode(line["value"]["content"])
                    self.server.repositories[name][line["value"]["path"]] = data
            url = f"{self.server.address}/datasets/{name}/commit/{COMMIT}"
            self._answer(200, {"commitUrl": url, "commitOid": COMMIT})

    def do_HEAD(self) -> None:
        self._resolve(with_body=False)

    def do_GET(self) -> None:
        self._resolve(with_body=True)

    def _resolve(self, *, with_body: bool) -> None:
        parts = urlsplit(self.path).path.strip("/").split("/")
        name, file = "/".join(parts[1:3]), "/".join(parts[5:])
        if name not in self.server.repositories:
            self._answer(404, {}, {"X-Error-Code": "RepoNotFound"}, with_body)
        elif (data := self.server.repositories[name].get(file)) is None:
            self._answer(404, {}, {"X-Error-Code": "EntryNotFound"}, with_body)
        else:
            tag = hashlib.sha1(data).hexdigest()
            files = sorted(self.server.repositories[name].items())
            commit = hashlib.sha1(repr(files).encode()).hexdigest()
            self._answer(200, data, {"X-Repo-Commit": commit, "ETag": f'"{tag}"'}, with_body)

    def _answer(self, status: int, body: Any, headers: Any = None, with_body: bool = True) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if with_body:
            self.wfile.write(data)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StandIn]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    server = StandIn()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def made(method: str = "uniform", data: Any = "digits", **options: Any) -> Coreset:
    options = {"per_class": 1, "model": "linear", **options}
    return pseudocore.reduce(method, data, **options).coreset


def test_what_is_pushed_comes_back(hub: StandIn) -> None:
    coreset = made("vbpc", num_steps=2).with_provenance(fidelity={"fidelity_kl": 0.25})
    address = coreset.push_to_hub(
        "me/tiny", license="cc-by-4.0", private=True, token="hf_x", endpoint=hub.address
    )
    assert address == f"{hub.address}/datasets/me/tiny"
    assert hub.tokens == {"Bearer hf_x"}
    assert hub.created[0]["visibility"] == "private"
    assert sorted(hub.repositories["me/tiny"]) == [
        "README.md", "coreset.safetensors", "data/train.parquet"
    ]  # fmt: skip
    back = Coreset.from_hub("me/tiny", endpoint=hub.address)
    assert torch.equal(back.x, coreset.x)
    assert torch.equal(back.y, coreset.y)
    assert torch.equal(back.weight, coreset.weight)
    assert back.provenance == coreset.provenance
    assert pseudocore.infer(back)(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    coreset[:5].push_to_hub("me/tiny", endpoint=hub.address)  # into what there is
    assert len(Coreset.from_hub("me/tiny", endpoint=hub.address)) == 5


def test_the_table_has_probabilities_and_names(hub: StandIn) -> None:
    x, y = torch.randn(40, 3), ["no", "yes"] * 20
    coreset = made("uniform", (x.numpy(), y))
    coreset.push_to_hub("me/table", endpoint=hub.address)
    table = hub.repositories["me/table"]["data/train.parquet"]
    frame = pd.read_parquet(io.BytesIO(table))
    assert list(frame) == ["label", "weight", "p_no", "p_yes", "x0", "x1", "x2"]
    assert torch.equal(torch.tensor(frame[["x0", "x1", "x2"]].to_numpy()), coreset.x)
    stored = pyarrow.parquet.read_schema(io.BytesIO(table)).metadata[b"huggingface"]
    assert json.loads(stored)["info"]["features"]["label"]["names"] == ["no", "yes"]


def test_the_card_says_what_it_is_and_for_whom() -> None:
    coreset = made("vbpc", num_steps=2).with_provenance(fidelity={"fidelity_kl": 0.25})
    _, front, page = dataset_card(coreset, "me/tiny", "cc-by-4.0").split("---\n", 2)
    metadata = yaml.safe_load(front)
    assert metadata["license"] == "cc-by-4.0"
    assert metadata["tags"] == ["coreset", "dataset-distillation", "pseudocore", "vbpc"]
    assert metadata["size_categories"] == ["n<1K"]
    assert metadata["task_categories"] == ["image-classification"]
    for part in (
        'Coreset.from_hub("me/tiny")',
        "10 weighted points that stand for the 1437 examples of digits",
        "| sum of weights | 1437 |",
        "| num_steps | 2 |",
        "| fidelity_kl | 0.25 |",
        "`cc-by-4.0`",
        '"data_fingerprint"',
    ):
        assert part in page
    plain = dataset_card(made(), "me/tiny", "unknown")
    assert "Not measured." in plain
    assert "copies of training examples" in plain


def test_a_strangers_provenance_stays_in_its_cell() -> None:
    names = ("a | b\n# injected", "```\n<script>")
    coreset = made("uniform", pseudocore.dataset(torch.randn(9, 2), [0, 1, 0] * 3, name=names[1]))
    coreset = coreset.with_provenance(method=names[0], options={"x": names[0], names[1]: 1})
    card = dataset_card(coreset, "me/x", "unknown")
    assert "\n# injected" not in card
    assert "<script>" not in card.partition("## Provenance")[0]
    assert card.count("```") == 4
    front = yaml.safe_load(card.split("---\n")[1])
    assert "a b # injected" in front["tags"]


def test_folders_of_this_machine_are_not_published(hub: StandIn, tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": range(20), "y": [0, 1] * 10})
    frame.to_csv(path := tmp_path / "mine.csv", index=False)
    coreset = made("uniform", str(path), target="y")
    assert coreset.provenance["setup"]["data"] == str(path)
    coreset.push_to_hub("me/tiny", endpoint=hub.address)
    assert not any(str(tmp_path).encode() in f for f in hub.repositories["me/tiny"].values())
    back = Coreset.from_hub("me/tiny", endpoint=hub.address)
    assert back.provenance["setup"] == {**coreset.provenance["setup"], "data": "mine.csv"}


def test_what_the_hub_refuses_or_lacks_is_said(hub: StandIn, fails: Fails) -> None:
    with fails("not-on-hub", "me/nothing is not on the Hub"):
        Coreset.from_hub("me/nothing", endpoint=hub.address)
    hub.repositories["me/empty"] = {}
    with fails("not-on-hub", "me/empty", "holds no coreset"):
        Coreset.from_hub("me/empty", endpoint=hub.address)
    hub.repositories["me/bad"] = {CORESET_FILE: b"no safetensors"}
    with fails("not-a-coreset", "is no coreset file, or a damaged one"):
        Coreset.from_hub("me/bad", endpoint=hub.address)
    for call in (made().push_to_hub, Coreset.from_hub):
        with fails("invalid-name", "'a b/c' is no name of a repository; write OWNER/NAME"):
            call("a b/c", endpoint=hub.address)
    with fails("invalid-options", "license = 'CC BY' must be an identifier"):
        made().push_to_hub("me/x", license="CC BY", endpoint=hub.address)
    hub.status = 401
    with fails("unreachable-hub", "cannot write to me/x on the Hugging Face Hub (Client error"):
        made().push_to_hub("me/x", endpoint=hub.address)


def test_a_hub_that_cannot_be_reached_is_said(
    hub: StandIn, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # between the library's attempts
    gone = StandIn()
    gone.server_close()
    with fails("unreachable-hub", "cannot write to me/x on the Hugging Face Hub"):
        made().push_to_hub("me/x", endpoint=gone.address)
    with fails("unreachable-hub", "cannot read me/x on the Hugging Face Hub"):
        Coreset.from_hub("me/x", endpoint=gone.address)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, fails: Fails) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with fails("missing-package", 'pip install "pseudocore[huggingface]"'):
        Coreset.from_hub("me/x")
