"""Futures: set once, waited for, chained; a callback's mistake hurts nobody else."""

import threading

import pytest

from resilin import distributed as dist
from resilin.errors import CollectiveTimeout, UsageError


def test_waiters_get_the_value():
    future = dist.Future()
    threading.Timer(0.02, future.set_result, [5]).start()
    assert future.wait(5) == 5
    assert future.done()
    with pytest.raises(UsageError, match="already done"):
        future.set_result(6)


def test_waiters_get_the_error_and_so_do_followers():
    future = dist.Future()
    follower = future.then(lambda done: done.value() + 1)
    future.set_exception(KeyError("x"))
    for each in (future, follower):
        with pytest.raises(KeyError):
            each.wait()


def test_then_runs_on_the_value():
    future = dist.Future()
    follower = future.then(lambda done: done.value() * 2).then(lambda done: done.value() + 1)
    future.set_result(4)
    assert follower.wait() == 9
    assert dist.wait_all([future, follower]) == [4, 9]


def test_a_wait_gives_up_at_its_timeout():
    with pytest.raises(CollectiveTimeout, match=r"within 0.01 s"):
        dist.Future().wait(0.01)


def test_collect_all_waits_for_all_and_takes_none():
    futures = [dist.Future() for _ in range(3)]
    every = dist.collect_all(futures)
    for i, future in enumerate(futures):
        assert not every.done()
        future.set_result(i)
    assert [future.value() for future in every.wait()] == [0, 1, 2]
    assert dist.collect_all([]).wait() == []


def test_a_failing_callback_is_logged_and_later_ones_run(caplog):
    future, seen = dist.Future(), []
    future.add_done_callback(lambda done: 1 / 0)
    future.add_done_callback(lambda done: seen.append(done.value()))
    future.set_result(7)
    assert seen == [7]
    assert "callback of a future failed" in caplog.text


def test_what_is_no_callback_and_no_future_is_refused_by_name():
    done = dist.Future()
    done.set_result(1)
    for wrong, said in (
        (lambda: done.then(None), r"^Future\.then: callback: expected a function of the future, got None"),
        (lambda: done.add_done_callback(3), r"^Future\.add_done_callback: callback: .* got 3"),
        (lambda: dist.collect_all(done), r"^collect_all: futures: expected a list of Futures, got"),
        (lambda: dist.collect_all([done, 1]), r"^collect_all: futures"),
        (lambda: dist.wait_all([None]), r"^wait_all: futures: expected a list of Futures, got \[None\]"),
    ):
        with pytest.raises(TypeError, match=said):
            wrong()
