"""Files of strangers: what they announce costs no more than their bytes, and errors do not quote all of them."""

from __future__ import annotations

import io
import json
import resource
import struct
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import resilin
from resilin import checkpoint
from resilin._base import json_text, toml_text
from resilin.checkpoint import manifest
from resilin.checkpoint.tools.states import open_state
from resilin.core import serialize
from resilin.core.state.copying import are_booleans
from resilin.errors import CheckpointError, UsageError

MOST_TOLD = 1500  # letters of an error
MOST_S = 20.0  # of the processor, for what takes milliseconds
HUGE_NAME = "n" * (2 << 20)


@contextmanager
def cheap() -> Iterator[None]:
    """Little time, and no more memory than 512 MiB beside what is there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (512 << 20), hard))
    start = time.process_time()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert time.process_time() - start < MOST_S


def refused(read: Callable[[], Any], *kinds: type[Exception]) -> str:
    with cheap(), pytest.raises(kinds or (UsageError, CheckpointError)) as caught:
        read()
    assert len(str(caught.value)) < MOST_TOLD
    return str(caught.value)


def saved(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return serialize._MAGIC + len(text).to_bytes(8, "little") + text + body


def entry(**more: Any) -> dict[str, Any]:
    return {"dtype": "uint8", "shape": [64], "strides": [1], "offset": 0, "block": 0, "device": "cpu",
            "kind": "tensor", "grad": False} | more  # fmt: skip


def tensors(*entries: Any) -> bytes:
    return saved({"tensors": list(entries), "tree": None, "blocks": [{"start": 0, "stop": 64}]}, bytes(64))


def nested(open_: str, close: str, depth: int = 100_000) -> bytes:
    return (open_ * depth + close * depth).encode()


def tree(value: Any) -> bytes:
    return saved({"tensors": [], "tree": value, "blocks": []})


COLLIDING = [[{"$": "int", "v": hex(number * ((1 << 61) - 1))}, 0] for number in range(1, 40_000)]


@pytest.mark.parametrize(
    "data",
    {
        "nested": saved(nested("[", "]")),
        "nested objects": saved(nested('{"a":', "}")),
        "nested in reach of the reader": saved(b'{"tensors":[],"blocks":[],"tree":' + nested("[", "]", 900) + b"}"),
        "unknown kind": tree({"$": HUGE_NAME, "v": 0}),
        "no such dtype": tree({"$": "dtype", "v": HUGE_NAME}),
        "no such device": tree({"$": "device", "v": HUGE_NAME}),
        "a huge integer": tree({"$": "int", "v": "z" * (1 << 20)}),
        "colliding keys": tree({"$": "dict", "v": COLLIDING}),
        "colliding keys in order": tree({"$": "ordered", "v": COLLIDING}),
        "colliding members": tree({"$": "set", "v": [key for key, _ in COLLIDING]}),
        "dtype of a tensor": tensors(entry(dtype=HUGE_NAME)),
        "shape beyond the block": tensors(entry(shape=[65])),
        "strides beyond the block": tensors(entry(shape=[2], strides=[64])),
        "strides before the block": tensors(entry(shape=[2], strides=[-1])),
        "offset beyond the block": tensors(entry(shape=[1], offset=64)),
        "negative shape": tensors(entry(shape=[-1, -1], strides=[1, 1])),
        "many dimensions": tensors(entry(shape=[1] * 4000, strides=[1] * 4000)),
        "a text as shape": tensors(entry(shape=HUGE_NAME)),
        "a header that is not there": serialize._MAGIC + (1 << 30).to_bytes(8, "little"),
    }.items(),
    ids=lambda pair: pair[0],
)
def test_files_of_save_that_announce_more_than_they_hold_are_refused(data: tuple[str, bytes]) -> None:
    refused(lambda: resilin.load(io.BytesIO(data[1])))


def test_booleans_that_lie_upon_one_another_are_looked_at_once() -> None:
    data = tensors(entry(dtype="bool", shape=[32, 1 << 20, 32], strides=[1, 0, 1]), entry())
    with cheap():
        resilin.load(io.BytesIO(data))
    memory = np.zeros(1 << 16, np.uint8)
    view = np.lib.stride_tricks.as_strided(memory.view(np.bool_), (1 << 15, 1 << 15), (1, 1))
    with cheap():
        assert are_booleans(view)
        assert are_booleans(view[::-1])
        memory[40_000] = 2
        assert not are_booleans(view)
        assert not are_booleans(view[:, ::-1])


def safetensors(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def one(**more: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | more}


@pytest.mark.parametrize(
    "data",
    {
        "nested": safetensors(nested('{"a":', "}")),
        "nested within": safetensors(b'{"a":' + nested("[", "]", 500) + b"}"),
        "name": safetensors({HUGE_NAME: 1}),
        "name and shape": safetensors({HUGE_NAME: {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 8]}}),
        "dtype": safetensors(one(dtype=HUGE_NAME)),
        "shape beyond the bytes": safetensors(one(shape=[3]), bytes(8)),
        "offsets beyond the file": safetensors(one(data_offsets=[0, 1 << 40], shape=[1 << 38])),
        "a header that is not there": struct.pack("<Q", 1 << 26) + b"{",
        "no JSON": safetensors(b"{" + b"x" * (2 << 20)),
    }.items(),
    ids=lambda pair: pair[0],
)
def test_safetensors_files_that_announce_more_than_they_hold_are_refused(
    tmp_path: Path, data: tuple[str, bytes]
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data[1])
    refused(lambda: checkpoint.load_safetensors(path))


def test_an_index_of_safetensors_files_that_is_nested_or_long_winded_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    for text in (nested("[", "]"), json.dumps({"weight_map": {"a": "../" + HUGE_NAME}}).encode()):
        path.write_bytes(text)
        refused(lambda: checkpoint.load_safetensors(tmp_path))


def sealed(body: bytes) -> bytes:
    return body + b'"' + manifest.hash_of(body).encode() + b'"]\n'


def test_manifests_that_are_nested_or_long_winded_are_refused() -> None:
    head = json.dumps({"format": manifest._FORMAT, "version": manifest._VERSION, "id": "0" * 32, "serial": 0,
                       "step": None, "world_size": 1, "block_bytes": 1 << 20})  # fmt: skip
    for body in (
        nested("[", "]"),
        json.dumps({HUGE_NAME: 0}).encode(),
        json.dumps({"tree": 0, "files": [], "tensors": [[HUGE_NAME, "float32", [-1]]]}).encode(),
        json.dumps({"tree": 0, "files": [], "tensors": [["a", HUGE_NAME, [1]]]}).encode(),
        json.dumps({"tree": 0, "tensors": [], "files": [{"name": HUGE_NAME}]}).encode(),
    ):
        text = sealed(f"[{head},\n".encode() + body + b",\n")
        refused(lambda text=text: manifest.parse(text, "m"))  # type: ignore[misc]


def test_a_torch_file_that_announces_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/data.pkl", b"\x80\x02X" + struct.pack("<I", 1 << 31) + b"abc.")
    refused(lambda: checkpoint.import_torch(path))
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/data.pkl", b"\x80\x02c" + b"m" * 1000 + b"\n" + b"n" * 1000 + b"\n.")
    refused(lambda: checkpoint.import_torch(path))


@pytest.mark.parametrize("text", [nested("[", "]"), nested('{"a":', "}"), b"[" * 70 + b"]" * 70, b"[" * (1 << 20)])
def test_json_of_any_depth_is_a_value_error(text: bytes) -> None:
    refused(lambda: json_text.parse(text), ValueError)
    assert json_text.parse(b"[" * 60 + b"]" * 60)


@pytest.mark.parametrize(
    "text",
    [
        b"a = " + nested("[", "]", 50_000),
        b"a = " + b"{b = " * 5000 + b"1" + b"}" * 5000,
        b".".join([b"a"] * 50_000) + b" = 1",
        b"[" + b".".join([b"a"] * 50_000) + b"]",
        b".".join([b"'a'", b'"b"', b"c-1"] * 10_000) + b" = 1",
        b"a." * 20 + b"b = 1",
        b"a = " + b"9" * 100_000,
        b"a = \xff",
        b"x" * (1 << 20),
        b'"' + b"k" * (1 << 19) + b'" = ' + b"]" * 1000,
    ],
    ids=lambda text: text[:8].hex(),
)
def test_toml_of_any_depth_is_a_value_error(text: bytes) -> None:
    refused(lambda: toml_text.parse(text), ValueError)


def test_toml_with_many_dots_that_nest_nothing_is_read() -> None:
    text = "a.b.c = [" + ", ".join(["1.5"] * 500) + ']\nd = "' + "https://a.b.c/d.e " * 50 + '"\n'
    assert toml_text.parse(text.encode())["a"]["b"]["c"] == [1.5] * 500


def test_a_torch_file_of_lists_that_hold_one_another_again_and_again_is_no_work_without_end(tmp_path):
    """Few bytes with 2^38 places."""
    body = b"\x80\x02]q\x000"
    for number in range(1, 40):
        held = b"h" + bytes([number - 1])
        body += b"](" + held + held + b"eq" + bytes([number]) + b"0"
    with zipfile.ZipFile(tmp_path / "d.pt", "w") as file:
        for name, data in (("data.pkl", body + b"h\x27."), ("version", "3"), ("byteorder", "little")):
            file.writestr(f"archive/{name}", data)
    state = open_state(tmp_path / "d.pt")
    with pytest.raises(UsageError, match=r"d\.pt has 40 lists, tuples and dicts that hold one another"):
        state.named()
