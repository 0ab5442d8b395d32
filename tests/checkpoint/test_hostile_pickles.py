"""Pickles that would run something, or cost too much: refused with the name of what they asked for, nothing is run."""

import io
import os
import pickle
import pickletools
import struct
import subprocess
import time
import zipfile

import pytest

from resilin._base.pickles import unpickling
from resilin._base.pickles.unpickling import Unpickler
from resilin.checkpoint.torch_files import import_torch
from resilin.checkpoint.torch_names import NAMES
from resilin.errors import CorruptFile, UnsafePickle

RUN = []


class Reduces:
    """Pickled as a call."""

    def __init__(self, *call):
        self._call = call

    def __reduce__(self):
        return self._call


def touch(path):
    RUN.append(path)


def archive(tmp_path, data, storages=()):
    """A file of torch.save with this pickle."""
    path = tmp_path / "hostile.pt"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("hostile/data.pkl", data)
        for key, content in dict(storages).items():
            made.writestr(f"hostile/data/{key}", content)
    return path


def refused(tmp_path, data, storages=()):
    with pytest.raises(UnsafePickle) as caught:
        import_torch(archive(tmp_path, data, storages))
    return caught.value.refused


def damaged(tmp_path, data, storages=()):
    with pytest.raises(CorruptFile) as caught:
        import_torch(archive(tmp_path, data, storages))
    return str(caught.value)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    ("call", "name"),
    [
        ((os.system, ("touch pwned",)), "posix.system"),
        ((eval, ("__import__('os').system('touch pwned')",)), "builtins.eval"),
        ((exec, ("open('pwned', 'w')",)), "builtins.exec"),
        ((getattr, (os, "system")), None),
        ((subprocess.Popen, (["touch", "pwned"],)), "subprocess.Popen"),
        ((open, ("pwned", "w")), "io.open"),
        ((touch, ("pwned",)), "test_hostile_pickles.touch"),
        ((__import__, ("os",)), "builtins.__import__"),
        ((pickle.loads, (b"",)), "_pickle.loads"),
    ],
)
def test_a_call_of_anything_else_is_refused_by_name(tmp_path, monkeypatch, protocol, call, name):
    monkeypatch.chdir(tmp_path)
    if name is None:  # getattr(getattr(...)): a chain that leads from what is allowed to what is not
        data = b"\x80\x02cbuiltins\ngetattr\nctorch._utils\n_rebuild_tensor_v2\nX\x0b\x00\x00\x00__globals__\x86R."
        name = "builtins.getattr"
    else:
        data = pickle.dumps({"weight": Reduces(*call)}, protocol=protocol, fix_imports=False)
    named = refused(tmp_path, data).replace("__builtin__", "builtins").replace("tests.checkpoint.", "")
    assert named in (name, name.replace("io.open", "_io.open"), name.replace("_pickle", "pickle"))
    assert not (tmp_path / "pwned").exists()
    assert not RUN


