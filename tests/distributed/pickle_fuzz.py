"""Random damage for what reads pickles safely: run by test_hostile_objects.py, and by hand for longer.

    python tests/distributed/pickle_fuzz.py COUNT [SEED]

Every case must load, or be refused by the documented error; nothing may be patched, nor take more than its bytes are
worth. The last line is a JSON of what came out; the file FUZZ_CASE, if set, has the case under way, should it crash.
"""

import argparse
import collections
import datetime
import decimal
import fractions
import gc
import io
import json
import os
import pickle
import pickletools
import random
import resource
import signal
import sys
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np

import resilin
from resilin._base.pickles.unpickling import Unpickler
from resilin.checkpoint.torch_names import NAMES, Memory, StorageType
from resilin.core import dtype as dtypes
from resilin.core.device import device
from resilin.core.state.size import Size
from resilin.core.tensor import Parameter, Tensor
from resilin.distributed.wire import object_codec
from resilin.errors import CorruptFile, DistError

ROOM_BYTES = 512 << 20  # of addresses, beyond what the imports took
CASE_S = 20  # far more than any case needs, on a busy machine

RECORD = np.dtype([("a", "i4"), (("t", "b"), "f8", (2,))], align=True)
OTHERS = [
    np.dtype([("x", RECORD, (2,)), ("y", ">U3")]), np.dtype("M8[7ns]"), np.dtype("m8"),
    np.dtype("i4", metadata={"a": 1}), np.dtype("O"), np.dtype("S0"), np.dtype("V5"),
    np.dtype(("f4", (2, 3))), np.dtype(ml_dtypes.bfloat16),
    np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [0, 2], "itemsize": 10}),
    np.dtype(">f8"), RECORD,
]  # fmt: skip


def values():
    """One of everything that may be sent."""
    part = Parameter(resilin.ones(2))
    part.tag = {"a": [1]}
    state = collections.OrderedDict(a=1)
    state._metadata = {"": {"version": 1}}
    utc = datetime.UTC
    return [
        None, True, 1, -5, 1 << 300, 1.5, 1j, "x", b"x" * 300, bytearray(b"y" * 10), (1, 2, 3, 4), [1, [2]],
        {1: {2: 3}},
        {1, 2}, frozenset([1]), {(1, (2, 3)): 4, frozenset([1]): 2}, slice(1, None, 2), range(3), state,
        collections.defaultdict(list, {1: [2]}), collections.deque([1, 2], 3), collections.Counter("abc"),
        datetime.timedelta(1, 2, 3), datetime.datetime(2020, 1, 2, 3, 4, 5, 6, utc, fold=1),
        datetime.date(1999, 12, 31),
        datetime.time(1, 2, 3, 4, fold=1), fractions.Fraction(-1, 3), decimal.Decimal("1.50"), Size((1, 2)),
        device("cpu"), resilin.float32, part, resilin.ones(2, 3).bfloat16(), resilin.arange(6).reshape(2, 3).t(),
        np.float32(1.5), np.str_("h"), np.datetime64("2020-01-01T00:00", "ns"), np.zeros((), RECORD)[()],
        np.arange(6).reshape(2, 3).T, np.zeros((2, 3, 4)).transpose(0, 2, 1), np.arange(6)[::2], np.array(["a", "bcd"]),
        np.array([1, None, "x"], object), np.zeros(3, RECORD), np.zeros((2, 2), OTHERS[0]), np.zeros(3, ">f4"),
        np.ones(3, ml_dtypes.bfloat16), np.array([True, False]), *OTHERS,
    ]  # fmt: skip


# -- programs


def name(module, attribute):
    return b"c" + module.encode() + b"\n" + attribute.encode() + b"\n"


def plain(value):
    return pickle.dumps(value, protocol=2, fix_imports=False)[2:-1]


