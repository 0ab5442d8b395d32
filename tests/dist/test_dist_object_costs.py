"""What a sender of objects can make a receiver with weights_only=True spend: no more than what it sends is worth."""

import json
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hostile import FLOATS, array, call, dtype, load, plain, refusal, sent

from resilin.errors import DistError

FUZZ = Path(__file__).with_name("pickle_fuzz.py")


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


DEEP = """
import collections, pickle, sys
from resilin.dist import pickled
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
for name, (begin, end) in kinds.items():
    for depth, fails in ((900, False), (100_000, name in ("deque", "default", "array"))):
        for stops in (b".", b"") if fails else (b".",):
            data = b"\\x80\\x04" + dtype + b"r\\x00\\x00\\x00\\x000" + begin * depth + b"N" + end * depth + stops
            try:
                found = pickled.load(data, weights_only=True)
                assert stops and not fails, name
                del found
            except DistError as error:
                assert not stops or fails and "directly hold others of them" in str(error), (name, error)
print("fine")
"""


def test_deep_nesting_overflows_no_stack_where_it_is_read_refused_or_freed():
    done = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr[-2000:]


def test_random_damage_crashes_patches_and_allocates_nothing(tmp_path):
    """More of it, and other seeds: python tests/dist/pickle_fuzz.py COUNT SEED."""
    case = tmp_path / "case"
    done = subprocess.run(
        [sys.executable, FUZZ, "2500", "1"],
        capture_output=True,
        text=True,
        timeout=110,
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
