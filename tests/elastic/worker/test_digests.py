"""One hash for equal state, in whatever process it is and however it came to be; another for any other state."""

import collections
import copy
import dataclasses
import enum
import functools
import itertools
import pickle
import random
import subprocess
import sys
import threading

import numpy as np
import pytest

from resilin.elastic.worker.digests import DEEPEST, digest
from resilin.errors import StateError

WORDS = [f"word {number}" for number in range(40)]
IN_ANOTHER = """
import pathlib, pickle, sys
from resilin.elastic.worker.digests import DEEPEST, digest
print(digest(pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())).hex())
"""


class Mood(enum.Enum):
    CALM = "calm"
    WILD = "wild"


@dataclasses.dataclass
class Box:
    content: object
    label: str = "box"


class Slotted:
    __slots__ = ("one", "two")

    def __init__(self, one, two):
        self.one, self.two = one, two


class Person:
    """Knows others, who know it."""

    def __init__(self, name):
        self.name, self.known = name, set()


class Numbered(int):
    """With more than its value."""


def named():
    """Found by its name."""


def crowd(*names):
    people = [Person(name) for name in names]
    for each in people:
        each.known.update(other for other in people if other is not each)
    return people[0]


def queue(*names):
    people = [Person(name) for name in names]
    for each, other in itertools.pairwise(people):
        each.known.add(other)
        other.known.add(each)
    return people[0]


def numbered(value, label):
    number = Numbered(value)
    number.label = label
    return number


def record(between):
    """One and two, with bytes `between` them."""
    fields = np.full(16, between, np.uint8).view({"names": ["a", "b"], "formats": ["u1", "f8"], "offsets": [0, 8]})
    fields["a"], fields["b"] = 1, 2
    return fields


def ring():
    box = Box(None)
    box.content = [box]
    return box


KINDS = {
    "set": lambda: set(WORDS),
    "frozenset in a tuple": lambda: (frozenset(WORDS), 1),
    "set of sets": lambda: {frozenset(WORDS[:3]), frozenset(WORDS[3:])},
    "set in an object": lambda: Box({"seen": set(WORDS)}),
    "keys of several types": lambda: {1: "a", "b": 2.0, None: 3, frozenset(WORDS): 4, (1, "x"): 5},
    "slots": lambda: Slotted(set(WORDS), b"x"),
    "enum": lambda: Mood.WILD,
    "deque": lambda: collections.deque(WORDS, maxlen=50),
    "counter": lambda: collections.Counter(WORDS),
    "array": lambda: np.arange(12.0).reshape(3, 4).T,
    "array of objects": lambda: np.array([set(WORDS), None], dtype=object),
    "numpy scalar": lambda: np.float32(0.1),
    "dtype": lambda: np.dtype("float16"),
    "numpy generator": lambda: np.random.default_rng(5),
    "generator": lambda: random.Random(5),
    "function": lambda: named,
    "builtin": lambda: [len, Box, np.add],
    "partial": lambda: functools.partial(named, set(WORDS)),
    "cycle": ring,
    "cycle of a list": lambda: (lambda each: each.append(each) or each)([1]),
    "people who know one another": lambda: crowd(*WORDS[:30]),
    "a queue that looks both ways": lambda: queue(*WORDS[:30]),
    "masked": lambda: np.ma.array([1.0, 2.0], mask=[False, True]),
    "record": lambda: record(0),
    "number with a label": lambda: numbered(1, {"x", "y"}),
    "strings of numpy": lambda: np.array(WORDS, dtype=np.dtypes.StringDType()),
    "range": lambda: range(1, 10, 2),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_has_the_same_hash(kind):
    thing = KINDS[kind]()
    assert digest(copy.deepcopy(thing)) == digest(thing) == digest(pickle.loads(pickle.dumps(thing)))


def test_no_two_kinds_have_the_same_hash():
    assert len({digest(make()) for make in KINDS.values()}) == len(KINDS)


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_another_process_that_hashes_text_otherwise_finds_the_same(tmp_path, seed):
    here = {"sets": [set(WORDS), frozenset(WORDS)], "queue": collections.deque([set(WORDS)]), frozenset(WORDS): 1}
    file = tmp_path / "state"
    file.write_bytes(pickle.dumps(here))
    command = [sys.executable, "-c", IN_ANOTHER, str(file)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed})
    assert told.stdout.strip() == digest(here).hex()


def test_equal_objects_may_be_one_or_two():
    text = "".join(["sha", "red"])
    assert digest(Box(text, text)) == digest(Box("shared", "".join(["sha", "red"])))


def nested(thing, times):
    for _ in range(times):
        thing = [thing]
    return thing


@pytest.mark.parametrize("depth", range(DEEPEST - 3, DEEPEST + 4))
def test_that_equal_parts_are_one_changes_nothing_however_deep_they_lie(depth):
    shared = nested({"lr": 0.1}, 20)
    one = [shared, nested(shared, depth - 20)]
    two = [copy.deepcopy(shared), nested(copy.deepcopy(shared), depth - 20)]
    assert digest(one) == digest(two) == digest(one[:]) != digest(one[::-1])


def test_what_is_met_on_many_ways_is_taken_apart_once():
    one, other = Box(["x"]), Box(["x"])
    for _ in range(200):
        one, other = Box([one, one]), Box([other, copy.copy(other)])
    assert digest(one) == digest(other)


def test_a_circle_may_be_drawn_longer():
    once, twice = Box(None), Box(Box(None))
    once.content, twice.content.content = once, twice
    assert digest(once) == digest(twice)


def test_what_lies_between_the_fields_of_a_record_is_no_part_of_it():
    assert digest(record(0)) == digest(record(255))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a"}, {"b"}),
        ({"a"}, frozenset({"a", "b"})),
        (set(), []),
        ({1}, {"1"}),
        (Box({"a"}), Box({"b"})),
        (Box(1), Slotted(1, "box")),
        (Mood.CALM, Mood.WILD),
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (np.float32(1), np.float64(1)),
        (np.zeros(4, np.float32), np.zeros(4, np.int32)),
        ([[1], 2], [[1, 2]]),
        (collections.deque([1], 3), collections.deque([1], 4)),
        (random.Random(1), random.Random(2)),
        (crowd("a", "b", "c"), crowd("a", "b", "d")),
        (crowd("a", "a", "a"), crowd("a", "a")),
        (queue(*"aaaaaaaa"), queue(*"aaaaaaab")),
        (queue(*"aaaaaaac"), queue(*"aaaaaaab")),
        (queue(*"aaaaaaaa"), queue(*"aaaaaaaaa")),
        (np.ma.array([1.0, 2.0], mask=[True, False]), np.ma.array([1.0, 2.0], mask=[False, True])),
        (numbered(1, "a"), numbered(1, "b")),
        ({"a": [1], "b": [2]}, {"a": [2], "b": [1]}),
        ([b"1;", 2], [b"1", 2]),
    ],
)
def test_what_differs_has_another_hash(one, other):
    assert digest(one) != digest(other)


def test_what_cannot_be_handed_over_is_refused():
    with pytest.raises(StateError, match=r"state holds a lambda .*define it with `def`"):
        digest({"rule": lambda: None})
    with pytest.raises(TypeError, match="cannot pickle"):
        digest({"lock": threading.Lock()})
