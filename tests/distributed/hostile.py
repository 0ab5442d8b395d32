"""Pickles by hand, and what becomes of them at a receiver with weights_only=True."""

import pickle

import numpy as np
import pytest

from resilin.distributed.wire import object_codec
from resilin.errors import DistError

RECORD = np.dtype([("a", "i4"), (("t", "b"), "f8", (2,))], align=True)
NESTED = np.dtype([("x", RECORD, (2,)), ("y", ">U3")])


def load(data):
    return object_codec.load(data, weights_only=True)


def again(value, protocol=5):
    return load(pickle.dumps(value, protocol=protocol))


def refusal(data):
    with pytest.raises(DistError) as caught:
        load(data)
    said = str(caught.value)
    assert said.startswith("weights_only=True: the object that arrived")
    assert len(said) < 1000
    return said


def name(module, attribute):
    return b"c" + module.encode() + b"\n" + attribute.encode() + b"\n"


def plain(value):
    return pickle.dumps(value, protocol=2, fix_imports=False)[2:-1]


def call(module, attribute, *arguments):
    return name(module, attribute) + b"(" + b"".join(arguments) + b"tR"


def dtype(code="f4", state=(3, "<", None, None, None, -1, -1, 0)):
    made = call("numpy", "dtype", plain(code), plain(False), plain(True))
    return made if state is None else made + (state if isinstance(state, bytes) else plain(state)) + b"b"


def array(state):
    parts = name("numpy", "ndarray"), plain((0,)), b"C\x01b"
    return call("numpy._core.multiarray", "_reconstruct", *parts) + b"(" + b"".join(state) + b"tb"


def sent(*parts):
    return b"\x80\x04" + b"".join(parts) + b"."


FLOATS = dtype()
SHAPE = plain((2,))
BYTES8 = b"C\x08" + bytes(8)
