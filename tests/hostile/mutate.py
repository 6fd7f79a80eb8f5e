"""Changes of files that readers should survive: bytes, text, members of archives, values of JSON,
and tensors under a digest that is right.
"""

import gzip
import io
import json
import random
import zipfile
from typing import Any

import torch
from safetensors.torch import load, save

from pseudocore.store.coreset_file import _digest

NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
TOKENS = (
    *(
        b"nan",
        b"-inf",
        b"1e999",
        b"-1",
        b"0",
        b"9" * 5000,
        b"",
        b'"',
        b"\0",
        b"\xff\xfe",
        b"\x1b[2J",
    ),
    *(
        b"../../etc/passwd",
        b"a" * 4000,
        b"[" * 3000,
        b"{}",
        b"null",
        b"true",
        b"1_0",
        b"\r\n",
        b",",
    ),
)


def mutated(content: bytes, chance: random.Random, other: bytes) -> bytes:
    """One to four changes of a file's bytes; of what is inside, where it is an archive or a document."""
    if content[:2] == b"PK" and chance.random() < 0.6:
        return _in_archive(content, chance, other)
    if content[:2] == b"\x1f\x8b" and chance.random() < 0.5:
        return gzip.compress(mutated(gzip.decompress(content), chance, other), mtime=0)
    if content[:1] in (b"{", b"[") and chance.random() < 0.6:
        return _in_json(content, chance)
    if b"__metadata__" in content[:40] and chance.random() < 0.7:
        return _signed(content, chance)
    if content.isascii() and chance.random() < 0.7:
        return _in_text(content, chance)
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4))):
        _change(data, chance, other)
    return bytes(data)


def _change(data: bytearray, chance: random.Random, other: bytes) -> None:
    near_start = chance.random() < 0.5  # headers are where readers trust most
    place = chance.randrange(min(len(data), 400) if near_start else len(data)) if data else 0
    size = chance.choice((1, 2, 4, 8, 64))
    kind = chance.randrange(9)
    if kind == 0 and data:
        data[place] ^= 1 << chance.randrange(8)
    elif kind == 1:
        width, order = chance.choice((1, 2, 4, 8)), chance.choice(("little", "big"))
        value = chance.choice(NUMBERS) % 2 ** (8 * width)
        data[place : place + width] = value.to_bytes(width, order)  # type: ignore[arg-type]
    elif kind == 2:
        del data[place : place + size]
    elif kind == 3:
        data[place:place] = chance.randbytes(size)
    elif kind == 4:
        del data[place:]
    elif kind == 5:
        data[place:place] = data[place : place + size] * chance.choice((1, 2, 100))
    elif kind == 6:
        start = chance.randrange(len(other) or 1)
        data[place : place + size] = other[start : start + size]
    elif kind == 7:
        data[place : place + chance.choice((0, size))] = chance.choice(TOKENS)
    else:
        data[place : place + size] = bytes(chance.choice((0, 255)) for _ in range(size))


def _in_archive(content: bytes, chance: random.Random, other: bytes) -> bytes:
    """The same archive with one member changed, and its checksums right."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = chance.choice(sorted(members))
    change = chance.randrange(8)
    if change == 0:
        members[chance.choice(("../x", "a/b", "train_x.npy", name * 2))] = members.pop(name)
    elif change == 1:
        del members[name]
    else:
        members[name] = mutated(members[name], chance, other)
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return written.getvalue()


def _in_text(content: bytes, chance: random.Random) -> bytes:
    """A text with a word, a character or a line changed, and still a text."""
    text = content.decode()
    for _ in range(chance.choice((1, 1, 2))):
        place, size = chance.randrange(len(text) + 1), chance.choice((0, 1, 3, 20))
        token = chance.choice(TOKENS).decode("latin1")
        kind = chance.randrange(4)
        if kind == 0:
            text = text[:place] + token + text[place + size :]
        elif kind == 1:
            words = text.split(" ")
            words[chance.randrange(len(words))] = token
            text = " ".join(words)
        elif kind == 2:
            lines = text.split("\n")
            lines.insert(chance.randrange(len(lines)), chance.choice(lines))
            text = "\n".join(lines)
        else:
            text = text[:place] + chr(chance.choice((9, 10, 34, 44, 61, 91, 0x202E))) + text[place:]
    return text.encode("utf-8", "surrogateescape")


ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**9, 10**400, 1e308, "NaN", "", "x" * 5000, "\x1b[2J", "../..", [], {}),
    *([None], [[1]], {"a": None}, [1.5] * 50, "2026-13-45", "os:abort"),
)


def _in_json(content: bytes, chance: random.Random) -> bytes:
    """A document with one value replaced, removed or wrapped."""
    document = json.loads(content)
    for _ in range(chance.choice((1, 1, 3))):
        at: Any = document
        while isinstance(at, dict | list) and at:
            key: Any = (
                chance.choice(sorted(at)) if isinstance(at, dict) else chance.randrange(len(at))
            )
            if not isinstance(at[key], dict | list) or not at[key] or chance.random() < 0.3:
                kind = chance.randrange(4)
                if kind == 0:
                    del at[key]
                else:
                    at[key] = [at[key]] if kind == 1 else chance.choice(ODD)
                break
            at = at[key]
    return json.dumps(document).encode()


def _signed(content: bytes, chance: random.Random) -> bytes:
    """A file of ours with other tensors or metadata, under a digest that is right."""
    length = int.from_bytes(content[:8], "little")
    record = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["pseudocore"])
    record.pop("digest")
    tensors = load(content)
    name = chance.choice(sorted(tensors))
    value, kind = tensors[name], chance.randrange(8)
    if kind == 0:
        record = json.loads(_in_json(json.dumps(record).encode(), chance))
    elif kind == 1:
        del tensors[name]
    elif kind == 2:
        tensors[name] = value[:0]
    elif kind == 3:
        types = (torch.uint8, torch.int64, torch.float16, torch.bool, torch.float64, torch.int8)
        tensors[name] = value.to(chance.choice(types))
    elif kind == 4:
        tensors[name] = value.unsqueeze(chance.randrange(value.ndim + 1)).contiguous()
    elif kind == 5 and value.numel():
        odd = chance.choice((-1, 255, 2**40, float("nan"), float("inf"), -0.5))
        flat = value.clone().double().reshape(-1)
        flat[chance.randrange(len(flat))] = odd
        tensors[name] = flat.nan_to_num(9e9).reshape(value.shape).to(value.dtype)
        if value.is_floating_point():
            tensors[name] = flat.reshape(value.shape).to(value.dtype)
    elif kind == 6:
        tensors[name] = torch.cat([value, value])
    else:
        tensors["indices" if chance.random() < 0.5 else "x" * 300] = value.clone()
    try:
        record["digest"] = _digest(tensors, record)
        return save(tensors, metadata={"pseudocore": json.dumps(record)})
    except (TypeError, ValueError, AttributeError):  # no file at all
        return content[: length // 2]