@pytest.mark.parametrize(
    "name",
    [
        b"torch\nload",
        b"torch\nos.system",
        b"torch.serialization\nos.system",
        b"torch._utils\n_rebuild_tensor_v2.__globals__",
        b"torch.hub\nload",
        b"collections\nOrderedDict.fromkeys",
        b"collections\nnamedtuple",
        b"builtins\nobject",
        b"builtins\ntype",
        b"functools\npartial",
        b"numpy\nload",
        b"resilin.checkpoint.torch_files\nimport_torch",
    ],
)
def test_names_are_found_in_the_table_alone(tmp_path, name):
    expected = name.decode().replace("\n", ".")
    assert refused(tmp_path, b"\x80\x02c" + name + b"\n.") == expected
    module, attribute = name.split(b"\n")
    stacked = b"\x80\x04\x8c" + bytes([len(module)]) + module + b"\x8c" + bytes([len(attribute)]) + attribute + b"\x93."
    assert refused(tmp_path, stacked) == expected


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x80\x02(S'os'\ni__main__\nX\n.", "pickle opcode 0x53"),  # STRING
        (b"\x80\x02(ios\nsystem\n.", "pickle opcode 0x69"),  # INST
        (b"\x80\x02(cbuiltins\nset\no.", "pickle opcode 0x6f"),  # OBJ
        (b"\x80\x02\x82\x01.", "pickle opcode 0x82"),  # EXT1: a registry of names
        (b"\x80\x05\x97.", "pickle opcode 0x97"),  # NEXT_BUFFER
        (b"\x80\x02P1\n.", "pickle opcode 0x50"),  # PERSID
        (b"\x80\x02]K\x01b.", "setting attributes of a list"),
        (b"\x80\x02ctorch\nSize\n}b.", "setting attributes of torch.Size"),
        (b"\x80\x02ccollections\nOrderedDict\n)R}X\x03\x00\x00\x00popK\x01sb.", "setting attributes of a OrderedDict"),
        (b"\x80\x02X\x01\x00\x00\x00a)R.", "a call of a str with a tuple"),
        (b"\x80\x02cbuiltins\nset\n]R.", "a call of builtins.set with a list"),
        (b"\x80\x02ccollections\nOrderedDict\n.", "the function or class collections.OrderedDict as a value"),
        (b"\x80\x02}K\x01cbuiltins\nset\ns.", "the function or class builtins.set as a value"),
        (b"\x80\x02ctorch\nFloatStorage\n.", "raw storage as a value"),
        (b"\x80\x02}]K\x01s.", "a key that is a list"),
        (b"\x80\x02}]\x85\x85K\x01s.", "a key that is a list"),
        (b"\x80\x02})" + b"\x85" * 200 + b"K\x01s.", "a key of more than 65536 parts or 100 levels"),
        (b"\x80\x04\x8f(]\x90.", "a key that is a list"),
        (b"\x80\x02})aK\x01.", "appending to a dict"),
        (b"\x80\x02]K\x01K\x02s.", "setting items of a list"),
        (b"\x80\x04](K\x01\x90.", "adding to a list"),
        (b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b"\x00.", f"an integer of {1 << 30} bytes"),
        (
            b"\x80\x02}\x8b\x01\x02\x00\x00" + bytes(512) + b"\x01K\x01s.",
            "a key that is an integer of more than 4096 bits",
        ),
    ],
)
def test_other_opcodes_and_targets_are_refused_by_name(tmp_path, data, what):
    assert refused(tmp_path, data) == what


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02K\x01K\x02.",
        b"\x80\x02(K\x01.",
        b"\x80\x02t.",
        b"\x80\x02\x86.",
        b"\x80\x02h\x05.",
        b"\x80\x02X\xff\xff\xff\xff.",
        b"\x80\x05\x8d" + b"\xff" * 8 + b".",
        b"\x80\x05\x96" + b"\xff" * 8 + b".",
        b"\x80\x02X\x02\x00\x00\x00\xff\xfe.",
        b"\x80\x02ctorch\n_utils",
        b"\x80\x02c" + b"a" * 5000,
        b"\x80\x02}(K\x01u.",
        b"\x80\x02K\x01Q.",
        b"\x80\x02cbuiltins\ncomplex\nK\x01K\x02\x86R.",
        b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.",  # two gigabytes
        b"\x80\x02cbuiltins\nset\nK\x01\x85R.",
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00zip\x86R.",
        b"\x80\x02ctorch\nSize\nJ\xff\xff\xff\xff\x85\x85R.",
        b"\x80\x02ctorch\nTensor\n)R.",
        b"\x80\x02ctorch._utils\n_rebuild_parameter\nK\x01\x88N\x87R.",
    ],
)
def test_a_damaged_pickle_says_so(tmp_path, data):
    assert "hostile.pt: the pickle in it is damaged near its step" in damaged(tmp_path, data)


