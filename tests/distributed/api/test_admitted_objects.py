"""What weights_only=True admits: plain values, containers, arrays and tensors come as they were."""

import collections
import datetime
import decimal
import fractions
import math
import pickle

import ml_dtypes
import numpy as np
import pytest
from hostile import NESTED, RECORD, again, load

import resilin
from resilin import amp, nn, optim
from resilin.core.state.size import Size
from resilin.core.tensor import Parameter, Tensor


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            True,
            1,
            -5,
            1 << 4000,
            1.5,
            math.inf,
            1j,
            "x",
            "\ud800",
            b"x" * 300,
            bytearray(b"y" * 10),
            (),
            (1,),
            [1, []],
        ),
        *({1: {2: 3}}, {1, 2}, frozenset([1]), {(1, (2, 3)): 4, frozenset([1]): 2, 1j: 3, None: 1}, {1j, None}),
        *(
            slice(1, None, 2),
            slice("a", 1.5),
            range(3),
            Size((1, 2)),
            resilin.device("cpu"),
            resilin.float32,
            resilin.bool,
        ),
        *(collections.defaultdict(list, {1: [2]}), collections.defaultdict(None), collections.deque([1, 2, 3], 3)),
        *(collections.deque(), collections.Counter("abc"), collections.OrderedDict(a=1)),
        *(datetime.timedelta(1, 2, 3), datetime.date(1999, 12, 31), datetime.time(1, 2, 3, 4, fold=1)),
        *(datetime.datetime(2020, 1, 2, 3, 4, 5, 6, fold=1), datetime.datetime(9999, 12, 31, 23, tzinfo=datetime.UTC)),
        *(fractions.Fraction(-1, 3), fractions.Fraction(2), decimal.Decimal("1.50"), decimal.Decimal("-Infinity")),
        {resilin.float32: 1, np.dtype("f4"): 2, np.int64(3): 4, resilin.device("cpu"): 5, np.datetime64("2020"): 6},
        {
            decimal.Decimal(1): 2,
            fractions.Fraction(1, 2): 3,
            datetime.date(2020, 1, 1): 4,
            np.str_("x"): 1,
            range(3): 2,
        },
    ],
    ids=lambda value: f"{type(value).__name__} {str(value)[:20]}",
)
def test_plain_values_come_as_they_were(value, protocol):
    data = pickle.dumps(value, protocol=protocol, fix_imports=False)
    found, value = load(data), pickle.loads(data)  # before protocol 4, times lose their fold
    assert type(found) is type(value)
    assert found == value
    assert list(found) == list(value) if isinstance(value, dict) else True
    for kept in ("maxlen", "default_factory", "fold"):
        assert getattr(found, kept, None) == getattr(value, kept, None)


DTYPES = [
    *(np.dtype(code) for code in "?bhilBHILefdgFDGOSUV"),
    *map(np.dtype, ("M8", "m8[25us]", "M8[7ns]", ">U7", ">f8", "S0", "V5", ml_dtypes.bfloat16)),
    *(
        RECORD,
        NESTED,
        np.dtype(("f4", (2, 3))),
        np.dtype([]),
        np.dtype([("a", "O")]),
        np.dtype([("a", RECORD), ("b", RECORD)]),
    ),
    *(np.dtype("i4", metadata={"a": 1}), np.dtype("M8[s]", metadata={"a": "x"})),
    np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [0, 2], "itemsize": 10}),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_of_numpy_come_as_they_were(dtype):
    first, second = again([dtype, dtype])
    assert first is second
    for kept in ("str", "fields", "names", "itemsize", "alignment", "flags", "metadata", "isalignedstruct", "shape"):
        assert getattr(first, kept) == getattr(dtype, kept), kept
    assert type(first) is type(dtype)