TABLES = [sorted(object_codec._NAMES), sorted(object_codec._NAMES), sorted(NAMES)]
STRANGE = [
    ("os", "system"), ("builtins", "eval"), ("builtins", "getattr"), ("numpy", "load"), ("numpy", "ufunc"),
    ("numpy", "ndarray.__setstate__"), ("builtins", "object"), ("copyreg", "_reconstructor"), ("numpy", ""),
    ("collections", "OrderedDict.fromkeys"), ("resilin.core.tensor", "Tensor.__init__"), ("", ""),
]  # fmt: skip
NUMBERS = [0, 1, 2, 3, 8, 63, 64, 255, -1, -5, 1 << 16, 1 << 31, (1 << 31) - 1, 1 << 33, 1 << 62, 1 << 63, 1 << 400]
TEXTS = [
    "", "<", ">", "|", "=", "f4", "V8", "U3", "S2", "O8", "M8", "M", "m8", "V", "b1", "f16", "V2147483647",
    "U999999999",
    "cpu", "cuda:0", "sim:1", "sim:99999", "latin1", "utf-8", "float32", "1/3", "1e999999999", "C", "F", "K", "grad",
    "_metadata", "_array", "__class__", "__dict__", "tag", "ns", "fs", "generic", "storage",
]  # fmt: skip
SIMPLE = (
    b"N", b"\x88", b"\x89", b")", b"]", b"}", b"\x8f", b"(", b"t", b"\x85", b"\x86", b"\x87", b"a", b"e",
    b"s", b"u", b"R",
    b"\x90", b"\x91", b"R", b"\x81", b"b", b"b", b"Q", b"\x94", b"0", b"1", b"2", b"2", b"\x93", b"\x92", b"o", b"\x97",
    b"\x98", b"\x82\x01", b"I1\n", b"L5L\n", b"F1\n", b"S'x'\n", b"V\\u1\n", b"p1\n", b"g1\n", b"ibuiltins\nset\n",
)  # fmt: skip


def some(rng, depth=2):
    """The program of a random value."""
    kind = rng.random()
    if kind < 0.25:
        return plain(rng.choice(NUMBERS))
    if kind < 0.4:
        return plain(rng.choice(TEXTS))
    if kind < 0.5:
        data = rng.choice(
            [b"", b"b", b"ns", bytes(8), b"\xff" * 16, bytes(40), b"\x07\xe4\x01\x02\x03\x04\x05\x00\x00\x06"]
        )
        return b"C" + bytes([len(data)]) + data
    if kind < 0.6:
        return rng.choice(
            [b"N", b"\x88", b"\x89", plain(1.5), plain((0,)), plain((2, 3)), plain((1 << 40,)), b"G" + bytes(8)]
        )
    if kind < 0.7:
        return name(*rng.choice(rng.choice(TABLES)))
    if kind < 0.8 or depth == 0:
        return b"h" + bytes([rng.choice([0, 0, 0, 1, 2, 3, 3, 4, 5])])
    if kind < 0.9:
        parts = b"".join(some(rng, depth - 1) for _ in range(rng.randrange(4)))
        return b"(" + parts + rng.choice([b"t", b"t", b"\x91"]) if rng.random() < 0.7 else b"](" + parts + b"e"
    return rng.choice([dtype, array, call])(rng, depth - 1)


def tuple_of(*parts):
    return b"(" + b"".join(parts) + b"t"


def dtype(rng, depth=2):
    """Of numpy, with a state in which some things are not as numpy writes them."""
    _, arguments, state = rng.choice(OTHERS).__reduce__()[:3]
    code = rng.choice([arguments[0], *TEXTS[5:18]])
    first = name("ml_dtypes", "bfloat16") if isinstance(code, type) else plain(code)
    made = (
        name("numpy", "dtype")
        + tuple_of(first, plain(False), plain(True))
        + b"R"
        + rng.choice([b"", b"\x94", b"q\x01"])
    )
    parts = [plain(part) for part in state]
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        parts[rng.randrange(len(parts))] = fields(rng, depth) if rng.random() < 0.3 else some(rng, max(0, depth - 1))
    if rng.random() < 0.1:
        parts = parts[: rng.randrange(len(parts))] * rng.randrange(1, 3)
    return made + tuple_of(*parts) + rng.choice([b"b", b"b", b"b", b"bb", b""])


def fields(rng, depth):
    made = b"}("
    for key in "ab"[: rng.randrange(3)]:
        field = dtype(rng, depth - 1) if depth > 0 else b"h\x01"
        made += plain(key) + tuple_of(
            field, plain(rng.choice(NUMBERS)), *([some(rng, 0)] if rng.random() < 0.3 else [])
        )
    return made + b"u"