# -- tensors that are none


def tensor(offset=0, shape=(2,), strides=(1,), numel=4, storage=b"FloatStorage", key="0", tail=b"\x89N"):
    """A pickle of one tensor over a storage."""
    numbers = [pickle.dumps(value, protocol=2)[2:-1] for value in (offset, tuple(shape), tuple(strides))]
    saved = b"(X\x07\x00\x00\x00storagectorch\n" + storage + b"\n"
    saved += (
        pickle.dumps(key, protocol=2)[2:-1] + b"X\x03\x00\x00\x00cpu" + pickle.dumps(numel, protocol=2)[2:-1] + b"tQ"
    )
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + saved + b"".join(numbers) + tail + b"tR."


FOUR = {"0": struct.pack("<4f", 1, 2, 3, 4)}


def test_the_helper_makes_a_tensor(tmp_path):
    assert import_torch(archive(tmp_path, tensor(1, (2,), (2,)), FOUR)).tolist() == [2, 4]


@pytest.mark.parametrize(
    "given",
    [
        {"offset": 3, "shape": (2,)},
        {"offset": -1},
        {"offset": 1 << 62},
        {"shape": (5,)},
        {"shape": (-2,)},
        {"shape": (2, 2), "strides": (1,)},
        {"strides": (-1,)},
        {"strides": (1 << 62,)},
        {"shape": (1 << 40, 1 << 40), "strides": (0, 0)},
        {"shape": (0, 1 << 62, 1 << 62), "strides": (0, 0, 0)},
        {"shape": (1,) * 70, "strides": (1,) * 70},
        {"shape": (True,)},
        {"shape": (1.5,)},
        {"numel": 5},
        {"numel": 1 << 60},
        {"numel": -4},
        {"numel": True},
        {"key": "../../etc/passwd"},
        {"key": "1"},
        {"key": 0},
        {"storage": b"DoubleStorage"},
        {"tail": b"\x89]K\x01a"},  # hooks
        {"tail": b"\x89N}X\x03\x00\x00\x00popK\x01s"},  # notes of another kind
    ],
)
def test_a_tensor_beyond_its_storage_is_refused(tmp_path, given):
    assert "hostile.pt" in damaged(tmp_path, tensor(**given), FOUR)


def test_storages_have_no_more_bytes_than_the_file(tmp_path):
    """One entry, named by many tensors under many keys, cannot be read a thousand times."""
    data = tensor(numel=1 << 20, shape=(1 << 20,))
    assert "storages have 4194304 bytes, the whole file" in damaged(tmp_path, data, FOUR)


@pytest.mark.parametrize("length", [1 << 40, 1 << 20])
def test_a_repeated_element_is_not_conjugated_into_memory(tmp_path, length):
    note = b"}X\x04\x00\x00\x00conj\x88s"
    data = tensor(shape=(length,), strides=(0,), tail=b"\x89N" + note)
    assert "repeats its elements" in damaged(tmp_path, data, FOUR)


@pytest.mark.parametrize(
    ("shape", "strides"), [((1 << 38,), (0,)), ((1 << 28, 2), (0, 1)), ((1 << 14, 1 << 15, 2), (0, 0, 1))]
)
def test_a_small_file_makes_no_large_tensor(tmp_path, shape, strides):
    """`convert` would write out every element, and `diff` look at each."""
    said = damaged(tmp_path, tensor(shape=shape, strides=strides), FOUR)
    assert f"a tensor of shape {list(shape)} repeats its elements" in said
    assert "from a storage of 16; at most 1073741824 more are read: save a smaller view of it" in said


def test_a_tensor_that_was_expanded_is_read_as_it_is(tmp_path):
    found = import_torch(archive(tmp_path, tensor(shape=(1 << 20, 2), strides=(0, 1)), FOUR))
    assert found.stride() == (0, 1)
    assert found[-1].tolist() == [1, 2]


