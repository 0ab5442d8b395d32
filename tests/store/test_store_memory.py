"""The memory store with a clock that the test owns, and its state machine against a naive model."""

from __future__ import annotations

import threading
from contextlib import suppress

import extent
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resilin.errors import Compacted, UsageError
from resilin.store import Compare, MemoryStore, Op
from resilin.store.base import prefix_range, to_bytes, to_text
from resilin.store.state import StoreState
from resilin.testing.clock import FakeClock
from resilin.testing.patience import PATIENCE_S
from resilin.testing.recorder import Recorder


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def root(clock):
    with MemoryStore(clock) as store:
        yield store


def test_a_lease_outlives_its_session_by_its_time_to_live(root, clock):
    session = root.session()
    root.put("other", b"")
    session.put("node", b"", session.lease(5.0))
    clock.advance(1000.0)
    assert root.get("node") is not None
    session.close()
    clock.advance(4.999)
    assert root.get("node") is not None
    clock.advance(0.001)
    assert root.get("node") is None
    assert root.get("other") is not None


def test_watchers_are_told_of_an_expiry_without_any_call(root, clock):
    session, seen = root.session(), Recorder()
    session.put("node", b"", session.lease(5.0))
    with root.watch("node", seen.on_events):
        session.close()
        clock.advance(5.0)
        (event,) = seen.wait(1)
    assert event.kind == "delete"


def test_the_wall_clock_does_not_matter(root, clock):
    session = root.session()
    session.put("node", b"", session.lease(5.0))
    session.close()
    clock.set_wall(4e9)
    assert root.get("node") is not None


def test_the_owner_of_a_lease_that_others_revoke_is_told_once(root):
    told = threading.Semaphore(0)
    lease = root.lease(5.0, told.release)
    root.put("node", b"", lease)
    assert root.hub.revoke(lease.id)
    assert told.acquire(timeout=PATIENCE_S)
    assert not lease.alive
    assert root.get("node") is None
    lease.revoke()
    assert not told.acquire(timeout=0.05)


def test_history_is_bounded_by_events_and_by_bytes():
    with MemoryStore(FakeClock(), history_events=10) as store:
        for number in range(100):
            store.put("k", b"%d" % number)
        seen = Recorder()
        store.watch("k", seen.on_events, start_revision=2, on_error=seen.on_error)
        error = seen.wait_error()
        assert isinstance(error, Compacted)
        store.watch("k", seen.on_events, start_revision=error.revision)
        assert [event.kv.value for event in seen.wait(10)] == [b"%d" % number for number in range(90, 100)]
    state = StoreState(history_bytes=1000)
    for _ in range(100):
        state.txn((), (Op.put("k", bytes(100)),))
    assert len(state.history) < 10


def test_a_revision_in_the_past_can_be_read():
    state = StoreState()
    for name in ("a", "b", "c"):
        state.txn((), (Op.put(name, name.encode()),))
    state.txn((), (Op.put("a", b"2"), Op.delete("b")))
    assert [kv.value for kv in state.range("\0", "\0", revision=4).kvs] == [b"a", b"b", b"c"]
    assert [kv.value for kv in state.range("\0", "\0", revision=3).kvs] == [b"a", b"b"]
    assert [kv.value for kv in state.range("\0", "\0").kvs] == [b"2", b"c"]


def test_a_watch_from_a_future_revision_waits_for_it(root):
    seen = Recorder()
    revision = root.put("k", b"0")
    root.watch("k", seen.on_events, start_revision=revision + 3)
    for number in range(1, 5):
        root.put("k", b"%d" % number)
    assert [event.kv.value for event in seen.wait(2)] == [b"3", b"4"]


def test_compare_refuses_what_cannot_be_compared():
    with pytest.raises(UsageError, match="operand of type bytes"):
        Compare("k", "value", "=", 3)
    with pytest.raises(UsageError, match="expected a target"):
        Compare("k", "size", "=", 3)


