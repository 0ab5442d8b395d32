"""Files of `save` that say what is not so: refused as a UsageError that says it, before memory is taken for it."""

import json
import tracemalloc

import pytest

import resilin
from resilin.core import serialize
from resilin.errors import UsageError


def file(header, body=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-(16 + len(text)) % 64)
    return b"RESILIN2" + (len(text) if length is None else length).to_bytes(8, "little") + text + body


def tensor(body=b"\0" * 4, tree=None, **changed):
    entry = {"dtype": "float32", "shape": [1], "strides": [4], "block": 0, "offset": 0, "device": "cpu"}
    entry |= {"grad": False, "kind": "tensor", **changed}
    tree = {"$": "tensor", "v": 0} if tree is None else tree
    return file({"tree": tree, "blocks": [{"start": 0, "stop": len(body)}], "tensors": [entry]}, body)


def refusal(data, **how):
    with pytest.raises(UsageError) as caught:
        serialize.loads(data, **how)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def test_the_helper_makes_a_file():
    assert serialize.loads(tensor()).tolist() == [0]


def test_a_header_that_is_announced_takes_no_memory():
    serialize.loads(tensor())
    tracemalloc.start()
    said = refusal(file(b"", length=1 << 30))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "the header of the file is damaged" in said
    assert peak < 4 << 20


@pytest.mark.parametrize("deep", [b'{"tree":' + b"[" * 100_000, b"[" * 100_000, b'{"a":' * 100_000])
def test_a_header_that_is_nested_too_deeply_says_so(deep):
    assert "nested too deeply" in refusal(file(deep))


@pytest.mark.parametrize("number", ["1e999", "-1e999", "Infinity", "NaN"])
@pytest.mark.parametrize("field", ["shape", "offset", "strides", "start"])
def test_infinite_numbers_are_no_lengths(field, number):
    text = tensor()[16:].split(b"\0")[0].decode().rstrip()
    entry = {"shape": '"shape": [', "strides": '"strides": [', "offset": '"offset": ', "start": '"start": '}[field]
    begin = text.index(entry) + len(entry)
    changed = f"{text[:begin]}{number}{text[begin + 1 :]}"
    assert "damaged" in refusal(file(changed.encode(), b"\0" * 4))


@pytest.mark.parametrize("name", ["nowhere", "sim:x", "sim:99", None, []])
def test_a_device_that_is_not_here_says_so(name):
    assert "the tree of the file is damaged" in refusal(
        tensor(tree=[{"$": "tensor", "v": 0}, {"$": "device", "v": name}])
    )


def test_booleans_are_true_or_false():
    said = refusal(tensor(b"\2", dtype="bool", strides=[1]))
    assert "is boolean and has bytes that are neither 0 nor 1" in said
    repeated = serialize.loads(tensor(b"\1", dtype="bool", shape=[1 << 40], strides=[0]))
    assert repeated[-1].item() is True


def test_a_repeated_element_becomes_no_large_copy():
    data = tensor(shape=[1 << 40], strides=[0])
    assert serialize.loads(data).shape == (1 << 40,)  # as it was saved: one element
    for changed, how in ((tensor(shape=[1 << 40], strides=[0], device="sim:0"), {}), (data, {"map_location": "sim:0"})):
        assert "repeats its elements: 4398046511104 bytes from a storage of 4" in refusal(changed, **how)
    small = serialize.loads(tensor(shape=[3], strides=[0]), map_location="sim:0")
    assert small.tolist() == [0, 0, 0]
    assert str(small.device) == "sim:0"
    assert resilin.equal(small.cpu(), resilin.zeros(3))
