"""save and load: round trips, and files that are wrong in every way."""

import builtins
import collections
import copy
import errno
import gc
import io
import json
import os
import pickle
import stat
import threading
import weakref

import extent
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resilin
from resilin.core import serialize
from resilin.errors import CorruptFile, UsageError

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


@settings(max_examples=extent.examples(60), deadline=None)
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


def test_what_was_loaded_is_freed_when_nobody_has_it_any_more(tmp_path):
    resilin.save({"w": resilin.ones(3), "rest": (1, "x")}, tmp_path / "x.res")
    enabled = gc.isenabled()
    gc.disable()  # which would find what refers to itself
    try:
        loaded = resilin.load(tmp_path / "x.res")
        gone = weakref.ref(loaded["w"])
        del loaded
        assert gone() is None
    finally:
        if enabled:
            gc.enable()


def test_devices_are_kept_or_mapped():
    data = serialize.dumps(resilin.ones(2, device="sim:1"))
    assert str(serialize.loads(data).device) == "sim:1"
    assert str(serialize.loads(data, map_location="cpu").device) == "cpu"
    assert str(serialize.loads(data, map_location={"sim:1": "sim:3"}).device) == "sim:3"


def test_a_device_that_is_not_here_is_named_with_the_way_out():
    data = serialize.dumps(resilin.ones(2, device="sim:1")).replace(b'"sim:1"', b'"gpu:1"')
    with pytest.raises(UsageError, match=r"saved on 'gpu:1'; give map_location='cpu'.*no backend is registered"):
        serialize.loads(data)
    assert serialize.loads(data, map_location="cpu").tolist() == [1, 1]


def test_an_object_that_cannot_be_saved_is_named_and_leaves_no_file(tmp_path):
    with pytest.raises(UsageError, match=r"\['a'\]\[1\] is a function, which cannot be pickled"):
        resilin.save({"a": [1, lambda: 1]}, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def _there_and_back(value):
    return serialize.loads(serialize.dumps(value))


def test_tensors_that_share_memory_are_stored_once_and_share_it_again():
    x = resilin.arange(1000.0)
    values = [x, x[:2], x[10:20:3], x.reshape(10, 100).t(), resilin.nn.Parameter(x[5:7]), x.numpy()[-3:]]
    data = serialize.dumps(values)
    assert len(data) < 4000 + 2000
    back = serialize.loads(data)
    assert [value.tolist() for value in back] == [value.tolist() for value in values]
    back[0].fill_(7)
    assert all((np.asarray(value.tolist()) == 7).all() for value in back)


def test_strides_come_back():
    x = resilin.arange(24.0).reshape(2, 3, 4)
    for value in (x.transpose(0, 2), x[:, ::2], x[0, 0].expand(5, 4), x[:, :, 1]):
        back = _there_and_back(value)
        assert back.stride() == value.stride()
        assert back.tolist() == value.tolist()
    expanded = resilin.ones(3).expand(2, 3)
    for back in (_there_and_back(expanded), copy.deepcopy(expanded)):
        with pytest.raises(RuntimeError, match="single memory location"):
            back.add_(1)
    backwards = np.arange(6)[::-2]
    assert _there_and_back(backwards).tolist() == backwards.tolist()
    assert _there_and_back(np.arange(3).astype(">i4")).tolist() == [0, 1, 2]


def test_of_a_view_only_its_own_part_is_stored():
    assert len(serialize.dumps(resilin.zeros(100_000)[10:20])) < 1000


def test_several_numpy_arrays_stay_what_they_are():
    back = _there_and_back([np.zeros(2), np.ones(3), np.float32(4), np.float32(5), np.full(4, 2.0)])
    assert [value.tolist() for value in back] == [[0, 0], [1, 1, 1], 4, 5, [2, 2, 2, 2]]
    array = np.ones(3)
    one, other = _there_and_back([array, array])
    one[0] = 5
    assert other.tolist() == [5, 1, 1]


def test_empty_tensors_come_back_beside_others():
    back = _there_and_back([resilin.zeros(0, 3), resilin.ones(2), resilin.zeros(2, 0), resilin.zeros(0)])
    assert [tuple(value.shape) for value in back] == [(0, 3), (2,), (2, 0), (0,)]


def _second(entry=None, blocks=None, body=bytes(16)):
    good = {"dtype": "float32", "shape": [2, 2], "strides": [8, 4], "block": 0, "offset": 0}
    good |= {"device": "cpu", "grad": False, "kind": "tensor"}
    blocks = [{"start": 0, "stop": 16}] if blocks is None else blocks
    header = {"tree": {"$": "tensor", "v": 0}, "blocks": blocks, "tensors": [good | (entry or {})]}
    text = json.dumps(header).encode()
    return b"RESILIN2" + len(text).to_bytes(8, "little") + text + body


def test_the_hand_made_file_of_the_second_format_is_good():
    np.testing.assert_array_equal(serialize.loads(_second()).numpy(), np.zeros((2, 2)))
    np.testing.assert_array_equal(serialize.loads(_second({"strides": [-8, 4], "offset": 8})).numpy(), np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (_second({"offset": 4}), "impossible offsets"),
        (_second({"offset": -4}), "impossible offsets"),
        (_second({"strides": [16, 4]}), "impossible offsets"),
        (_second({"strides": [-8, 4]}), "impossible offsets"),
        (_second({"strides": [4]}), "impossible offsets"),
        (_second({"shape": [1, 2]}), "do not cover it"),
        (_second({"shape": [-1, 2]}), "impossible offsets"),
        (_second({"shape": [0, 2**62, 2**62], "strides": [0, 0, 0]}), "shape of tensor 0"),
        (_second({"block": 1}), "entry of tensor 0"),
        (_second({"block": "0"}), "entry of tensor 0"),
        (_second({"strides": None}), "entry of tensor 0"),
        (_second(blocks=[{"start": 0}]), "entry of block 0"),
        (_second(blocks=[{"start": 4, "stop": 20}]), "impossible offsets"),
        (_second(blocks=[{"start": 0, "stop": 20}]), "cut short"),
        (_second(blocks=[{"start": 0, "stop": 12}]), "belong to no tensor"),
        (_second(blocks=7), "damaged"),
    ],
)
def test_a_damaged_file_of_the_second_format_is_refused_with_the_reason(data, message):
    with pytest.raises(UsageError, match=message):
        serialize.loads(data)


