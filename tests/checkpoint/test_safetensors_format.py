"""The safetensors format: files equal to the safetensors package's, hostile headers named, never more than a piece."""

import json
import struct

import extent
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from resilin.checkpoint import safetensors as ours
from resilin.checkpoint.local import LocalStorage
from resilin.checkpoint.storage import Reading
from resilin.core import dtype as dtypes
from resilin.errors import CorruptFile, UsageError

DTYPES = [*dtypes.ALL, dtypes.complex64]


def arrays_of_all_kinds():
    """Each dtype; and each way of not being contiguous."""
    made = {f"dtype.{d.name}": np.arange(6).reshape(2, 3).astype(d.np) for d in DTYPES}
    base = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    return made | {
        "transposed": base[0, 0].T,
        "permuted": base.transpose(2, 0, 3, 1),
        "stepped": base[:, ::2, 1:, ::3],
        "reversed": base[::-1, :, ::-1],
        "expanded": np.broadcast_to(np.float32([1, 2]), (3, 2)),
        "column": base[0, 0, :, 2],
        "fortran": np.asfortranarray(base),
        "scalar": np.array(7.5),
        "one": base[1:2, 1:2],
        "empty": np.zeros((0, 3), np.int64),
        "empty view": base[:, :0].T,
        "bfloat16.T": np.arange(6).reshape(2, 3).astype(dtypes.bfloat16.np).T,
    }


def write(path, arrays, metadata=None, chunk_bytes=ours.CHUNK_BYTES):
    storage = LocalStorage(path.parent)
    made = ours.layout([(n, dtypes.from_numpy(a.dtype), a.shape) for n, a in arrays.items()], metadata or {})
    with storage.writing(path.name) as file:
        ours.stream(made, lambda name: ours.chunks(arrays[name], chunk_bytes), file.write)
    return made


def read(path):
    source = Reading(LocalStorage(path.parent), path.name)
    made = ours.read_layout(source)
    return {name: ours.read(source, entry).reshape(entry.shape) for name, entry in made.entries.items()}, made


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 1000, ours.CHUNK_BYTES])
def test_arrays_of_any_strides_and_dtype_come_back_with_their_bits(tmp_path, chunk_bytes):
    arrays = arrays_of_all_kinds()
    made = write(tmp_path / "a.safetensors", arrays, {"format": "pt", "note": "ü"}, chunk_bytes)
    found, layout = read(tmp_path / "a.safetensors")
    assert_equal(found, arrays)
    assert layout.metadata == {"format": "pt", "note": "ü"}
    assert layout.entries == made.entries
    assert made.size == (tmp_path / "a.safetensors").stat().st_size


def test_the_safetensors_package_reads_what_is_written_here(tmp_path):
    arrays = arrays_of_all_kinds()
    write(tmp_path / "a.safetensors", arrays, {"format": "pt"})
    del arrays["dtype.complex64"]  # the package's numpy side has no name for it; its header is checked below
    with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_slice("dtype.complex64").get_dtype() == "C64"
        assert_equal({name: file.get_tensor(name) for name in arrays}, arrays)


def test_what_the_safetensors_package_writes_is_read_here(tmp_path):
    arrays = {n: np.ascontiguousarray(a) for n, a in arrays_of_all_kinds().items() if "complex" not in n}
    safetensors.numpy.save_file(arrays, tmp_path / "a.safetensors", {"format": "np"})
    found, layout = read(tmp_path / "a.safetensors")
    assert_equal(found, arrays)
    assert layout.metadata == {"format": "np"}


def test_every_tensor_starts_at_a_multiple_of_its_elements_size(tmp_path):
    made = write(tmp_path / "a", arrays_of_all_kinds())
    assert made.data_start % 64 == 0
    for entry in made.entries.values():
        assert entry.start % entry.dtype.itemsize == 0


@settings(deadline=None, max_examples=extent.examples(60))
@given(st.data())
def test_any_view_of_any_array_is_streamed_in_c_order(data):
    shape = data.draw(st.lists(st.integers(0, 5), max_size=4))
    array = np.arange(int(np.prod(shape)), dtype=data.draw(st.sampled_from(["u1", "i2", "f4", "c8"]))).reshape(shape)
    if shape:
        array = array.transpose(data.draw(st.permutations(range(len(shape)))))
        array = array[tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1, -2]))) for _ in shape)]
    chunk = data.draw(st.integers(1, 40))
    pieces = list(ours.chunks(array, chunk))
    assert b"".join(pieces) == array.tobytes()
    assert all(len(piece) <= max(chunk, array.itemsize) for piece in pieces)


def test_contiguous_memory_is_shown_and_not_copied():
    array = np.zeros(100, np.float32)
    (piece,) = ours.chunks(array)
    piece[:4] = struct.pack("<f", 5)
    assert array[0] == 5


