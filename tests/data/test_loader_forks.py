"""Processes around a loader: those that its workers fork, and those forked amid a pass."""

import multiprocessing
import os
import signal
import time

import pytest

from resilin.data import DataLoader, Dataset
from resilin.errors import ResilinError

pytestmark = [
    pytest.mark.multiproc,
    pytest.mark.filterwarnings("ignore:DataLoader. num_workers="),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]


class Calls(Dataset):
    """Sample i is what `function(i)` gives."""

    def __init__(self, function, length):
        self.function, self.length = function, length

    def __getitem__(self, index):
        return self.function(index)

    def __len__(self):
        return self.length


def test_processes_that_a_worker_forks_can_be_terminated():
    def sample(index):
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        process.start()
        process.terminate()
        process.join(20)
        return process.exitcode

    assert next(iter(DataLoader(Calls(sample, 1), num_workers=1))).item() == -signal.SIGTERM


def test_a_fork_amid_a_pass_is_refused_its_batches_and_the_parent_misses_none():
    loader = DataLoader(list(range(8)), batch_size=None, num_workers=2, persistent_workers=True)
    batches = iter(loader)
    assert next(batches) == 0
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except ResilinError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert list(batches) == [1, 2, 3, 4, 5, 6, 7]


def test_a_fork_of_a_process_with_kept_workers_starts_its_own():
    loader = DataLoader(list(range(6)), batch_size=None, num_workers=2, persistent_workers=True)
    assert list(loader) == [0, 1, 2, 3, 4, 5]
    child = os.fork()
    if child == 0:
        os._exit(0 if list(loader) == [0, 1, 2, 3, 4, 5] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert list(loader) == [0, 1, 2, 3, 4, 5]


def test_a_worker_that_exits_is_reported_with_what_may_have_ended_it():
    def leave(index):
        raise SystemExit(3)

    with pytest.raises(ResilinError, match=r"exited with code 3 .*sys\.exit\(\)"):
        list(DataLoader(Calls(leave, 2), num_workers=1))
