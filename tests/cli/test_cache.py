"""`pseudocore cache` lists and removes what runs have kept."""

import json
from collections.abc import Callable
from typing import Any

import torch

from pseudocore.store.cache import CacheFolder

Done = Callable[[str], Any]
Refused = Callable[..., str]


def test_info_and_clear(done: Done, refused: Refused, monkeypatch: Any) -> None:
    monkeypatch.setenv("PSEUDOCORE_CACHE", "kept")
    assert done("cache info").out == "kept: 0.0 MiB of 10,240.0 MiB\n"
    for seed in (1, 2):
        CacheFolder().save({"kind": "network", "seed": seed}, {"theta": torch.zeros(2**18)})
    first, second = done("cache info").out.splitlines()
    assert first == "kept: 2.0 MiB of 10,240.0 MiB"
    assert second.split()[:4] == ["network", "2", "2.0", "MiB"]
    found = json.loads(done("cache info --json").out)
    assert found["kinds"]["network"]["entries"] == 2
    assert found["bytes"] == found["kinds"]["network"]["bytes"]
    assert done("cache clear --obsolete").out.startswith("removed 0 entries")
    assert done("cache clear --older-than 1").out.startswith("removed 0 entries")
    assert done("cache clear").out == "removed 2 entries, 2.0 MiB\n"
    refused("cache clear --older-than -1", "--older-than")
    monkeypatch.setenv("PSEUDOCORE_CACHE_LIMIT", "much")
    refused("cache info", "'much' is not a number of GiB (PSEUDOCORE_CACHE_LIMIT)")
