"""The conformance suite of `resilin.store.Store`: what every implementation must do, as tests to inherit.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def make_store(self):
            ...
            yield factory      # factory() -> Store: another user of the same data; closing is the suite's business

Tests use a prefix of their own, so the data may be shared and old.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from resilin._base.clock import SYSTEM
from resilin.errors import Compacted, LeaseLost, StoreError, UsageError
from resilin.store.base import Compare, Event, Op, Store
from resilin.testing.patience import PATIENCE_S
from resilin.testing.recorder import Recorder

MakeStore = Callable[[], Store]


class StoreConformance:
    """Inherit it and give a `make_store` fixture."""

    @pytest.fixture
    def prefix(self) -> str:
        """Keys of this test start with this."""
        return f"/conformance/{secrets.token_hex(4)}/"

    @pytest.fixture
    def another(self, make_store: MakeStore) -> Iterator[MakeStore]:
        """Makes stores that are closed after the test."""
        made: list[Store] = []

        def make() -> Store:
            made.append(make_store())
            return made[-1]

        yield make
        for store in made:
            store.close()

    @pytest.fixture
    def store(self, another: MakeStore) -> Store:
        """One user of the data."""
        return another()

    # -- keys

    def test_a_missing_key_is_none(self, store: Store, prefix: str) -> None:
        assert store.get(prefix + "nothing") is None

    def test_an_entry_knows_who_made_it_and_how_often_it_was_written(self, store: Store, prefix: str) -> None:
        first = store.put(prefix + "a", b"1")
        second = store.put(prefix + "a", b"2")
        kv = store.get(prefix + "a")
        assert kv is not None
        assert (kv.key, kv.value, kv.create_revision, kv.mod_revision) == (prefix + "a", b"2", first, second)
        assert (kv.version, kv.lease) == (2, 0)

    def test_every_write_gets_the_next_revision_and_reads_get_none(self, store: Store, prefix: str) -> None:
        first = store.put(prefix + "a", b"")
        store.get(prefix + "a")
        assert store.put(prefix + "b", b"") == first + 1

    @pytest.mark.parametrize("value", [b"", b"\0\xff\n", bytes(512 << 10)], ids=["empty", "binary", "512 KiB"])
    def test_values_are_any_bytes(self, store: Store, prefix: str, value: bytes) -> None:
        store.put(prefix + "v", value)
        kv = store.get(prefix + "v")
        assert kv is not None
        assert kv.value == value

    @pytest.mark.parametrize("value", ["text", bytearray(b"x"), memoryview(b"x"), 1, None])
    def test_a_value_that_is_not_bytes_is_refused(self, store: Store, prefix: str, value: Any) -> None:
        with pytest.raises(UsageError, match=f"expected a value of type bytes, got {type(value).__name__}"):
            store.put(prefix + "v", value)
        with pytest.raises(UsageError, match="expected a value of type bytes"):
            store.compare_and_put(prefix + "v", 0, value)
        assert store.get(prefix + "v") is None

    @pytest.mark.parametrize("key", [b"bytes", 1, None, ""])
    def test_a_key_that_is_no_text_or_empty_is_refused(self, store: Store, key: Any) -> None:
        for call in (
            lambda: store.put(key, b""),
            lambda: store.get(key),
            lambda: store.delete(key),
            lambda: store.compare_and_put(key, 0, b""),
            lambda: store.txn((Compare(key, "version", "=", 0),), ()),
        ):
            with pytest.raises(UsageError, match=r"expected a key of (type str, got|at least one character)"):
                call()

    @pytest.mark.parametrize("prefix", [b"bytes", 1, None])
    def test_a_prefix_that_is_no_text_is_refused(self, store: Store, prefix: Any) -> None:
        for call in (
            lambda: store.range(prefix),
            lambda: store.delete_prefix(prefix),
            lambda: store.watch(prefix, lambda events: None),
        ):
            with pytest.raises(UsageError, match="expected a prefix of type str"):
                call()

    def test_a_range_is_ordered_and_complete_and_says_its_revision(self, store: Store, prefix: str) -> None:
        for name in ("b", "a", "c/d", "ä", "Z"):
            last = store.put(prefix + name, name.encode())
        kvs, revision = store.range(prefix)
        assert [kv.key.removeprefix(prefix) for kv in kvs] == ["Z", "a", "b", "c/d", "ä"]
        assert revision == last
        assert [kv.key.removeprefix(prefix) for kv in store.range(prefix + "c")[0]] == ["c/d"]
        assert store.range(prefix + "nothing")[0] == []

    def test_a_prefix_ends_where_the_next_one_starts(self, store: Store, prefix: str) -> None:
        for name in ("job", "job/1", "job0", "jo"):
            store.put(prefix + name, b"")
        assert [kv.key.removeprefix(prefix) for kv in store.range(prefix + "job/")[0]] == ["job/1"]

    def test_the_empty_prefix_is_everything(self, store: Store, prefix: str) -> None:
        store.put(prefix + "a", b"")
        assert prefix + "a" in [kv.key for kv in store.range("")[0]]

    def test_delete_says_whether_the_key_was_there(self, store: Store, prefix: str) -> None:
        store.put(prefix + "a", b"")
        assert store.delete(prefix + "a") is True
        assert store.delete(prefix + "a") is False
        assert store.get(prefix + "a") is None

    def test_a_key_made_again_starts_over(self, store: Store, prefix: str) -> None:
        store.put(prefix + "a", b"")
        store.delete(prefix + "a")
        again = store.put(prefix + "a", b"")
        kv = store.get(prefix + "a")
        assert kv is not None
        assert (kv.version, kv.create_revision) == (1, again)

    def test_delete_prefix_is_one_revision(self, store: Store, prefix: str) -> None:
        for name in ("x/a", "x/b", "y"):
            last = store.put(prefix + name, b"")
        assert store.delete_prefix(prefix + "x/") == 2
        kvs, revision = store.range(prefix)
        assert [kv.key for kv in kvs] == [prefix + "y"]
        assert revision == last + 1

    def test_an_empty_key_is_refused(self, store: Store) -> None:
        with pytest.raises(UsageError):
            store.put("", b"")

    def test_another_user_sees_a_write_at_once(self, another: MakeStore, prefix: str) -> None:
        writer, reader = another(), another()
        for number in range(20):
            writer.put(prefix + "a", b"%d" % number)
            kv = reader.get(prefix + "a")
            assert kv is not None
            assert kv.value == b"%d" % number

    # -- transactions

    def test_compare_and_put_with_zero_makes_a_key_once(self, store: Store, prefix: str) -> None:
        done, kv = store.compare_and_put(prefix + "a", 0, b"first")
        assert done
        assert kv is not None
        assert kv.value == b"first"
        done, kv = store.compare_and_put(prefix + "a", 0, b"second")
        assert not done
        assert kv is not None
        assert kv.value == b"first"

    def test_compare_and_put_follows_the_last_revision(self, store: Store, prefix: str) -> None:
        revision = store.put(prefix + "a", b"1")
        done, kv = store.compare_and_put(prefix + "a", revision, b"2")
        assert done
        assert kv is not None
        assert kv.mod_revision == revision + 1
        assert store.compare_and_put(prefix + "a", revision, b"3")[0] is False

    def test_compare_and_put_on_a_missing_key_says_that_it_is_missing(self, store: Store, prefix: str) -> None:
        assert store.compare_and_put(prefix + "a", 7, b"") == (False, None)

    def test_one_of_many_racers_wins(self, another: MakeStore, prefix: str) -> None:
        stores = [another() for _ in range(4)]
        wins: list[int] = []

        def race(number: int) -> None:
            if stores[number].compare_and_put(prefix + "leader", 0, b"%d" % number)[0]:
                wins.append(number)

        threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        kv = stores[0].get(prefix + "leader")
        assert kv is not None
        assert [b"%d" % number for number in wins] == [kv.value]

    def test_counting_with_compare_and_put_loses_nothing(self, another: MakeStore, prefix: str) -> None:
        def count(store: Store) -> None:
            for _ in range(10):
                done = False
                while not done:
                    kv = store.get(prefix + "n")
                    value, revision = (0, 0) if kv is None else (int(kv.value), kv.mod_revision)
                    done, _ = store.compare_and_put(prefix + "n", revision, b"%d" % (value + 1))

        threads = [threading.Thread(target=count, args=(another(),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        kv = another().get(prefix + "n")
        assert kv is not None
        assert kv.value == b"30"

    def test_comparisons_hold_as_their_relation_says(self, store: Store, prefix: str) -> None:
        key, missing = prefix + "a", prefix + "missing"
        store.put(key, b"m")
        revision = store.put(key, b"m")
        table = [
            (Compare(key, "value", "=", b"m"), True),
            (Compare(key, "value", "!=", b"m"), False),
            (Compare(key, "value", "<", b"n"), True),
            (Compare(key, "value", ">", b"n"), False),
            (Compare(key, "version", "=", 2), True),
            (Compare(key, "version", ">", 2), False),
            (Compare(key, "create", "<", revision), True),
            (Compare(key, "mod", "=", revision), True),
            (Compare(key, "mod", "!=", revision), False),
            (Compare(key, "lease", "=", 0), True),
            (Compare(missing, "version", "=", 0), True),
            (Compare(missing, "mod", "<", 1), True),
            (Compare(missing, "value", "!=", b"m"), False),
        ]
        for condition, expected in table:
            assert store.txn((condition,), ()).succeeded is expected, condition

    def test_a_transaction_runs_one_branch_as_one_revision(self, store: Store, prefix: str) -> None:
        before = store.put(prefix + "a", b"1")
        condition = Compare(prefix + "a", "value", "=", b"1")
        then = (Op.put(prefix + "b", b"2"), Op.delete(prefix + "a"), Op.range(prefix))
        result = store.txn((condition,), then, (Op.put(prefix + "c", b""),))
        assert (result.succeeded, result.revision) == (True, before + 1)
        assert [kv.key for kv in result.results[2].kvs] == [prefix + "b"]  # a transaction sees its own writes
        assert (result.results[1].count, result.results[1].kvs[0].value) == (1, b"1")
        result = store.txn((condition,), then, (Op.put(prefix + "c", b"3"), Op.get(prefix + "c")))
        assert (result.succeeded, result.revision) == (False, before + 2)
        assert result.results[1].kvs[0].value == b"3"

    def test_a_key_is_written_once_in_a_transaction(self, store: Store, prefix: str) -> None:
        before = store.put(prefix + "z", b"")
        for second in (Op.put(prefix + "a", b"2"), Op.delete_prefix(prefix)):
            with pytest.raises(UsageError):
                store.txn((), (Op.put(prefix + "a", b"1"), second))
        assert store.get(prefix + "a") is None
        assert store.put(prefix + "z", b"") == before + 1

    # -- watches

    def test_a_watch_sees_later_changes_in_order(self, another: MakeStore, prefix: str) -> None:
        store, writer, seen = another(), another(), Recorder()
        writer.put(prefix + "before", b"")
        with store.watch(prefix, seen.on_events, on_error=seen.on_error):
            for number in range(50):
                writer.put(prefix + f"{number % 3}", b"%d" % number)
            writer.delete(prefix + "0")
            events = seen.wait(51)
        assert [event.kind for event in events] == ["put"] * 50 + ["delete"]
        assert [event.kv.value for event in events[:50]] == [b"%d" % number for number in range(50)]
        revisions = [event.kv.mod_revision for event in events]
        assert revisions == list(range(revisions[0], revisions[0] + 51))
        assert events[-1].kv.key == prefix + "0"

    def test_an_event_carries_the_entry_before_it(self, store: Store, prefix: str) -> None:
        seen = Recorder()
        with store.watch(prefix, seen.on_events):
            store.put(prefix + "a", b"1")
            store.put(prefix + "a", b"2")
            store.delete(prefix + "a")
            events = seen.wait(3)
        previous = [None if event.previous is None else event.previous.value for event in events]
        assert previous == [None, b"1", b"2"]

    def test_a_watch_starts_where_a_range_ended(self, store: Store, prefix: str) -> None:
        store.put(prefix + "a", b"1")
        _, revision = store.range(prefix)
        store.put(prefix + "b", b"2")
        seen = Recorder()
        with store.watch(prefix, seen.on_events, start_revision=revision + 1):
            store.put(prefix + "c", b"3")
            events = seen.wait(2)
        assert [event.kv.key.removeprefix(prefix) for event in events] == ["b", "c"]

    def test_a_watch_sees_its_prefix_only(self, store: Store, prefix: str) -> None:
        seen = Recorder()
        with store.watch(prefix + "in/", seen.on_events):
            store.put(prefix + "out", b"")
            store.put(prefix + "in/a", b"")
            store.put(prefix + "in0", b"")
            store.put(prefix + "in/b", b"")
            events = seen.wait(2)
        assert [event.kv.key.removeprefix(prefix) for event in events] == ["in/a", "in/b"]

    def test_one_transaction_is_one_call(self, store: Store, prefix: str) -> None:
        seen = Recorder()
        with store.watch(prefix, seen.on_events):
            store.txn((), (Op.put(prefix + "a", b""), Op.put(prefix + "b", b"")))
            seen.wait(2)
        assert [[event.kv.key for event in call] for call in seen.calls] == [[prefix + "a", prefix + "b"]]

    def test_a_closed_watch_is_silent_and_others_go_on(self, store: Store, prefix: str) -> None:
        closed, open_ = Recorder(), Recorder()
        watch = store.watch(prefix, closed.on_events, on_error=closed.on_error)
        with store.watch(prefix, open_.on_events):
            store.put(prefix + "a", b"")
            closed.wait(1)
            watch.close()
            watch.close()
            store.put(prefix + "b", b"")
            open_.wait(2)
        assert len(closed.events) == 1
        assert closed.errors == []

    def test_a_callback_may_use_the_store_and_watch_more(self, store: Store, prefix: str) -> None:
        inner, done = Recorder(), Recorder()

        def on_events(events: Sequence[Event]) -> None:
            store.watch(prefix + "inner", inner.on_events)
            store.put(prefix + "inner", events[0].kv.value)
            done.on_events(events)

        with store.watch(prefix + "outer", on_events):
            store.put(prefix + "outer", b"echo")
            done.wait(1)
            assert inner.wait(1)[0].kv.value == b"echo"

    def test_a_callback_that_raises_ends_its_own_watch_only(self, store: Store, prefix: str) -> None:
        bad, good = Recorder(), Recorder()

        def raise_it(events: Sequence[Event]) -> None:
            raise KeyError("boom")

        store.watch(prefix, raise_it, on_error=bad.on_error)
        with store.watch(prefix, good.on_events):
            store.put(prefix + "a", b"")
            assert isinstance(bad.wait_error(), KeyError)
            store.put(prefix + "b", b"")
            good.wait(2)
        assert len(bad.errors) == 1

    def test_a_watch_from_a_forgotten_revision_says_compacted(self, store: Store, prefix: str) -> None:
        first = store.put(prefix + "a", b"1")
        store.put(prefix + "a", b"2")
        last = store.put(prefix + "a", b"3")
        store.compact(last)
        seen = Recorder()
        with store.watch(prefix, seen.on_events, start_revision=first, on_error=seen.on_error):
            error = seen.wait_error()
        assert isinstance(error, Compacted)
        assert first < error.revision <= last
        assert seen.events == []

    def test_a_watch_from_the_compacted_revision_misses_nothing(self, store: Store, prefix: str) -> None:
        store.put(prefix + "a", b"1")
        last = store.put(prefix + "a", b"2")
        store.compact(last)
        seen = Recorder()
        with store.watch(prefix, seen.on_events, start_revision=last, on_error=seen.on_error):
            assert seen.wait(1)[0].kv.value == b"2"

    def test_compacting_the_future_is_an_error(self, store: Store, prefix: str) -> None:
        with pytest.raises(StoreError):
            store.compact(store.put(prefix + "a", b"") + 1000)

    # -- leases

    def test_revoking_a_lease_deletes_its_keys_at_once(self, store: Store, prefix: str) -> None:
        lost: list[bool] = []
        lease = store.lease(30.0, lambda: lost.append(True))
        assert lease.ttl_s >= 30.0
        assert lease.alive
        store.put(prefix + "a", b"", lease)
        store.put(prefix + "b", b"", lease)
        store.put(prefix + "stays", b"")
        kv = store.get(prefix + "a")
        assert kv is not None
        assert kv.lease == lease.id
        seen = Recorder()
        with store.watch(prefix, seen.on_events):
            lease.revoke()
            events = seen.wait(2)
        assert [(event.kind, event.kv.key) for event in events] == [("delete", prefix + "a"), ("delete", prefix + "b")]
        assert len({event.kv.mod_revision for event in events}) == 1
        assert [kv.key for kv in store.range(prefix)[0]] == [prefix + "stays"]
        assert not lease.alive
        lease.revoke()
        assert lost == []

    def test_a_key_put_without_the_lease_outlives_it(self, store: Store, prefix: str) -> None:
        lease = store.lease(30.0)
        store.put(prefix + "a", b"1", lease)
        store.put(prefix + "a", b"2")
        lease.revoke()
        kv = store.get(prefix + "a")
        assert kv is not None
        assert (kv.value, kv.lease) == (b"2", 0)

    def test_a_put_with_an_ended_lease_says_lease_lost(self, store: Store, prefix: str) -> None:
        lease = store.lease(30.0)
        lease.revoke()
        with pytest.raises(LeaseLost):
            store.put(prefix + "a", b"", lease)
        with pytest.raises(LeaseLost):
            store.compare_and_put(prefix + "a", 0, b"", lease)

    def test_a_lease_is_kept_while_its_owner_lives_and_ends_after_it(self, another: MakeStore, prefix: str) -> None:
        owner, watcher, seen = another(), another(), Recorder()
        lost: list[bool] = []
        lease = owner.lease(1.0, lambda: lost.append(True))
        owner.put(prefix + "node", b"", lease)
        with watcher.watch(prefix, seen.on_events):
            SYSTEM.sleep(1.6 * lease.ttl_s)  # time itself is under test: longer than it would last by itself
            assert [kv.key for kv in watcher.range(prefix)[0]] == [prefix + "node"]
            owner.close()
            (event,) = seen.wait(1)
        assert (event.kind, event.kv.key) == ("delete", prefix + "node")
        assert lost == []

    @pytest.mark.parametrize("ttl_s", [0.0, -1.0])
    def test_a_lease_needs_a_positive_time(self, store: Store, ttl_s: float) -> None:
        with pytest.raises(UsageError):
            store.lease(ttl_s)

    # -- closing

    def test_a_closed_store_refuses_calls(self, another: MakeStore, prefix: str) -> None:
        store = another()
        store.close()
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.put(prefix + "a", b"")
        with pytest.raises(StoreError, match="closed"):
            store.watch(prefix, lambda events: None)