def array(rng, depth=2):
    """Of numpy, in any of its ways, with lengths that do not fit."""
    way = rng.random()
    of = dtype(rng, max(0, depth - 1)) if rng.random() < 0.7 else plain(rng.choice(OTHERS))
    shape = plain(tuple(rng.choice(NUMBERS) for _ in range(rng.randrange(4)))) if rng.random() < 0.6 else some(rng, 0)
    data = some(rng, 0) if rng.random() < 0.5 else b"C" + bytes([rng.choice([0, 4, 8, 24])]) + bytes(24)
    if way < 0.3:
        return name("numpy._core.multiarray", "scalar") + tuple_of(of, data) + b"R"
    if way < 0.6:
        axes = [some(rng, 0)] if rng.random() < 0.5 else []
        return name("numpy._core.numeric", "_frombuffer") + tuple_of(data, of, shape, some(rng, 0), *axes) + b"R"
    begun = (
        name("numpy._core.multiarray", "_reconstruct")
        + tuple_of(name("numpy", "ndarray"), plain((0,)), plain(b"b"))
        + b"R"
    )
    rest = tuple_of(plain(1), shape, of, some(rng, 0), data if rng.random() < 0.7 else b"](NNe")
    return begun + rng.choice([b"", b"q\x02", b"2"]) + rest + b"b"


def call(rng, depth=2):
    arguments = [some(rng, max(0, depth - 1)) for _ in range(rng.randrange(4))]
    return (
        name(*rng.choice(rng.choice(TABLES) if rng.random() < 0.95 else STRANGE))
        + tuple_of(*arguments)
        + rng.choice([b"R", b"\x81"])
    )


KNOWN = [np.dtype("f4"), RECORD, np.zeros(2), b"12345678", bytearray(8), {"a": 1}, "<", {1}, np.array([None])]


def program(rng):
    known = [plain(rng.choice(KNOWN)) if rng.random() < 0.7 else some(rng, 0) for _ in range(3)]
    made = (
        b"\x80\x04("
        + b"".join(plain(one) + b"\x940" for one in [(1, 2), [3], 7])
        + b"".join(one + b"\x940" for one in known)
    )
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        way = rng.random()
        if way < 0.15:
            made += rng.choice(SIMPLE)
        elif way < 0.6:
            made += some(rng)
        else:
            made += rng.choice([dtype, array, call])(rng)
    return made + b"t."


# -- damage


def damaged(rng, corpus):
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice([1, 1, 2, 5])):
        how, at = rng.random(), rng.randrange(len(data))
        if how < 0.35:
            data[at] ^= 1 << rng.randrange(8)
        elif how < 0.5:
            data[at] = rng.randrange(256)
        elif how < 0.6:
            del data[at : at + rng.randrange(1, 5)]
        elif how < 0.7:
            data[at:at] = rng.choice([*SIMPLE, some(rng)])
        elif how < 0.75:
            del data[at:]
        else:
            data[:] = spliced(rng, bytes(data), rng.choice(corpus))
        if not data:
            return b""
    return bytes(data)


