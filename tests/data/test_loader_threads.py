"""DataLoader with worker threads: the same batches and errors as with processes, no thread left."""

import gc
import os
import threading
import time

import numpy as np
import pytest

import resilin
from resilin.core import rng
from resilin.data import DataLoader, Dataset, IterableDataset, get_worker_info
from resilin.errors import ResilinError

pytestmark = pytest.mark.filterwarnings("ignore:DataLoader. num_workers=")


class Calls(Dataset):
    """Sample i is what `function(i)` gives."""

    def __init__(self, function, length):
        self.function, self.length = function, length

    def __getitem__(self, index):
        return self.function(index)

    def __len__(self):
        return self.length


def threaded(function, length, **options):
    return DataLoader(Calls(function, length), **{"num_workers": 2, "worker_method": "thread", **options})


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert [thread.name for thread in threading.enumerate() if "data-prefetch" in thread.name] == []


def test_batches_come_in_order_from_threads_of_this_process():
    main = threading.get_ident()
    seen = set()

    def sample(index):
        seen.add(threading.get_ident())
        return index

    batches = [batch.tolist() for batch in threaded(sample, 11, batch_size=2, num_workers=3)]
    assert batches == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10]]
    assert main not in seen


def test_threads_share_the_data_set():
    data = Calls(None, 4)
    data.function = lambda index: get_worker_info().dataset is data
    assert all(batch.all().item() for batch in DataLoader(data, num_workers=2, worker_method="thread"))


def test_threads_know_themselves_and_draw_the_same_numbers_again():
    def describe(index):
        info = get_worker_info()
        assert info.worker_method == "thread"
        own = info.rng
        return np.array(
            [info.id, info.seed, own.random_generator.random(), own.numpy_generator.random(), resilin.rand(1).item()]
        )

    loader = threaded(describe, 4, batch_size=None)
    rng.manual_seed(7)
    first = [row.tolist() for row in loader]
    rng.manual_seed(7)
    assert [row.tolist() for row in loader] == first
    assert [row[0] for row in first] == [0, 1, 0, 1]
    assert first[1][1] == first[0][1] + 1
    assert len({number for row in first for number in row[2:]}) == 12
    assert get_worker_info() is None


def test_threads_are_set_up_once_and_kept_where_wanted():
    started = []
    loader = threaded(lambda index: threading.get_ident(), 6, persistent_workers=True, worker_init_fn=started.append)
    first = {batch.item() for batch in loader}
    for _ in loader:
        break
    assert {batch.item() for batch in loader} == first
    assert sorted(started) == [0, 1]
    del loader


def test_an_error_is_raised_in_its_turn_and_the_pass_goes_on():
    batches = iter(threaded(lambda index: 1 // (index - 1), 4, batch_size=None))
    assert next(batches) == -1
    with pytest.raises(ZeroDivisionError):
        next(batches)
    assert list(batches) == [1, 0]


def test_a_set_up_that_fails_is_reported():
    def fail(number):
        raise ValueError(f"no set-up for {number}")

    with pytest.raises(ValueError, match="no set-up for 0"):
        list(threaded(int, 3, worker_init_fn=fail))


def test_threads_end_when_their_set_up_failed_although_the_pass_has_a_name():
    def fail(number):
        raise ValueError("no set-up")

    def loop():
        batches = iter(threaded(int, 9, worker_init_fn=fail))
        for _ in range(3):
            with pytest.raises((ValueError, ResilinError), match="no set-up"):
                next(batches)

    loop()
    gc.collect()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_fork_amid_a_pass_of_threads_is_told_that_it_has_no_workers():
    loader = threaded(int, 8, batch_size=None, persistent_workers=True)
    batches = iter(loader)
    assert next(batches) == 0
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except ResilinError:
            os._exit(0 if next(iter(loader)) == 0 else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert list(batches) == [1, 2, 3, 4, 5, 6, 7]
    del batches, loader


def test_an_exit_in_a_thread_is_not_lost():
    def leave(index):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        list(threaded(leave, 3))


def test_a_slow_thread_runs_into_the_timeout_and_may_be_waited_for():
    gate = threading.Event()
    batches = iter(threaded(lambda index: gate.wait(20), 1, num_workers=1, timeout=0.05))
    with pytest.raises(ResilinError, match=r"worker thread 0 gave no batch within timeout=0\.05"):
        next(batches)
    gate.set()
    for _ in range(100):
        try:
            assert next(batches).item() is True
            break
        except ResilinError:
            continue
    assert next(batches, None) is None


def test_threads_that_hang_are_named_when_the_pass_is_left():
    gate = threading.Event()
    batches = iter(threaded(lambda index: gate.wait(20), 1, num_workers=1, timeout=0.05))
    with pytest.raises(ResilinError, match="timeout"):
        next(batches)
    with pytest.warns(RuntimeWarning, match="thread data-prefetch-0 is still busy"):
        del batches
    gate.set()
    for thread in threading.enumerate():
        if "data-prefetch" in thread.name:
            thread.join(20)


def test_leaving_the_loop_early_ends_the_threads_and_what_was_asked():
    fetched = []

    def sample(index):
        fetched.append(index)
        return index

    for _ in threaded(sample, 1000, prefetch_factor=100):
        break
    count = len(fetched)
    assert count <= 202
    assert len(fetched) == count


def test_batches_come_as_they_are_ready_when_order_does_not_matter():
    gate = threading.Event()

    def sample(index):
        if index == 0:
            gate.wait(20)
        return index

    batches = iter(threaded(sample, 8, batch_size=None, in_order=False))
    others = [next(batches) for _ in range(6)]
    gate.set()
    assert sorted([*others, *batches]) == list(range(8))
    assert 0 not in others


def test_a_stream_is_split_among_threads():
    class Stream(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            return iter(range(info.id, 10, info.num_workers))

    loader = DataLoader(Stream(), batch_size=3, num_workers=2, worker_method="thread")
    assert [batch.tolist() for batch in loader] == [[0, 2, 4], [1, 3, 5], [6, 8], [7, 9]]


def test_threads_work_side_by_side():
    together = threading.Barrier(2, timeout=20)
    assert len(list(threaded(lambda index: together.wait(), 2))) == 2


def test_the_thread_that_fetches_ahead_for_the_main_one_is_no_worker():
    loader = DataLoader(Calls(lambda index: get_worker_info() is None, 3), prefetch_factor=2)
    assert all(batch.all().item() for batch in loader)
    begin = time.monotonic()
    del loader
    assert time.monotonic() - begin < 4