@pytest.mark.parametrize("name", ["dtype.int64", "dtype.bool", "dtype.bfloat16"])
def test_ranges_of_elements_are_read(tmp_path, name):
    arrays = {name: np.arange(1000).astype(arrays_of_all_kinds()[name].dtype).reshape(10, 100)}
    write(tmp_path / "a", arrays)
    source = Reading(LocalStorage(tmp_path), "a")
    entry = ours.read_layout(source)[name]
    flat = arrays[name].reshape(-1)
    for start, stop in ((0, 0), (0, 1), (123, 987), (999, 1000), (1000, 1000)):
        np.testing.assert_array_equal(ours.read(source, entry, start, stop), flat[start:stop])
    into = np.zeros(7, flat.dtype)
    ours.read_into(source, entry, 990, into)
    np.testing.assert_array_equal(into, flat[990:997])
    for start, stop in ((-1, 3), (5, 4), (0, 1001)):
        with pytest.raises(UsageError, match="has 1000 elements, not"):
            ours.read(source, entry, start, stop)
    with pytest.raises(UsageError, match="ends before element 1001"):
        ours.read_into(source, entry, 994, into)


def test_complex128_is_carried_by_two_float64s():
    assert ours.carrier(dtypes.complex128) == (dtypes.float64, 2)
    assert ours.carrier(dtypes.complex64) == (dtypes.complex64, 1)
    with pytest.raises(UsageError, match=r"'a' is resilin\.complex128, which safetensors has not"):
        ours.layout([("a", dtypes.complex128, (2,))])


@pytest.mark.parametrize(
    ("tensors", "metadata", "why"),
    [
        ([("a", dtypes.int8, (1,)), ("a", dtypes.int8, (1,))], {}, "tensor name 'a' is taken"),
        ([("__metadata__", dtypes.int8, (1,))], {}, "taken by the format itself"),
        ([("\ud800", dtypes.int8, (1,))], {}, "cannot be written as UTF-8"),
        ([], {"a": 1}, "should be texts by names"),
    ],
)
def test_what_cannot_be_written_is_refused_before(tensors, metadata, why):
    with pytest.raises(UsageError, match=why):
        ours.layout(tensors, metadata)


def test_a_header_above_the_formats_limit_is_refused(monkeypatch):
    monkeypatch.setattr(ours, "MAX_HEADER_BYTES", 1000)
    with pytest.raises(UsageError, match="the format's limit is 1000: divide them over several files"):
        ours.layout([(f"tensor {number}", dtypes.int8, (1,)) for number in range(20)])


def test_a_file_without_tensors_is_a_file(tmp_path):
    write(tmp_path / "a", {})
    assert read(tmp_path / "a")[0] == {}
    assert safetensors.numpy.load_file(tmp_path / "a") == {}


def test_an_array_of_another_size_than_its_layout_is_refused():
    made = ours.layout([("a", dtypes.float32, (3,))])
    with pytest.raises(UsageError, match="tensor 'a' has 8 bytes, its layout 12"):
        ours.stream(made, lambda name: ours.chunks(np.zeros(2, np.float32)), lambda piece: None)


def test_no_more_than_a_piece_is_held_at_a_time():
    """Of arrays that are not contiguous: each piece may be overwritten as soon as it was taken."""
    array = np.arange(1000, dtype=np.float64).reshape(10, 100).T
    taken = []
    made = ours.layout([("a", dtypes.float64, array.shape)])

    def put(piece):
        taken.append(bytes(piece))
        assert len(piece) <= max(64, len(made.header))

    ours.stream(made, lambda name: ours.chunks(array, 64), put)
    assert b"".join(taken[1:]) == array.tobytes()


# -- hostile files


def file_of(path, header, body=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)
    return Reading(LocalStorage(path.parent), path.name)


def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