def test_keys_that_are_no_text_survive():
    raw = b"\xff\xfe/\x80"
    assert to_bytes(to_text(raw)) == raw
    assert prefix_range("") == ("\0", "\0")
    assert to_bytes(prefix_range(to_text(b"a\xff\xff"))[1]) == b"b"
    assert prefix_range(to_text(b"\xff"))[1] == "\0"


def test_closing_leaves_no_thread():
    before = set(threading.enumerate())
    with MemoryStore() as store:
        store.watch("", lambda events: None)
        session = store.session()
        session.lease(5.0)
        session.close()
        assert len(set(threading.enumerate()) - before) >= 2
    assert set(threading.enumerate()) - before == set()


# -- the state machine against a dictionary

_KEYS = st.sampled_from(["a", "a/1", "a/2", "b", "é"])
_VALUES = st.binary(max_size=2)
_WRITES = st.one_of(
    st.tuples(st.just("put"), _KEYS, _VALUES),
    st.tuples(st.just("delete"), _KEYS, st.just(b"")),
    st.tuples(st.just("delete_prefix"), st.sampled_from(["a", "a/", "", "x"]), st.just(b"")),
    st.tuples(st.just("compact"), st.just(""), st.just(b"")),
)


class Model:
    """The same store, naively: a full copy of the data for every revision."""

    def __init__(self) -> None:
        self.revisions = {1: {}}
        self.now = 1

    def write(self, kind: str, key: str, value: bytes) -> None:
        data = dict(self.revisions[self.now])
        if kind == "put":
            created, version = (data[key][1], data[key][3]) if key in data else (self.now + 1, 0)
            data[key] = (value, created, self.now + 1, version + 1)
        else:
            gone = [name for name in data if name == key or (kind == "delete_prefix" and name.startswith(key))]
            if not gone:
                return
            for name in gone:
                del data[name]
        self.now += 1
        self.revisions[self.now] = data

    def rows(self, revision: int) -> list[tuple]:
        return sorted((name.encode(), *row) for name, row in self.revisions[revision].items())


def apply(state: StoreState, kind: str, key: str, value: bytes) -> None:
    if kind == "compact":
        with suppress(Compacted):
            state.compact(max(1, state.revision - 3))
        return
    make = {"put": lambda: Op.put(key, value), "delete": lambda: Op.delete(key)}
    state.txn((), (make.get(kind, lambda: Op.delete_prefix(key))(),))


def rows(state: StoreState, revision: int = 0) -> list[tuple]:
    kvs = state.range("\0", "\0", revision).kvs
    return [(to_bytes(kv.key), kv.value, kv.create_revision, kv.mod_revision, kv.version) for kv in kvs]


@settings(max_examples=extent.examples(150), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(_WRITES, max_size=30))
def test_the_state_machine_equals_a_naive_model_at_every_revision(writes):
    state, model = StoreState(), Model()
    for write in writes:
        apply(state, *write)
        if write[0] != "compact":
            model.write(*write)
        assert state.revision == model.now
    assert rows(state) == model.rows(model.now)
    for revision in range(state.first_revision, state.revision + 1):
        assert rows(state, revision) == model.rows(revision)


@settings(max_examples=extent.examples(100), deadline=None, derandomize=True)
@given(st.lists(_WRITES.filter(lambda write: write[0] != "compact"), max_size=20), st.integers(2, 20))
def test_events_from_any_revision_rebuild_the_state(writes, start):
    state = StoreState()
    for write in writes:
        apply(state, *write)
    data = {row[0]: row[1] for row in rows(state, min(start - 1, state.revision))}
    for batch in state.since(start):
        for event in batch.events:
            if event.kind == "put":
                data[to_bytes(event.kv.key)] = event.kv.value
            else:
                del data[to_bytes(event.kv.key)]
    assert data == {row[0]: row[1] for row in rows(state)}
