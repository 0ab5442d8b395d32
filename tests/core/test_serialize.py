"""save and load: round trips, and files that are wrong in every way."""

import collections
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resilin
from resilin.core import serialize
from resilin.errors import UsageError

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(PLAIN)
def test_plain_values_come_back_equal(value):
    assert serialize.loads(serialize.dumps(value)) == value


@pytest.mark.parametrize("name", ["bool", "uint8", "int16", "int64", "float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_come_back_with_their_bits(name, shape):
    tensor = (resilin.rand(shape) * 3).to(getattr(resilin, name))
    back = serialize.loads(serialize.dumps({"x": tensor}))["x"]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert back.numpy().tobytes() == tensor.numpy().tobytes()


def test_a_state_dict_comes_back_in_order_with_parameters_and_shared_tensors(tmp_path):
    shared = resilin.ones(3)
    state = collections.OrderedDict(w=resilin.core.tensor.Parameter(resilin.randn(2, 2)), a=shared, b=shared)
    resilin.save({"model": state, "step": 3, "lr": (0.1, float("inf"))}, tmp_path / "x.res")
    back = resilin.load(tmp_path / "x.res")
    assert list(back["model"]) == ["w", "a", "b"]
    assert type(back["model"]["w"]) is resilin.core.tensor.Parameter
    assert back["model"]["w"].requires_grad
    assert back["model"]["a"] is back["model"]["b"]
    assert back["lr"] == (0.1, float("inf"))
    assert [p.name for p in tmp_path.iterdir()] == ["x.res"]


def test_devices_are_kept_or_mapped():
    data = serialize.dumps(resilin.ones(2, device="sim:1"))
    assert str(serialize.loads(data).device) == "sim:1"
    assert str(serialize.loads(data, map_location="cpu").device) == "cpu"
    assert str(serialize.loads(data, map_location={"sim:1": "sim:3"}).device) == "sim:3"


def test_an_object_that_cannot_be_saved_is_named_and_leaves_no_file(tmp_path):
    with pytest.raises(UsageError, match=r"\['a'\]\[1\] is a object"):
        resilin.save({"a": [1, object()]}, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def _file(entry=None, body=bytes(16), tree=None):
    good = {"dtype": "float32", "shape": [4], "start": 0, "stop": 16, "device": "cpu", "grad": False, "kind": "tensor"}
    header = json.dumps({"tree": tree or {"$": "tensor", "v": 0}, "tensors": [good | (entry or {})]}).encode()
    return b"RESILIN1" + len(header).to_bytes(8, "little") + header + body


def test_the_hand_made_file_is_good():
    np.testing.assert_array_equal(serialize.loads(_file()).numpy(), 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "was not written by"),
        (b"PK\x03\x04 zip", "PyTorch"),
        (b"RESILIN1" + (1 << 40).to_bytes(8, "little"), "announces a header"),
        (b"RESILIN1" + (5).to_bytes(8, "little") + b"{nope", "header"),
        (_file({"start": 4, "stop": 20}), "impossible offsets"),
        (_file({"shape": [5]}), "impossible offsets"),
        (_file({"shape": [-2, -2]}), "impossible offsets"),
        (_file({"dtype": "object"}), "entry of tensor 0"),
        (_file(body=bytes(8)), "cut short"),
        (_file(body=bytes(20)), "belong to no tensor"),
        (_file(tree={"$": "pickle", "v": 0}), "tree"),
        (_file(tree={"$": "tensor", "v": 7}), "tree"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(data, message):
    with pytest.raises(UsageError, match=message):
        serialize.loads(data)