def spliced(rng, one, other):
    """Opcodes of `other` in the midst of those of `one`."""
    try:
        cuts = [[place for _, _, place in pickletools.genops(each)] for each in (one, other)]
    except Exception:  # noqa: BLE001 - pickletools raises anything for what is damaged by now
        return one[: len(one) // 2] + other[len(other) // 2 :]
    at, (start, stop) = rng.choice(cuts[0]), sorted(rng.choices(cuts[1], k=2))
    return one[:at] + other[start:stop] + one[rng.choice([at, at, rng.choice(cuts[0])]) :]


# -- what comes out


def memory(saved):
    """A storage for the tensors of PyTorch."""
    if type(saved) is not tuple or len(saved) < 2 or not isinstance(saved[1], StorageType):
        raise TypeError("no storage")
    return Memory(np.zeros(64, np.uint8), saved[1].dtype)


def of_torch(data):
    return Unpickler(io.BytesIO(data), NAMES, memory, "fuzz", states={}).load()


def of_ranks(data):
    return object_codec.load(data, weights_only=True)


PLAIN = (
    type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, slice, range,
    Tensor, Parameter, Size, device, np.ndarray, np.generic, np.dtype, dtypes.dtype, fractions.Fraction,
    decimal.Decimal, argparse.Namespace,
    datetime.date, datetime.time, datetime.timedelta, datetime.timezone, collections.deque, ml_dtypes.bfloat16,
)  # fmt: skip


def use(root):
    """Go through what came, as its receiver would."""
    waiting, seen = [root], set()
    while waiting:
        value = waiting.pop()
        assert isinstance(value, PLAIN), type(value)
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            assert value.size * value.dtype.itemsize <= 1 << 22
            repr(value), value.tobytes(), value.copy(), value == value
            value.tolist()
        elif isinstance(value, np.dtype):
            repr(value), hash(value), value == value, pickle.loads(pickle.dumps(value))
            assert value.itemsize < 1 << 31
        elif isinstance(value, Tensor) and value.numel() < 10_000:
            repr(value), value.detach().clone()
        elif isinstance(value, datetime.date | datetime.time | datetime.timedelta | fractions.Fraction | Size):
            repr(value), hash(value)
        if id(value) not in seen and isinstance(value, dict | list | tuple | set | frozenset | collections.deque):
            seen.add(id(value))
            waiting.extend(value)
            waiting.extend(value.values() if isinstance(value, dict) else ())
        if id(value) not in seen and isinstance(value, argparse.Namespace):
            seen.add(id(value))
            waiting.extend(vars(value).values())


def patched():
    """What a sender could change of modules and classes, by name."""
    found = {}
    for module in list(sys.modules):
        if module.partition(".")[0] in (
            "builtins",
            "numpy",
            "resilin",
            "collections",
            "datetime",
            "copyreg",
            "ml_dtypes",
        ):
            for key, value in list(vars(sys.modules[module]).items()):
                found[module, key] = id(value)
                if isinstance(value, type):
                    found |= {(module, key, inner): id(one) for inner, one in vars(value).items()}
    for one in (*dtypes.ALL, *dtypes.ALL_COMPLEX):
        found[one] = (
            (*vars(one).items(), repr(one.np.__reduce__())) if hasattr(one, "__dict__") else repr(one.np.__reduce__())
        )
    return found


def main(count, seed):
    rng = random.Random(seed)
    gc.collect()
    corpus = [pickle.dumps(value, protocol=protocol) for value in values() for protocol in (2, 3, 4, 5)]
    corpus += [pickle.dumps(rng.sample(values(), 5), protocol=5) for _ in range(20)]
    for data in corpus[3::4]:
        use(of_ranks(data))
    for data in (damaged(rng, corpus) for _ in range(50)):
        ask(of_ranks, data), ask(of_torch, data)  # whatever is loaded late, is loaded
    before, peak = patched(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM_BYTES, now + ROOM_BYTES))
    outcomes = collections.Counter()
    case = os.open(os.environ.get("FUZZ_CASE", os.devnull), os.O_WRONLY | os.O_CREAT)
    for _ in range(count):
        data = damaged(rng, corpus) if rng.random() < 0.4 else program(rng)
        os.pwrite(case, data + b"\0" * 50, 0)
        for read in (of_ranks, of_torch):
            signal.alarm(CASE_S)  # ends the process
            outcomes[read.__name__, ask(read, data)] += 1
            signal.alarm(0)
    after = patched()
    changed = [str(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) << 10
    told = {" ".join(key): times for key, times in outcomes.items()}
    print(json.dumps({"outcomes": told, "changed": changed, "grown_bytes": grown}))


def ask(read, data):
    """How it went; AssertionError for what is not documented."""
    try:
        found = read(data)
    except (DistError, CorruptFile) as error:
        return type(error).__name__ if len(str(error)) < 4000 else "LongError"
    except BaseException as error:
        raise AssertionError(f"{read.__name__}: {data!r}") from error
    try:
        use(found)
    except BaseException as error:
        raise AssertionError(f"{read.__name__} made of {data!r} what cannot be used") from error
    return "loads"


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