def _file(entry=None, body=bytes(16), tree=None):
    good = {"dtype": "float32", "shape": [4], "start": 0, "stop": 16, "device": "cpu", "grad": False, "kind": "tensor"}
    header = json.dumps({"tree": tree or {"$": "tensor", "v": 0}, "tensors": [good | (entry or {})]}).encode()
    return b"RESILIN1" + len(header).to_bytes(8, "little") + header + body


def test_the_hand_made_file_of_the_first_format_is_good():
    np.testing.assert_array_equal(serialize.loads(_file()).numpy(), np.zeros(4))
    body = np.arange(6, dtype=np.float32).tobytes()
    back = serialize.loads(_file({"shape": [2, 3], "stop": 24}, body))
    assert back.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert serialize.loads(_file({"shape": [], "stop": 4}, bytes(4))).tolist() == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\3\4....", "no intact zip archive"),
        (b"PK\x03\x04 zip", "no intact zip archive"),
        (b"\x80\5......", "pickle in it is damaged"),
    ],
)
def test_what_begins_like_pytorchs_files_and_is_none_is_refused(data, message):
    with pytest.raises(CorruptFile, match=message):
        serialize.loads(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "was not written by"),
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


def test_deep_copies_share_what_their_originals_share():
    x = resilin.arange(6.0).reshape(2, 3)
    weight = resilin.nn.Parameter(x)
    copied, part, turned, parameter, again = copy.deepcopy([x, x[1, 1:], x.t(), weight, weight])
    assert (turned.stride(), turned.tolist()) == (x.t().stride(), x.t().tolist())
    copied.fill_(9)
    assert (part.tolist(), parameter.tolist()) == ([9, 9], [[9, 9, 9]] * 2)
    assert again is parameter
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("name", ["bfloat16", "bool", "complex64"])
def test_deep_copies_of_every_dtype_and_of_empty_and_numpys_backward_views_are_equal(name):
    dtype = getattr(resilin, name)
    backwards = resilin.from_numpy(np.arange(4)[::-1])
    given = [resilin.ones(2, 3, dtype=dtype)[:, 1], resilin.zeros(0, 3, dtype=dtype), resilin.ones((), dtype=dtype)]
    for value, found in zip([*given, backwards], copy.deepcopy([*given, backwards]), strict=True):
        assert (found.tolist(), found.dtype, found.shape) == (value.tolist(), value.dtype, value.shape)