ARRAYS = [
    *(
        np.arange(3),
        np.arange(6).reshape(2, 3).T,
        np.arange(6)[::2],
        np.zeros((2, 3, 4)).transpose(0, 2, 1),
        np.array(5),
    ),
    *(
        np.array([]),
        np.zeros((0, 3)),
        np.array(["a", "bcd"]),
        np.array([b"a"]),
        np.array(["2020"], "M8[D]"),
        np.array([1], "m8"),
    ),
    *(
        np.zeros(3, RECORD),
        np.zeros((2, 2), NESTED),
        np.zeros(3, ">f4"),
        np.ones(3, ml_dtypes.bfloat16),
        np.zeros(2, "V5"),
    ),
    *(np.array([True, False]), np.zeros(2, np.dtype([])), np.zeros(2, "g"), np.ones((2, 3), order="F"), np.array("x")),
    *(
        np.float32(1.5),
        np.int64(5),
        np.bool_(True),
        np.str_("h\xe9"),
        np.bytes_(b"x"),
        np.datetime64("2020-01-01T00", "7ns"),
    ),
    *(np.datetime64("NaT"), np.complex64(1j), ml_dtypes.bfloat16(1.5), np.zeros((), RECORD)[()], np.void(b"abc")),
]


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{type(array).__name__} {array.dtype} {array.shape}")
def test_arrays_and_numbers_of_numpy_come_as_they_were(array, protocol):
    found = again(array, protocol)
    by_numpy = pickle.loads(pickle.dumps(array, protocol=protocol))
    assert type(found) is type(array)
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert found.flags.writeable == by_numpy.flags.writeable
    assert found.strides == by_numpy.strides or not found.size


def test_arrays_of_objects_come_as_they_were():
    inner = np.empty(3, object)
    inner[:] = [np.array(5), np.array([1, 2]), [1]]
    for array in (np.array([1, None, "x"], object), np.array([[1, None], [2, "x"]], object, order="F"), inner):
        found = again(array)
        assert [str(one) for one in found.flat] == [str(one) for one in array.flat]
        assert found.strides == array.strides
    assert [type(one) for one in again(inner)] == [np.ndarray, np.ndarray, list]


def test_tensors_come_as_they_were():
    part = Parameter(resilin.ones(2))
    part.tag = {"a": [1]}
    state = collections.OrderedDict(part=part)
    state._metadata = {"": {"version": 1}}
    kinds = [resilin.zeros(2, dtype=one) for one in resilin.core.dtype.ALL + resilin.core.dtype.ALL_COMPLEX]
    given = [part, state, resilin.arange(6).reshape(2, 3).t(), resilin.tensor(True), resilin.tensor([]), *kinds]
    found = again(given)
    assert found[0].tag == {"a": [1]}
    assert found[1]._metadata == state._metadata
    assert found[1]["part"] is found[0]
    assert found[0].requires_grad
    for one, other in zip(given[2:], found[2:], strict=True):
        assert type(other) is type(one) is Tensor
        assert (other.dtype, other.tolist(), other.stride()) == (one.dtype, one.tolist(), one.stride())
    assert str(again(resilin.ones(2).to("sim:1")).device) == "sim:1"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_state_dicts_and_whole_checkpoints_come_as_they_were(protocol):
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    adam = optim.Adam(module.parameters())
    module(resilin.ones(3, 2)).sum().backward()
    adam.step()
    state = module.state_dict()
    schedulers = [optim.lr_scheduler.StepLR(adam, 3), optim.lr_scheduler.MultiStepLR(adam, [1, 2])]
    others = {"optim": adam.state_dict(), "schedulers": [one.state_dict() for one in schedulers], "epoch": 3}
    given = {"model": state, "scaler": amp.GradScaler("cpu").state_dict(), **others}
    found = again(given, protocol)
    assert str(found) == str(given)
    for one, kept in ((found["model"], state), (again(module.state_dict(keep_vars=True), protocol), state)):
        assert type(one) is type(kept) is collections.OrderedDict
        assert one._metadata == kept._metadata == {"": {"version": 1}, "0": {"version": 1}, "1": {"version": 2}}
    assert type(again(module.state_dict(keep_vars=True), protocol)["0.weight"]) is Parameter
    nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).load_state_dict(found["model"])
