"""Files that random damage has made, with right hashes: they load, or are refused with an error that says so."""

import copy
import json
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest

import resilin
from resilin import checkpoint
from resilin.checkpoint import load_safetensors, save_safetensors
from resilin.checkpoint.manifest import hash_of
from resilin.core.device import device
from resilin.errors import CheckpointError, CorruptFile, UsageError

FIXTURES = Path(__file__).parents[1] / "fixtures" / "torch_files"
TORCH_FILES = sorted(path for path in FIXTURES.glob("*.pt") if "unchecked" not in path.name)  # which zipfile refuses
VALUES = [
    *(None, True, 0, 1, -1, 1 << 31, 1 << 62, 1 << 63, 10**30, 1.5, "", "x", "../x", "float32", "object", "f" * 64),
    *([], {}, [1], [0, 1 << 63], ["0", "1"], {"$": []}, {"$": None}, {"$": "tuple"}, "F4", "F8_E5M2", "BF16", "C64"),
    *({"$": kind, "v": value} for kind, value in (
        ("tensor", 99), ("tensor", True), ("tuple", 5), ("int", "zz"), ("int", "0x" + "f" * 10_000), ("device", 4),
        ("scalar", ["float32", ""]), ("dict", [[[1], 2]]), ("set", [[1]]), ("size", "x"), ("counter", [[1, "x"]]),
        ("state", [[["a", 1]], 3]), ("complex", [1]), ("bytes", "%"), ("device", "cuda:99"), ("dtype", "object"),
    )),
]  # fmt: skip


def places(tree, path=()):
    """The paths of all that lies in lists and dicts."""
    for key in tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield (*path, key)
        yield from places(tree[key], (*path, key))


def damaged(tree, rng):
    """A copy of a JSON tree with one to three places changed, deleted or added."""
    tree = json.loads(json.dumps(tree))
    for _ in range(rng.choice([1, 1, 2, 3])):
        *path, key = rng.choice(list(places(tree)) or [(0,)])
        holder = tree
        for one in path:
            holder = holder[one]
        how = rng.random()
        if how < 0.75:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
        elif how < 0.85:
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(rng.choice(VALUES)))
        else:
            holder[str(copy.deepcopy(rng.choice(VALUES)))[:99]] = copy.deepcopy(rng.choice(VALUES))
    return tree


def outcome(ask, *, errors=CheckpointError):
    try:
        ask()
    except errors as error:
        return type(error).__name__ if str(error) else "nothing said"
    return "loads"


@pytest.mark.slow
def test_manifests(tmp_path):
    rng = random.Random(1)
    state = {
        "a": resilin.randn(30, 4), "f": resilin.ones(5).bool(), "c": resilin.ones(2, dtype=resilin.complex128),
        "n": [1, "x", (1, 2), {3: 4}], "o": np.int32(4), "s": {1, 2}, "b": b"x", "i": 1 << 200, "d": resilin.float32,
    }  # fmt: skip
    checkpoint.save(tmp_path, state)
    file = tmp_path / "manifest.json"
    head, body, _ = json.loads(file.read_text())
    seen = set()
    target = {"a": resilin.zeros(30, 4), "n": [0], "i": {}}
    for _ in range(400):
        made = damaged([head, body], rng)
        lines = ("[" + "".join(f"{json.dumps(part)},\n" for part in made)).encode()
        file.write_bytes(lines + f'"{hash_of(lines)}"]\n'.encode())
        seen.add(outcome(lambda: checkpoint.load(tmp_path)))
        seen.add(outcome(lambda: checkpoint.load(tmp_path, target, strict=False)))
        assert outcome(lambda: checkpoint.verify(tmp_path)) in ("loads", "CheckpointError", "CorruptFile")
        checkpoint.list_checkpoints(tmp_path)
    assert seen == {"loads", "CheckpointError", "CheckpointMismatch", "CorruptFile"}


@pytest.mark.slow
def test_headers_of_safetensors(tmp_path):
    rng = random.Random(2)
    file = tmp_path / "x.safetensors"
    tensors = {"a": resilin.ones(3, 4), "b": resilin.ones(5, dtype=resilin.bool), "c": resilin.ones(0, 3)}
    save_safetensors(tensors, file)
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    head, data = json.loads(data[8 : 8 + size]), data[8 + size :]
    seen = set()
    for _ in range(1000):
        text = bytearray(json.dumps(damaged(head, rng)).encode())
        if rng.random() < 0.2:
            text[rng.randrange(len(text))] = rng.randrange(256)
        length = rng.choice([*9 * [len(text)], 0, len(text) - 1, len(text) + 1, 1 << 63, 100_000_000])
        file.write_bytes(length.to_bytes(8, "little") + text + data[: rng.choice([*5 * [len(data)], 3])])
        for mmap in (False, True):
            seen.add(outcome(lambda mmap=mmap: load_safetensors(file, mmap=mmap), errors=(CorruptFile, UsageError)))
    assert seen - {"UsageError"} == {"loads", "CorruptFile"}


def cut_and_filled(data, rng):
    """Bytes of a pickle with a few overwritten, deleted, or repeated elsewhere, opcodes most of all."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        at = rng.randrange(len(data))
        how = rng.random()
        if how < 0.5:
            data[at] = rng.randrange(256)
        elif how < 0.65:
            del data[at : at + rng.randrange(1, 6)]
        elif how < 0.85:
            data[at:at] = bytes(rng.choice(b"()]}\x8fRbcQqh012.u}esat\x81\x93\x85\x86\x87NK\x01") for _ in range(2))
        else:
            start = rng.randrange(len(data))
            data[at:at] = data[start : start + 30]
    return bytes(data)


@pytest.mark.slow
def test_pickles_of_pytorch(tmp_path):
    rng = random.Random(3)
    file = tmp_path / "x.pt"
    seen = set()
    for _ in range(600):
        source = rng.choice(TORCH_FILES)
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as whole, zipfile.ZipFile(file, "w") as made:
                for name in whole.namelist():
                    data = whole.read(name)
                    made.writestr(name, cut_and_filled(data, rng) if name.endswith("data.pkl") else data)
        else:
            file.write_bytes(cut_and_filled(source.read_bytes(), rng))
        seen.add(outcome(lambda: checkpoint.import_torch(file), errors=(CorruptFile, UsageError)))
    assert seen == {"loads", "CorruptFile", "UnsafePickle", "UsageError"}


def test_a_device_that_this_machine_has_not_is_told(tmp_path):
    checkpoint.save(tmp_path, {"where": device("cpu")})
    file = tmp_path / "manifest.json"
    head, body, _ = json.loads(file.read_text())
    body["tree"]["where"]["v"] = "nowhere:0"
    lines = f"[{json.dumps(head)},\n{json.dumps(body)},\n".encode()
    file.write_bytes(lines + f'"{hash_of(lines)}"]\n'.encode())
    with pytest.raises(CheckpointError, match="nowhere"):
        checkpoint.load(tmp_path)