KEPT = [
    {np.int64(1): 2, (1, np.int32(3)): 4, np.bool_(True): 5},
    {frozenset([1, (2, 3)]): "a"},
    {frozenset([1]), frozenset()},
    {np.float32(1.5), np.float64(2.5)},
    [np.float32(3), np.float64(0.1), np.int8(-1), np.bool_(False), np.complex64(1j), ml_dtypes.bfloat16(2)],
    bytearray(b"ab"),
    resilin.Size([2, 3]),
    collections.Counter("aab"),
    collections.OrderedDict(b=1, a=2),
    2**5000,
    -(10**5000),
    "\ud800",
]


@pytest.mark.parametrize("value", KEPT, ids=lambda value: type(value).__name__)
def test_what_can_be_saved_comes_back_as_what_it_was(value):
    back = _there_and_back([value])[0]
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, list | set):
        assert sorted(type(x).__name__ for x in back) == sorted(type(x).__name__ for x in value)


def test_a_subclass_comes_back_as_what_it_is_a_subclass_of():
    Point = collections.namedtuple("Point", "x y")
    values = [
        Point(1, 2),
        collections.defaultdict(list, a=[1]),
        type("Names", (list,), {})("ab"),
        type("Text", (str,), {})("a"),
    ]
    back = _there_and_back(values)
    assert back == [(1, 2), {"a": [1]}, ["a", "b"], "a"]
    assert [type(value) for value in back] == [tuple, dict, list, str]


def test_tensors_that_were_computed_require_gradients_as_before():
    back = _there_and_back([resilin.ones(2, requires_grad=True) * 2, resilin.ones(2)])
    assert [tensor.requires_grad for tensor in back] == [True, False]
    assert back[0].is_leaf


def test_an_object_that_contains_itself_or_is_too_deep_is_refused():
    around: list = []
    around.append(around)
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    for value in (around, deep):
        with pytest.raises(UsageError, match="nested too deeply, or contains itself"):
            serialize.dumps(value)


@pytest.mark.parametrize(
    "value", [np.array(["a"]), np.array([None]), np.datetime64("2020-01-01"), np.zeros(1, "i4,f8")]
)
def test_arrays_that_no_tensor_holds_are_named_with_their_place(value):
    with pytest.raises(UsageError, match=r"save: the object\['a'\] is numpy's .*a tensor cannot hold"):
        serialize.dumps({"a": value})


def test_a_link_a_pipe_and_permissions_stay(tmp_path):
    real, link, pipe = tmp_path / "step5.res", tmp_path / "latest.res", tmp_path / "pipe"
    resilin.save(1, real)
    real.chmod(0o600)
    link.symlink_to(real)
    resilin.save(2, link)
    assert link.is_symlink()
    assert resilin.load(real) == 2
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    os.mkfifo(pipe)
    read: list = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    resilin.save(3, pipe)
    reader.join(30)
    assert serialize.loads(read[0]) == 3
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest.res", "pipe", "step5.res"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such folder.*/there'"):
        resilin.save(1, tmp_path / "there" / "x.res")


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_a_full_disk_is_told_with_the_path_and_leaves_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "x.res"
    resilin.save(1, path)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        if call == "write":
            patched.setattr(serialize, "_put", full)
        else:
            patched.setattr(builtins if call == "open" else os, call, full)
        with pytest.raises(OSError, match=rf"No space left on device: '{path}'") as told:
            resilin.save(resilin.ones(3), path)
    assert told.value.errno == errno.ENOSPC
    assert resilin.load(path) == 1
    assert os.listdir(tmp_path) == ["x.res"]


def test_a_full_device_is_told_with_its_path():
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        resilin.save(resilin.ones(3), "/dev/full")


def test_a_folder_that_takes_no_files_is_told_with_the_path(tmp_path):
    (tmp_path / "x.res").mkdir()
    with pytest.raises(IsADirectoryError, match=rf"Is a directory: '{tmp_path}/x\.res'"):
        resilin.save(1, tmp_path / "x.res")


