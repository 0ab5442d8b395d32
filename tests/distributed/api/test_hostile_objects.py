"""What a sender can do to a receiver of objects with weights_only=True: send values and tensors, or be refused."""

import pickle
import struct

import numpy as np
import pytest
from hostile import BYTES8, FLOATS, RECORD, SHAPE, again, array, call, dtype, name, plain, refusal, sent

PARAMETER = call(
    "resilin.core.public.methods",
    "_rebuild",
    name("resilin.core.tensor", "Parameter"),
    plain(np.zeros(2, "f4")),
    plain("cpu"),
    plain(False),
)


@pytest.mark.parametrize(
    ("data", "why"),
    {
        "call of a function": (sent(call("os", "system", plain("true"))), "holds os.system"),
        "call of numpy's load": (sent(call("numpy", "load", plain("x"))), "holds numpy.load"),
        "dotted names": (sent(b"\x8c\x05numpy\x8c\x14ndarray.__setstate__\x93"), "holds numpy.ndarray.__setstate__"),
        "a class": (sent(name("numpy", "ndarray")), "the function or class numpy.ndarray as a value"),
        "BUILD on a class": (
            sent(name("numpy", "ndarray"), plain({"shape": 1}), b"b"),
            "setting attributes of numpy.ndarray",
        ),
        "BUILD on a class of resilin": (
            sent(name("resilin.core.tensor", "Tensor"), plain({"sum": 1}), b"b"),
            "setting attributes of resilin.core.tensor.T",
        ),
        "BUILD with slots on a class": (
            sent(name("resilin.core.device", "device"), plain((None, {"cuda": 1})), b"b"),
            "setting attributes of resilin",
        ),
        "BUILD of a shared dtype": (
            sent(call("resilin.core.dtype", "by_name", plain("float32")), plain({"name": "x"}), b"b"),
            "attributes of a dtype",
        ),
        "BUILD of a shared device": (
            sent(call("resilin.core.device", "device", plain("cpu")), plain((None, {"type": 1})), b"b"),
            "attributes of a device",
        ),
        "BUILD of a tensor's insides": (
            sent(PARAMETER, plain({"_array": 1}), b"b"),
            "attributes of a Parameter",
        ),
        "BUILD of a tensor's class": (sent(PARAMETER, plain({"__class__": 1}), b"b"), "attributes of a Parameter"),
        "BUILD of a tensor's slots": (sent(PARAMETER, plain((None, {"_array": 1})), b"b"), "attributes of a Parameter"),
        "BUILD of an array twice": (
            sent(array([plain(1), SHAPE, FLOATS, plain(False), BYTES8]), plain((1,)), b"b"),
            "attributes of a ndarray",
        ),
        "BUILD of a dtype twice": (sent(FLOATS, plain((3,)), b"b"), "setting attributes of a Float32DType"),
        "BUILD of another dict": (sent(b"}", plain({"a": 1}), b"b"), "setting attributes of a dict"),
        "attributes of an OrderedDict": (
            sent(call("collections", "OrderedDict"), plain({"popitem": 1}), b"b"),
            "setting attributes of a OrderedDict",
        ),
        "an array without state": (
            sent(call("numpy._core.multiarray", "_reconstruct", name("numpy", "ndarray"), SHAPE, b"C\x01b")),
            "an object without its state",
        ),
        "a dtype without state": (sent(dtype(state=None)), "an object without its state"),
        "persistent ids": (sent(plain(1), b"Q"), "holds a persistent id"),
        "protocol 0": (sent(b"I1\n"), "pickle opcode 0x49"),
        "names of protocol 0": (sent(b"(ios\nsystem\n"), "pickle opcode 0x69"),
        "codes of copyreg": (sent(b"\x82\x01"), "pickle opcode 0x82"),
        "buffers out of band": (sent(b"\x97"), "pickle opcode 0x97"),
        "an unhashable key": (sent(b"}]Ns"), "a key that is a list"),
        "an unhashable member": (sent(b"\x8f(]\x90"), "a key that is a list"),
        "a set in a set": (sent(b"\x8f(\x8f\x90"), "a key that is a set"),
        "a tensor as a key": (sent(b"}", PARAMETER, b"Ns"), "a key that is a Parameter"),
        "a record as a key": (sent(b"}", plain(np.zeros((), RECORD)[()]), b"Ns"), "a key that is a void"),
        "eight gigabytes of zeros": (
            sent(call("builtins", "bytearray", plain(1 << 33))),
            "bytes are encoded in latin1",
        ),
        "eight gigabytes of an array": (
            sent(call("numpy", "ndarray", plain((1 << 33,)))),
            "is called, which pickles only name",
        ),
        "eight gigabytes of a list": (
            sent(call("builtins", "list", call("builtins", "range", plain(1 << 33)))),
            "list is called",
        ),
        "a large array without bytes": (
            sent(array([plain(1), plain((1 << 33,)), FLOATS, plain(False), b"C\x00"])),
            "has 0 bytes",
        ),
        "a large empty record": (
            sent(
                array(
                    [plain(1), plain((1 << 33,)), dtype("V0", (3, "|", None, (), {}, 0, 1, 0)), plain(False), b"C\x00"]
                )
            ),
            "it makes far more of its bytes than they are",
        ),
        "text that is announced": (sent(b"\x8d" + struct.pack("<Q", 1 << 33)), "8589934592 more bytes are announced"),
        "bytes that are announced": (sent(b"\x8e" + struct.pack("<Q", 1 << 33)), "8589934592 more bytes are announced"),
        "a bytearray that is announced": (
            sent(b"\x96" + struct.pack("<Q", 1 << 33)),
            "8589934592 more bytes are announced",
        ),
        "an integer that is announced": (sent(b"\x8b" + struct.pack("<i", 1 << 30)), "an integer of 1073741824 bytes"),
        "an integer of negative length": (sent(b"\x8b" + struct.pack("<i", -1)), "an integer of -1 bytes"),
        "text of negative length": (sent(b"T" + struct.pack("<i", -1)), "-1 more bytes are announced"),
        "a large power of ten": (
            sent(call("fractions", "Fraction", plain("1e999999999"))),
            "a fraction has a numerator",
        ),
        "a deque of a range": (
            sent(call("collections", "deque", call("builtins", "range", plain(1 << 33)))),
            "made of a list",
        ),
        "a factory that is a function": (sent(call("collections", "defaultdict", plain(1))), "is made with a class"),
        "hours beyond the day": (sent(call("datetime", "time", b"C\x06" + b"\x63" * 6)), "hour must be in 0..23"),
        "months beyond the year": (sent(call("datetime", "date", b"C\x04\x07\xe4\x0d\x01")), "month must be in 1..12"),
        "a slice of a slice": (
            sent(call("builtins", "slice", call("builtins", "slice", b"NNN"), b"NN")),
            "a slice has three bounds, plain ones",
        ),
        "letters beyond Unicode": (
            sent(
                call(
                    "numpy._core.multiarray",
                    "scalar",
                    dtype("U1", (3, "<", None, None, None, 4, 4, 8)),
                    b"C\x04\xff\xff\xff\x7f",
                )
            ),
            "letters that are none",
        ),
        "a boolean of two": (
            sent(call("numpy._core.multiarray", "scalar", dtype("b1"), b"C\x01\x02")),
            "other bytes than 0 and 1",
        ),
        "an object in a scalar": (
            sent(call("numpy._core.multiarray", "scalar", dtype("O8"), b"C\x08" + b"\x41" * 8)),
            "a scalar is an object",
        ),
        "addresses as objects": (
            sent(call("numpy._core.numeric", "_frombuffer", BYTES8, dtype("O8"), plain((1,)), plain("C"))),
            "records that hold objects",
        ),
        "addresses in a record": (
            sent(array([plain(1), plain((1,)), plain(np.dtype([("a", "O")])), plain(False), BYTES8])),
            "records that hold objects",
        ),
        "a negative length": (
            sent(array([plain(1), plain((-2,)), FLOATS, plain(False), BYTES8])),
            "has the shape (-2,)",
        ),
        "lengths that overflow": (
            sent(array([plain(1), plain((1 << 32, 1 << 32)), FLOATS, plain(False), BYTES8])),
            "has the shape (4294967296, 42949",
        ),
        "bytes of another length": (sent(array([plain(1), SHAPE, FLOATS, plain(False), b"C\x04abcd"])), "has 4 bytes"),
        "objects of another length": (
            sent(array([plain(1), SHAPE, dtype("O8"), plain(False), b"]Na"])),
            "(2,) objects is made of",
        ),
        "a tensor of text": (
            sent(
                call(
                    "resilin.core.public.methods",
                    "_rebuild",
                    name("resilin.core.tensor", "Tensor"),
                    plain(np.array(["a"])),
                    plain("cpu"),
                    plain(False),
                )
            ),
            "a tensor cannot hold numpy dtype",
        ),
        "a tensor on no device": (
            sent(
                call(
                    "resilin.core.public.methods",
                    "_rebuild",
                    name("resilin.core.tensor", "Tensor"),
                    plain(np.zeros(1)),
                    plain("nowhere"),
                    plain(False),
                )
            ),
            "nowhere",
        ),
        "axes of numbers that are none": (
            sent(call("numpy._core.numeric", "_frombuffer", BYTES8, FLOATS, SHAPE, plain("K"), plain((7,)))),
            "axis 7 is out of bounds",
        ),
    }.values(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hostile_object_is_refused_with_what_it_asked_for(data, why):
    assert why in refusal(data)


STATES = {
    "nothing": (),
    "too few parts": (3, "<"),
    "another version": (1, "<", None, None, None, 4, 4, 0),
    "no byte order": (3, "x", None, None, None, -1, -1, 0),
    "a byte order of bytes": (3, b"<", None, None, None, -1, -1, 0),
    "a list of names": (3, "|", None, ["a"], {"a": (1, 0)}, 8, 1, 0),
    "names without fields": (3, "|", None, ("a",), {}, 8, 1, 0),
    "fields that are numbers": (3, "|", None, ("a",), {"a": 1}, 8, 1, 0),
    "a field without a dtype": (3, "|", None, ("a",), {"a": ("f4", 0)}, 8, 1, 0),
    "a negative place": (3, "|", None, ("a",), {"a": (np.dtype("f4"), -4)}, 8, 1, 0),
    "a place beyond the end": (3, "|", None, ("a",), {"a": (np.dtype("f4"), 8)}, 8, 1, 0),
    "an object that overlaps": (
        3,
        "|",
        None,
        ("a", "b"),
        {"a": (np.dtype("O"), 0), "b": (np.dtype("i8"), 0)},
        8,
        8,
        0x3F,
    ),
    "negative bytes": (3, "|", None, None, None, -8, 1, 0),
    "too many bytes": (3, "|", None, None, None, 1 << 40, 1, 0),
    "a shape without end": (3, "|", (np.dtype("f4"), (1 << 40, 1 << 40)), None, None, 8, 1, 0),
    "a negative shape": (3, "|", (np.dtype("f4"), (-1,)), None, None, 8, 1, 0),
    "parts of no dtype": (3, "|", (None, (1,)), None, None, 8, 1, 0),
    "parts that are a dtype": (3, "|", np.dtype("f4"), None, None, 8, 1, 0),
    "flags of text": (3, "|", None, None, None, 8, 1, "x"),
    "notes that are a list": (4, "|", None, None, None, 8, 1, 0, [1]),
    "notes that hold more": (4, "|", None, None, None, 8, 1, 0, {"a": [1]}),
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_numpys_dtypes_have_no_other_state_than_numpy_writes(state):
    assert "damaged" in refusal(sent(dtype("V8", state)))


@pytest.mark.parametrize(
    "state",
    [
        (4, "<", None, None, None, -1, -1, 0, notes)
        for notes in (
            None,
            (),
            ({},),
            ({}, ()),
            ({}, (b"xx", 1, 1, 1)),
            ({}, (b"ns", 0, 1, 1)),
            ({}, (b"ns", 1, 0, 1)),
            ({}, (b"ns", 1 << 40, 1, 1)),
            ({}, ("ns];x[", 1, 1, 1)),
            ({}, (1, 1, 1, 1)),
            ([1], (b"ns", 1, 1, 1)),
        )
    ],
)
def test_times_have_no_other_units_than_numpy_knows(state):
    assert "damaged" in refusal(sent(dtype("M8", state)))


@pytest.mark.parametrize("code", ["f4", "O8", "M8", "b1"])
def test_only_raw_memory_has_fields(code):
    state = (3, "|", None, ("a",), {"a": (np.dtype("f4"), 0)}, 8, 1, 0)
    assert "has fields or a shape" in refusal(sent(dtype(code, state)))


@pytest.mark.parametrize(
    "code", ["", "f3", "f4,f4", "(2,)f4", "i4:x", "float64", "V-1", "V99999999999", "T", "object", "O16"]
)
def test_dtypes_are_called_by_a_code_alone(code):
    assert "damaged" in refusal(sent(dtype(code)))


def test_records_nest_some_levels_and_no_more():
    def nested(levels):
        made = np.dtype("f4")
        for _ in range(levels):
            made = np.dtype([("a", made)])
        return made

    assert again(nested(8)) == nested(8)
    assert "nests more than 8 levels" in refusal(pickle.dumps(nested(9)))
    wide = np.dtype([(f"f{number}", "V0") for number in range(200)])
    wider = np.dtype([(f"f{number}", wide) for number in range(100)])
    assert "more than 10000 fields" in refusal(pickle.dumps(wider))


def test_what_is_said_of_long_names_is_short():
    long = plain("x" * 100_000)
    for data in (
        call("resilin.core.device", "device", long),
        call("resilin.core.dtype", "by_name", long),
        call("numpy", "dtype", long),
        long + long + b"\x93",
    ):
        refusal(sent(data))
