"""What the reference says of names that other tests use only by the way."""

import threading

import numpy as np
import pytest

from resilin import distributed as dist
from resilin.store.memory import MemoryStore
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks


def of_thread(call):
    """What `call` gives in a thread of its own."""
    box = []
    thread = threading.Thread(target=lambda: box.append(call()))
    thread.start()
    thread.join(PATIENCE_S)
    return box[0]


def test_a_hash_store_wakes_a_reader_in_another_thread_and_belongs_to_its_object_alone():
    store = dist.HashStore(timeout=20.0)
    got = []
    reader = threading.Thread(target=lambda: got.append(store.get("late")))
    reader.start()
    assert dist.HashStore().num_keys() == 0
    store.set("late", b"here")
    reader.join(PATIENCE_S)
    assert got == [b"here"]


def test_a_prefix_store_sees_the_keys_under_its_prefix_only():
    whole = dist.HashStore(timeout=5.0)
    view = dist.PrefixStore("job", whole)
    whole.set("a", b"outside")
    view.set("a", b"inside")
    assert (whole.get("a"), view.get("a"), whole.get("job/a")) == (b"outside", b"inside", b"inside")
    assert (view.list_keys(), view.num_keys(), whole.num_keys()) == (["a"], 1, 2)
    assert view.delete_key("a")
    assert whole.list_keys() == ["a"]


def test_a_coordination_store_makes_a_group_and_shares_its_keys_with_all_its_users():
    with MemoryStore() as memory:
        one, two = (
            dist.CoordinationStore(memory, timeout=5.0),
            dist.CoordinationStore(memory, timeout=5.0),
        )
        one.set("key", b"value")
        assert two.get("key") == b"value"
        dist.init_process_group(store=memory, rank=0, world_size=1)
        try:
            dist.barrier()
        finally:
            dist.destroy_process_group()
        for each in (one, two):
            each.close()


def test_the_default_group_can_be_set_and_taken_away_and_its_subgroups_end_with_it():
    def work(rank):
        return dist.default_group(), dist.new_group([rank], use_local_synchronization=True)

    def step(rank):
        group, part = work(rank)
        if rank == 0:
            assert not of_thread(dist.is_initialized)
            dist.set_default_group(group)
            try:
                assert of_thread(dist.default_group) is group
                assert dist.group.WORLD is group
            finally:
                dist.set_default_group(None)
            assert not of_thread(dist.is_initialized)
            with pytest.raises(dist.DistError, match="closed"):
                dist.barrier(part)
        dist.barrier()  # the caller still owns the group: it goes on

    run_ranks(2, step).results()


def test_a_group_is_the_default_of_a_block_in_its_thread_only():
    def step(rank):
        whole, part = dist.default_group(), dist.new_group([1, 0], sort_ranks=False)
        with dist.use_group(part):
            assert dist.default_group() is part
            assert dist.get_rank() == 1 - rank
            assert not of_thread(dist.is_initialized)
        assert dist.default_group() is whole

    run_ranks(2, step).results()


def test_listeners_alone_make_a_group():
    listeners = [dist.listener.Listener() for _ in range(2)]
    names = [each.describe() for each in listeners]
    totals = {}

    def work(rank):
        group = dist.group.connect(listeners[rank], names, rank, group_name="pair", secret=SECRET, timeout_s=20.0)
        array = np.array([rank + 1])
        dist.all_reduce(array, group=group)
        totals[rank] = int(array[0])
        group.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for each in listeners:
        each.close()
    assert totals == {0: 3, 1: 3}


def test_waiting_for_all_gives_results_in_order_or_the_first_error_in_their_order():
    one, two, three = (dist.Future() for _ in range(3))
    three.set_result(3)
    one.set_result(1)
    assert dist.wait_all([one, three]) == [1, 3]
    late = dist.Future()
    late.set_exception(KeyError("last in the list, first in time"))
    two.set_exception(ZeroDivisionError("first in the list"))
    with pytest.raises(ZeroDivisionError, match="first in the list"):
        dist.wait_all([one, two, late])