def test_of_threads_that_save_to_one_path_each_file_is_whole(tmp_path):
    path, errors = tmp_path / "x.res", []

    def write_and_read(number: int) -> None:
        try:
            for _ in range(15):
                resilin.save(resilin.full((5000,), float(number)), path)
                back = resilin.load(path)
                assert bool((back == back[0]).all())
        except BaseException as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    threads = [threading.Thread(target=write_and_read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert [p.name for p in tmp_path.iterdir()] == ["x.res"]


def test_a_mapped_file_is_read_where_it_lies_and_never_written(tmp_path):
    path = tmp_path / "x.res"
    x = resilin.arange(100_000.0)
    saved = {"a": x, "b": x[5:].reshape(-1, 5), "c": resilin.zeros(0, 3), "d": resilin.tensor(2.5), "e": np.arange(3)}
    resilin.save(saved, path)
    before = path.read_bytes()
    back = resilin.load(path, mmap=True)
    base = back["a"].numpy()
    while not isinstance(base, np.memmap):
        base = base.base
    back["a"][7] = -1
    assert back["b"].reshape(-1)[2].item() == -1
    assert path.read_bytes() == before
    assert resilin.equal(resilin.load(path, mmap=True)["b"], saved["b"])
    resilin.save(0, path)  # replaces the file; the mapped one lives on
    assert back["a"][99_999].item() == 99_999
    assert back["e"].tolist() == [0, 1, 2]
    with pytest.raises(UsageError, match="mmap=True needs the path"):
        resilin.load(io.BytesIO(before), mmap=True)


def test_arguments_about_pickle_change_nothing(tmp_path):
    resilin.save({"a": 1}, tmp_path / "x", pickle_module=pickle, pickle_protocol=4)
    assert resilin.load(tmp_path / "x", None, pickle, weights_only=False) == {"a": 1}
    resilin.save({"a": 2}, tmp_path / "x", _use_new_zipfile_serialization=False)
    assert resilin.load(tmp_path / "x", encoding="latin1", fix_imports=True, errors="strict") == {"a": 2}
    with pytest.raises(TypeError, match="unexpected keyword argument 'encodings'"):
        resilin.load(tmp_path / "x", encodings="latin1")


@pytest.mark.parametrize("data", [b"", b"no file of tensors", pickle.dumps(print)])
def test_what_is_not_read_without_trust_is_an_error_of_pickle_as_well(data):
    with pytest.raises(pickle.UnpicklingError):
        resilin.load(io.BytesIO(data))


class _Counted(io.BytesIO):
    """Knows the most that was read at once into memory which is not a tensor's, and gives little at a time."""

    most = 0

    def read(self, size=-1, /):
        found = super().read(size)
        self.most = max(self.most, len(found))
        return found

    def readinto(self, buffer, /):
        return super().readinto(memoryview(buffer)[:1000])


def test_blocks_are_read_straight_into_their_tensors():
    saved = {"a": resilin.arange(10_000.0), "b": resilin.ones(3)}
    file = _Counted(b"before" + serialize.dumps(saved))
    file.seek(6)
    back = resilin.load(file)
    assert all(resilin.equal(back[name], saved[name]) for name in saved)
    assert file.most < 1000


def test_a_file_that_cannot_be_sought_is_read(tmp_path):
    data = serialize.dumps([resilin.arange(50_000.0), 1])
    reading, writing = os.pipe()
    with open(reading, "rb") as source, open(writing, "wb") as target:
        writer = threading.Thread(target=lambda: (target.write(data), target.close()))
        writer.start()
        back = resilin.load(source)
        writer.join(30)
    assert resilin.equal(back[0], resilin.arange(50_000.0))


def test_a_file_that_takes_a_part_at_a_time_gets_all():
    class Slow(io.BytesIO):
        def write(self, data, /):
            return super().write(memoryview(data)[:1000])

    class Mute(io.BytesIO):
        def write(self, data, /):
            super().write(data)

    for file in (Slow(), Mute()):
        resilin.save([resilin.arange(10_000.0), "a"], file)
        assert resilin.equal(serialize.loads(file.getvalue())[0], resilin.arange(10_000.0))


def test_a_computed_tensor_is_pickled_without_its_history():
    x = resilin.ones(2, requires_grad=True) * 2
    y = pickle.loads(pickle.dumps(x))
    assert y.tolist() == [2, 2]
    assert (y.requires_grad, y.is_leaf) == (True, True)
