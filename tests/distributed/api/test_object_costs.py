"""What a sender of objects can make a receiver with weights_only=True spend: no more than what it sends is worth."""

import json
import os
import pickle
import struct
import subprocess
import sys
import time
import tracemalloc
from collections import OrderedDict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import extent
import numpy as np
import pytest
from hostile import FLOATS, array, call, dtype, load, plain, refusal, sent

from resilin.errors import DistError

FUZZ = Path(__file__).parents[1] / "pickle_fuzz.py"


def test_36_bytes_allocate_little():
    for data in (
        sent(call("builtins", "bytearray", plain(1 << 33))),
        sent(b"\x96" + struct.pack("<Q", 1 << 33)),
        sent(array([plain(1), plain((1 << 33,)), dtype("b1"), plain(False), b"C\x00"])),
    ):
        tracemalloc.start()
        refusal(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


def shared(one, use, times):
    """A pickle that makes `one`, and does `use` with it many times."""
    return sent(one, b"q\x630](", (use + b"0") * times, b"e")


@pytest.mark.parametrize(
    ("one", "use"),
    {
        "bytes": (plain("x" * 100_000), call("_codecs", "encode", b"h\x63")),
        "bytearrays": (b"B" + struct.pack("<I", 100_000) + bytes(100_000), call("builtins", "bytearray", b"h\x63")),
        "sets": (plain(list(range(20_000))), call("builtins", "set", b"h\x63")),
        "deques": (plain(list(range(20_000))), call("collections", "deque", b"h\x63")),
        "counters": (plain(dict.fromkeys(range(20_000), 1)), call("collections", "Counter", b"h\x63")),
        "arrays": (
            b"B" + struct.pack("<I", 100_000) + bytes(100_000),
            array([plain(1), plain((25_000,)), FLOATS, plain(False), b"h\x63"]),
        ),
        "objects": (plain([None] * 100_000), array([plain(1), plain((100_000,)), dtype("O8"), plain(False), b"h\x63"])),
        "keys": (plain(tuple(range(50_000))), b"}h\x63Ns"),
    }.values(),
)
def test_a_pickle_pays_for_copies_of_what_it_names_again(one, use):
    few = load(shared(one, use, 1).replace(b"0e.", b"e."))
    assert len(few) == 1
    assert "it makes far more of its bytes than they are" in refusal(shared(one, use, 5_000))


KEPT, USED = b"r" + struct.pack("<I", 1 << 30), b"j" + struct.pack("<I", 1 << 30)
LONGS = [b"\x8b" + struct.pack("<i", 65_536) + bytes([one]) * 65_535 + b"\x01" for one in (3, 7)]


def traced(data):
    """What reading `data` ends with, how much memory it took, and how long."""
    tracemalloc.start()
    began = time.process_time()
    try:
        return refusal(data), tracemalloc.get_traced_memory()[1], time.process_time() - began
    finally:
        tracemalloc.stop()


def test_a_key_of_many_parts_is_refused_before_they_are_laid_out():
    """Of 225 million parts, named in 45 KB."""
    key = (b"(", b"N" * 15_000, b"tq\x000(", b"h\x00" * 15_000, b"t")
    said, taken, _ = traced(sent(b"}", *key, b"Ns"))
    assert "a key of more than 65536 parts or 100 levels" in said
    assert taken < 8 << 20


@pytest.mark.parametrize(("module", "kind"), [("fractions", "Fraction"), ("builtins", "range")])
def test_divisions_of_long_integers_are_paid_for(module, kind):
    """Each would take 0.6 seconds, and 7 bytes."""
    two = b"".join([one + b"q" + bytes([place]) + b"0" for place, one in enumerate(LONGS)])
    said, _, took = traced(sent(two, b"](", call(module, kind, b"h\x00h\x01") * 200, b"e"))
    assert "it makes far more of its bytes than they are" in said
    assert took < 2
    many = [Fraction(3**2500 + n, 7**1400) for n in range(300)]
    spans = [range(0, 3**2500 + n, 7**1400) for n in range(300)]
    assert load(pickle.dumps([many, spans])) == [many, spans]


def test_a_dictionary_is_made_of_lists_of_pairs_alone():
    made = call("collections", "OrderedDict", b"h\x63")
    for pairs in (np.zeros((60_000, 2), int), [np.zeros(2)], ["ab"], {(1, 2): 3}):
        assert "a set or dictionary is made of a list" in refusal(sent(plain(pairs), b"q\x630", made))
    for pairs in ([[1, 2], [3, 4]], [(1, 2), (3, 4)], ((1, 2), (3, 4)), []):
        assert load(sent(plain(pairs), b"q\x630", made)) == OrderedDict(pairs)


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 20_000])
def test_items_are_paid_by_what_they_take_where_they_are_copied_again(count):
    """A first copy is paid for by what the items are written with: 60 copies of 350 KB took 371 MB."""
    pairs = plain([[n, n] for n in range(count)])
    once = call("collections", "OrderedDict", USED)
    assert load(sent(pairs, KEPT, b"0", once)) == OrderedDict((n, n) for n in range(count))
    data = sent(pairs, KEPT, b"0](", once * (1_000_000 // count), b"e")
    said, taken, _ = traced(data)
    assert "it makes far more of its bytes than they are" in said
    assert taken < 32 * len(data) + (8 << 20)


def test_fields_that_lie_over_one_another_are_paid_by_their_bytes():
    """Of 2,000 fields over the same 400,000 bytes each is looked through for letters that are none."""
    for form, size in (("U100000", 400_000), ("?", 1)):
        names = [f"f{n}" for n in range(2_000)]
        fields = {"names": names, "formats": [form] * len(names), "offsets": [0] * len(names), "itemsize": size}
        data = pickle.dumps(np.zeros(400_000 // size, np.dtype(fields)))
        assert "it makes far more of its bytes than they are" in refusal(data)
    apart = np.zeros(2_000, [(f"f{n}", "U10") for n in range(100)])
    assert load(pickle.dumps(apart)).tobytes() == apart.tobytes()


def test_notes_of_a_dtype_of_times_are_paid_for():
    code = call("numpy", "dtype", plain("M8"), plain(False), plain(True))
    unit = b"(C\x01sK\x01K\x01K\x01t\x86"
    state = b"(" + plain(4) + plain("<") + b"NNN" + plain(-1) * 2 + plain(0) + USED + unit + b"tb"
    notes = plain({f"k{n}": n for n in range(5_000)})
    assert len(load(sent(notes, KEPT, b"0", code, state)).metadata) == 5_000
    assert "it makes far more" in refusal(sent(notes, KEPT, b"0](", (code + state) * 100, b"e"))


def test_long_numbers_as_keys_are_paid_for_or_refused():
    """Their hash is made anew each time."""
    many = sent(plain(Decimal("1" * 60_000)), KEPT, b"0](", (b"}" + USED + b"Ns") * 1_000, b"e")
    assert "it makes far more of its bytes than they are" in refusal(many)
    for large in (Fraction(1, 3**3000), Fraction(3**3000, 2), range(3**3000), (3**3000,)):
        assert "an integer of more than 4096 bits" in refusal(pickle.dumps({large: 1}))
    for fine in (Fraction(3**2500, 7**1400), range(3**2500), Decimal("1" * 60_000)):
        assert load(pickle.dumps({fine: 1})) == {fine: 1}


@pytest.mark.parametrize("form", ["integers", "fractions", "tuples", "decimals"])
def test_keys_that_a_sender_gives_one_hash_are_refused(form):
    """Of 100,000 such keys a dict would compare each with all others."""
    modulus = sys.hash_info.modulus
    made = {
        "integers": lambda n: 1 + n * modulus,
        "fractions": lambda n: Fraction(1 + n * modulus, 1) + Fraction(0, 1),
        "tuples": lambda n: (1 + n * modulus,),
        "decimals": lambda n: Decimal(1 + n * modulus),
    }[form]
    for count, fails in ((60, False), (70, True)):
        keys = {made(n): n for n in range(count)}
        assert len({hash(key) for key in keys}) == 1
        if fails:
            assert "more than 64 keys of one hash" in refusal(pickle.dumps(keys))
        else:
            assert load(pickle.dumps([keys, keys, dict(keys)])) == [keys] * 3


def test_an_object_that_is_named_often_is_one_object_and_no_key():
    doublings = (
        b")\x940" + b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x940" for n in range(200)) + b"h\xc8"
    )
    found = load(sent(doublings))
    assert found[0] is found[1]
    assert "a key of more than 65536 parts or 100 levels" in refusal(sent(b"}", doublings, b"Ns"))
    with pytest.raises(DistError, match="damaged"):  # in a message, it is cut
        load(sent(call("resilin", "Size", doublings)))


NESTED = ["list", "dict", "tuple", "deque", "default", "counter", "array"]
DEEP = """
import collections, pickle, sys
from resilin.distributed.wire import object_codec
from resilin.errors import DistError
kinds = {
    "list": (b"]", b"a"), "dict": (b"}K\\x00", b"s"), "tuple": (b"", b"\\x85"),
    "deque": (b"ccollections\\ndeque\\n)R", b"a"), "default": (b"ccollections\\ndefaultdict\\n)RK\\x00", b"s"),
    "counter": (b"ccollections\\nCounter\\n)RK\\x00", b"s"),
    "array": (
        b"cnumpy._core.multiarray\\n_reconstruct\\n(cnumpy\\nndarray\\nK\\x00\\x85C\\x01btR"
        b"(K\\x01K\\x01\\x85h\\x00\\x89]",
        b"atb",
    ),
}
dtype = pickle.dumps(__import__("numpy").dtype("O"), protocol=2, fix_imports=False)[2:-1]
for name, (begin, end) in ((name, kinds[name]) for name in sys.argv[1:]):
    for depth, fails in ((900, False), (100_000, name in ("deque", "default", "array"))):
        for stops in (b".", b"") if fails else (b".",):
            data = b"\\x80\\x04" + dtype + b"r\\x00\\x00\\x00\\x000" + begin * depth + b"N" + end * depth + stops
            try:
                found = object_codec.load(data, weights_only=True)
                assert stops and not fails, name
                del found
            except DistError as error:
                assert not stops or fails and "directly hold others of them" in str(error), (name, error)
print("fine")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", extent.short(NESTED, of=["tuple", "deque"]))
def test_deep_nesting_overflows_no_stack_where_it_is_read_refused_or_freed(kind):
    done = subprocess.run([sys.executable, "-c", DEEP, kind], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr[-2000:]


@pytest.mark.slow
def test_random_damage_crashes_patches_and_allocates_nothing(tmp_path, turns):
    """More of it, and other seeds: python tests/distributed/pickle_fuzz.py COUNT SEED."""
    case = tmp_path / "case"
    done = subprocess.run(
        [sys.executable, FUZZ, str(turns(short=1500, full=30_000)), "1"],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "FUZZ_CASE": str(case)},
    )
    assert done.returncode == 0, (done.stderr[-3000:], case.read_bytes())
    told = json.loads(done.stdout)
    assert told["changed"] == []
    assert told["grown_bytes"] < 256 << 20
    assert told["outcomes"].keys() == {
        f"{read} {how}"
        for read, hows in (("of_ranks", ("loads", "DistError")), ("of_torch", ("loads", "UnsafePickle", "CorruptFile")))
        for how in hows
    }