EIGHT = bytes(8)
HOSTILE = [
    ({"a": tensor()}, b"", None, "it is cut short: tensors end at byte"),
    ({"a": tensor()}, bytes(9), None, "1 bytes at its end belong to no tensor"),
    ({"a": tensor(offsets=(1, 9))}, bytes(9), None, "tensor 'a' starts at byte .*: 1 bytes before it belong to none"),
    ({"a": tensor(), "b": tensor(offsets=(4, 12))}, bytes(12), None, "tensor 'b' starts at .*: it overlaps another"),
    ({"a": tensor(), "b": tensor()}, EIGHT, None, "it overlaps another"),
    ({"a": tensor(), "b": tensor(offsets=(12, 20))}, bytes(20), None, "4 bytes before it belong to none"),
    ({"a": tensor(offsets=(8, 0))}, EIGHT, None, r"impossible offsets \[8, 0\]"),
    ({"a": tensor(offsets=(-8, 0))}, EIGHT, None, "impossible offsets"),
    ({"a": tensor(offsets=(0, 8, 16))}, EIGHT, None, "impossible offsets"),
    ({"a": tensor(offsets=(0.0, 8.0))}, EIGHT, None, "impossible offsets"),
    ({"a": tensor(offsets=(False, 8))}, EIGHT, None, "impossible offsets"),
    ({"a": tensor(shape=(3,))}, EIGHT, None, r"F32 of shape \[3\], needs 12 bytes, its offsets say 8"),
    ({"a": tensor(shape=(-2,))}, EIGHT, None, "impossible shape"),
    ({"a": tensor(shape=("2",))}, EIGHT, None, "impossible shape"),
    ({"a": tensor(shape=(1,) * 65)}, EIGHT, None, "impossible shape"),
    ({"a": tensor(shape=(0, 1 << 62, 4), offsets=(0, 0))}, b"", None, "impossible shape"),
    ({"a": tensor(shape=(1 << 62, 1 << 62))}, EIGHT, None, "impossible shape"),
    ({"a": tensor(dtype="F33")}, EIGHT, None, "unknown dtype 'F33'; known are BOOL, U8"),
    ({"a": tensor(dtype=None)}, EIGHT, None, "unknown dtype None"),
    ({"a": tensor(dtype=["F32"])}, EIGHT, None, "unknown dtype"),
    ({"a": tensor() | {"extra": 1}}, EIGHT, None, "should have dtype, shape and data_offsets"),
    ({"a": [1]}, EIGHT, None, "should have dtype, shape and data_offsets"),
    ({"a": None}, EIGHT, None, "should have dtype, shape and data_offsets"),
    ({"__metadata__": {"a": 1}}, b"", None, "__metadata__ should be texts by names"),
    ({"__metadata__": "a"}, b"", None, "__metadata__ should be texts by names"),
    ([], b"", None, r"its header starts with b'\['"),
    (b" {}", b"", None, "its header starts with b' '"),
    (b"", b"", None, "its header starts with b''"),
    (b"{", b"", None, "its header is damaged"),
    (b'{"a": 1, "a": 2}', b"", None, "its header is damaged: 'a' is there twice"),
    (b'{"a": {"dtype": "F32", "dtype": "F32"}}', b"", None, "'dtype' is there twice"),
    (b'{"\xff": 1}', b"", None, "its header is damaged"),
    (b'{"a":' * 50_000, b"", None, "its header is damaged"),
    (b'{"a": ' + b"9" * 5000 + b"}", b"", None, "its header is damaged"),
    (b"{}", b"", 3, "it is cut short: a header of 3 bytes"),
    (b"{}", b"", 1 << 40, "it announces a header of 1099511627776 bytes, the format's limit is 100000000"),
    (b"{}", b"", (1 << 64) - 1, "it announces a header of"),
]


@pytest.mark.parametrize(("header", "body", "length", "why"), HOSTILE)
def test_a_hostile_file_is_refused_with_what_is_wrong(tmp_path, header, body, length, why):
    source = file_of(tmp_path / "bad.safetensors", header, body, length)
    with pytest.raises(CorruptFile, match=why) as caught:
        ours.read_layout(source)
    assert caught.value.path == str(tmp_path / "bad.safetensors")
    assert "bad.safetensors" in str(caught.value)


@pytest.mark.parametrize("size", range(8))
def test_a_file_of_a_few_bytes_is_refused(tmp_path, size):
    (tmp_path / "a").write_bytes(bytes(size))
    with pytest.raises(CorruptFile, match=f"it has {size} bytes"):
        ours.read_layout(Reading(LocalStorage(tmp_path), "a"))


def test_a_file_cut_anywhere_is_refused(tmp_path):
    write(tmp_path / "whole", arrays_of_all_kinds())
    data = (tmp_path / "whole").read_bytes()
    for length in [*range(0, 100), *range(100, len(data), 53), len(data) - 1]:
        (tmp_path / "cut").write_bytes(data[:length])
        with pytest.raises(CorruptFile):
            ours.read_layout(Reading(LocalStorage(tmp_path), "cut"))


def test_spaces_may_follow_the_header_and_tensors_may_stand_in_any_order(tmp_path):
    head = json.dumps({"b": tensor(offsets=(8, 16)), "a": tensor()}).encode() + b"   "
    source = file_of(tmp_path / "a", head, struct.pack("<4f", 1, 2, 3, 4))
    made = ours.read_layout(source)
    assert list(made.entries) == ["a", "b"]
    assert ours.read(source, made["b"]).tolist() == [3, 4]
    with pytest.raises(UsageError, match="no tensor is called 'c' in a file of 2"):
        made["c"]


def test_a_dtype_that_tensors_here_have_not_is_refused_when_it_is_asked_for(tmp_path):
    source = file_of(tmp_path / "a", {"a": tensor(), "f8": tensor("F8_E4M3", (3,), (8, 11))}, bytes(11))
    made = ours.read_layout(source)
    assert ours.read(source, made["a"]).tolist() == [0, 0]
    with pytest.raises(UsageError, match="tensor 'f8' has elements of F8_E4M3, which resilin has not"):
        ours.read(source, made["f8"])


def test_a_boolean_of_two_is_refused(tmp_path):
    source = file_of(tmp_path / "a", {"a": tensor("BOOL", (3,), (0, 3))}, b"\x01\x00\x02")
    with pytest.raises(CorruptFile, match="tensor 'a' is boolean and has bytes that are neither 0 nor 1"):
        ours.read(source, ours.read_layout(source)["a"])