def test_a_tensor_that_is_conjugated_again_and_again_pays_for_each_copy(tmp_path):
    body = tensor(shape=(1 << 18,), numel=1 << 18, tail=b"\x89N}X\x04\x00\x00\x00conj\x88s")[2:-1]
    storage = {"0": bytes(1 << 20)}
    assert len(import_torch(archive(tmp_path, b"\x80\x02](" + body * 3 + b"e.", storage))) == 3
    said = damaged(tmp_path, b"\x80\x02](" + body * 50 + b"e.", storage)
    assert "the same ones are copied again and again" in said


def test_what_a_message_shows_of_a_hostile_value_is_little(tmp_path):
    """Its whole text would have a quintillion of letters."""
    doublings = b")q\x000" + b"h\x00h\x00\x86q\x000" * 60 + b"h\x00"
    for data in (b"ctorch\nSize\n" + doublings + b"\x85R", doublings + b"Q"):
        assert len(damaged(tmp_path, b"\x80\x02" + data + b".")) < 1000
    large = b"\x8b" + struct.pack("<i", 60_000) + bytes(59_999) + b"\x01"
    assert "an integer of 479993 bits" in damaged(tmp_path, b"\x80\x02ctorch\nSize\n(" + large + b"l" * 0 + b"t\x85R.")


# -- costs


def load(data):
    return Unpickler(io.BytesIO(data), NAMES, None, "test").load()


def seconds_to_load(data):
    start = time.monotonic()
    result = load(data)
    return time.monotonic() - start, result


def test_an_object_that_is_named_often_is_one_object():
    doublings = b"\x80\x02)q\x000" + b"h\x00h\x00\x86q\x000" * 5000 + b"h\x00."
    seconds, _ = seconds_to_load(doublings)
    assert seconds < 5


def test_such_an_object_is_no_key():
    doublings = b"\x80\x02)q\x000" + b"h\x00h\x00\x86q\x000" * 60 + b"}h\x00K\x01s."
    with pytest.raises(UnsafePickle, match="a key of more than 65536 parts"):
        load(doublings)


def test_a_memo_with_large_numbers_takes_no_memory_for_those_between():
    assert load(b"\x80\x02K\x07r\xff\xff\xff\xffj\xff\xff\xff\xff\x86.") == (7, 7)


def test_deep_nesting_is_read_without_recursion():
    depth = 100_000
    nested = load(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".")
    for _ in range(depth - 1):
        (nested,) = nested
    assert nested == []


def test_the_number_of_steps_has_a_limit(monkeypatch):
    monkeypatch.setattr(unpickling, "MAX_STEPS", 1000)
    assert load(b"\x80\x02" + b"N0" * 400 + b"N.") is None
    with pytest.raises(UnsafePickle, match="more than 1000 pickle opcodes"):
        load(b"\x80\x02" + b"N0" * 600 + b"N.")


def test_a_pickle_has_a_limit_of_bytes():
    data = pickle.dumps("x" * 1000, protocol=4)
    assert Unpickler(io.BytesIO(data), NAMES, None, "test", limit=len(data)).load() == "x" * 1000
    with pytest.raises(CorruptFile):
        Unpickler(io.BytesIO(data), NAMES, None, "test", limit=900).load()


def test_every_opcode_of_plain_data_is_known():
    """What Python's own pickler writes for plain containers, in all its protocols from 2 on."""
    shared = ["x"]
    value = {
        "a": [None, True, 1, 300, 70000, -1, 1 << 40, 1 << 3000, 1.5, "s", "s" * 300, b"b" * 300, bytearray(b"c")],
        "b": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {1, 2}, frozenset([1])),
        "c": [shared, shared],
        "d": {str(number): number for number in range(2000)},
    }
    for protocol in (2, 3, 4, 5):
        data = pickle.dumps(value, protocol=protocol)
        assert load(data) == value, [code.name for code, *_ in pickletools.genops(data)]
