"""What goes wrong in and around worker processes: each says what, who and what to do, soon, and leaves nothing."""

import contextlib
import errno
import gc
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from multiprocessing import resource_tracker

import numpy as np
import pytest
from data_descriptors import descriptors

import resilin
from resilin.data import DataLoader, Dataset, IterableDataset, get_worker_info, pool
from resilin.errors import ResilinError
from resilin.testing.patience import PATIENCE_S

pytestmark = [pytest.mark.multiproc, pytest.mark.filterwarnings("ignore:DataLoader. num_workers=")]


class Calls(Dataset):
    """Sample i is what `function(i)` gives."""

    def __init__(self, function, length=8):
        self.function, self.length = function, length

    def __getitem__(self, index):
        return self.function(index)

    def __len__(self):
        return self.length


class Two(Exception):
    """Its constructor takes what its `args` do not hold."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")
        self.first, self.second = first, second


class Odd(Exception):
    def __reduce__(self):
        return (str, ("no exception",))


@pytest.fixture(autouse=True, scope="module")
def the_standard_librarys_helper_runs():
    resource_tracker.ensure_running()


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before, threads = descriptors(), threading.active_count()
    yield
    gc.collect()
    assert multiprocessing.active_children() == []
    assert descriptors() <= before
    assert threading.active_count() <= threads


@pytest.fixture
def patient(monkeypatch):
    """Workers get more time to stop by themselves than a test waits: what ends soon has not waited for that."""
    monkeypatch.setattr(pool, "STOP_S", 3 * PATIENCE_S)


def test_a_dead_worker_is_reported_at_once_although_another_is_waited_for(patient):
    def sample(index):
        if get_worker_info().id == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    begin = time.monotonic()
    with pytest.raises(ResilinError, match=r"worker 1 \(pid \d+\) was killed by signal 9 \(SIGKILL\)"):
        list(DataLoader(Calls(sample), num_workers=2))
    assert time.monotonic() - begin < PATIENCE_S


def test_after_a_death_the_pass_says_why_it_is_over_and_a_new_one_can_start():
    loader = DataLoader(
        Calls(lambda index: os._exit(3) if index == 2 else index), num_workers=1, persistent_workers=True
    )
    batches = iter(loader)
    with pytest.raises(ResilinError, match="exited with code 3"):
        list(batches)
    with pytest.raises(ResilinError, match=r"ended with ResilinError: .*exited with code 3"):
        next(batches)
    assert next(iter(loader)).item() == 0


def test_a_worker_that_is_late_may_be_waited_for():
    def sample(index):
        time.sleep(0.4)  # the data set is slow
        return index

    batches = iter(DataLoader(Calls(sample, 1), num_workers=1, timeout=0.1))
    with pytest.raises(ResilinError, match=r"worker 0 \(pid \d+\) gave no batch within timeout=0\.1"):
        next(batches)
    for _ in range(100):
        with contextlib.suppress(ResilinError):
            assert next(batches).item() == 0
            break
    assert next(batches, None) is None


def test_a_stopped_worker_runs_into_the_timeout_and_is_ended(patient):
    loader = DataLoader(Calls(lambda index: os.kill(os.getpid(), signal.SIGSTOP)), num_workers=1, timeout=0.2)
    begin = time.monotonic()
    with pytest.raises(ResilinError, match="timeout"):
        list(loader)
    assert time.monotonic() - begin < PATIENCE_S


def fail_with(make):
    def sample(index):
        raise make()

    return list(DataLoader(Calls(sample), num_workers=1))


def test_an_error_whose_constructor_takes_other_arguments_keeps_its_type_and_fields():
    with pytest.raises(Two, match="1 and x") as caught:
        fail_with(lambda: Two(1, "x"))
    assert (caught.value.first, caught.value.second) == (1, "x")
    assert "in DataLoader worker 0" in caught.value.__notes__[-1]


def with_lock():
    error = ValueError("holds a lock")
    error.lock = threading.Lock()
    return error


def test_errors_that_pickling_cannot_carry_arrive_as_text():
    with pytest.raises(ResilinError, match=r"error in DataLoader worker 0 \(pid \d+\):\n(?s:.*)holds a lock"):
        fail_with(with_lock)


def test_errors_that_pickle_as_something_else_keep_their_type():
    with pytest.raises(Odd):
        fail_with(Odd)


def test_notes_of_an_error_are_kept():
    def noted():
        error = KeyError("k")
        error.add_note("look there")
        return error

    with pytest.raises(KeyError) as caught:
        fail_with(noted)
    assert caught.value.__notes__[0] == "look there"


def test_a_batch_that_cannot_be_unpickled_is_an_error_of_its_turn():
    class Broken:
        def __reduce__(self):
            return (open, ("/nonexistent/file",))

    batches = iter(DataLoader([1, Broken(), 3], num_workers=1, batch_size=None))
    assert next(batches) == 1
    with pytest.raises(FileNotFoundError) as caught:
        next(batches)
    assert "worker 0" in caught.value.__notes__[0]
    assert list(batches) == [3]


@pytest.mark.parametrize(
    ("limit", "value", "number"),
    [(resource.RLIMIT_FSIZE, 1 << 20, errno.EFBIG), (resource.RLIMIT_NOFILE, 8, errno.EMFILE)],
    ids=["file size", "open files"],
)
def test_without_shared_memory_for_a_batch_the_error_says_so(limit, value, number):
    def confine(worker):
        resource.setrlimit(limit, (value, value))

    loader = DataLoader(Calls(lambda index: np.zeros(1 << 20)), num_workers=1, worker_init_fn=confine)
    with pytest.raises(ResilinError, match=rf"no shared memory for a batch of 83\d+ bytes: \[Errno {number}\]"):
        list(loader)


def test_a_parent_without_descriptors_says_what_to_raise():
    script = textwrap.dedent(
        """
        import os, resource
        import numpy as np
        from resilin.data import DataLoader
        loader = DataLoader([np.zeros(100_000)] * 4, num_workers=1)
        batches = iter(loader)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(kept) + 1, max(kept) + 1))
        try:
            next(batches)
        except RuntimeError as error:
            print(error)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, text=True)
    assert "has too many open files: raise the limit" in done.stdout, done.stderr


def test_nothing_of_a_batch_is_in_dev_shm():
    before = set(os.listdir("/dev/shm"))
    batches = iter(DataLoader(Calls(lambda index: np.ones(1 << 18)), num_workers=1))
    next(batches)
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "resilin" in name}


def test_workers_may_use_loaders_with_workers():
    def sample(index):
        return sum(batch.sum().item() for batch in DataLoader(range(4), batch_size=2, num_workers=1))

    assert [batch.tolist() for batch in DataLoader(Calls(sample, 2), num_workers=1)] == [[6], [6]]


def test_workers_of_a_killed_worker_die_with_it():
    script = textwrap.dedent(
        """
        import os, signal
        from resilin.data import DataLoader
        class Stuck:
            def __len__(self): return 8
            def __getitem__(self, index): signal.pause()
        class Outer(Stuck):
            def __getitem__(self, index):
                batches = iter(DataLoader(Stuck(), num_workers=1))
                os.kill(os.getpid(), signal.SIGKILL)
        try:
            list(DataLoader(Outer(), num_workers=1))
        except RuntimeError as error:
            print("SIGKILL" in str(error))
        """
    )
    # the inner worker holds stdout open and waits for ever: that its end is reached proves that it is gone
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=PATIENCE_S, text=True)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def daemonic(queue):
    try:
        list(DataLoader(range(3), num_workers=1))
    except ResilinError as error:
        queue.put(str(error))


def test_a_daemonic_process_is_told_why_it_gets_no_workers():
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=daemonic, args=(queue,), daemon=True)
    process.start()
    assert "daemon=False, or use num_workers=0" in queue.get()
    process.join()
    queue.close()


def test_a_data_set_that_cannot_be_pickled_is_explained_to_spawn():
    loader = DataLoader(Calls(lambda index: index), num_workers=1, multiprocessing_context="spawn")
    with pytest.raises((AttributeError, pickle.PicklingError)) as caught:
        iter(loader)
    assert "workers started by 'spawn'" in caught.value.__notes__[0]


def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        textwrap.dedent(
            """
            from resilin.data import DataLoader
            print([b.item() for b in DataLoader(range(2), num_workers=1, multiprocessing_context="spawn")])
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, timeout=60, text=True)
    assert done.returncode == 1
    assert "must guard its start by `if __name__ == '__main__':`" in done.stderr


def test_a_fork_server_serves():
    loader = DataLoader(range(5), batch_size=2, num_workers=2, multiprocessing_context="forkserver")
    try:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    finally:
        server = multiprocessing.forkserver._forkserver  # it lives as long as this process, but for the other tests
        server._stop()


def test_a_process_with_busy_threads_can_fork_workers_that_compute():
    matrix = resilin.randn(300, 300)
    done = threading.Event()

    def busy():
        while not done.is_set():
            matrix @ matrix

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            loader = DataLoader(Calls(lambda index: (resilin.ones(50, 50) @ resilin.ones(50, 50)).sum()), num_workers=2)
            assert {batch.item() for batch in loader} == {125_000}
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_ctrl_c_ends_a_pass_whose_workers_are_busy():
    script = textwrap.dedent(
        """
        import os, signal, sys, time
        from resilin.data import DataLoader, pool
        pool.STOP_S = 1000
        class Stuck:
            def __len__(self): return 8
            def __getitem__(self, index):
                print("busy", flush=True)
                time.sleep(1000)
        try:
            list(DataLoader(Stuck(), num_workers=1))
        except KeyboardInterrupt:
            import multiprocessing
            print("left", len(multiprocessing.active_children()))
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        assert job.stdout.readline() == "busy\n"
        os.killpg(job.pid, signal.SIGINT)  # as a terminal does: to the workers, too
        out, err = job.communicate(timeout=PATIENCE_S)
    assert (out, err) == ("left 0\n", "")


def test_a_signal_that_reaches_a_worker_before_its_handlers_does_nothing_there():
    script = textwrap.dedent(
        """
        import os, signal
        from resilin.data import DataLoader
        os.register_at_fork(after_in_child=lambda: [os.kill(os.getpid(), n) for n in (signal.SIGINT, signal.SIGTERM)])
        print([batch.tolist() for batch in DataLoader(range(4), 2, num_workers=2)])
        print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[[0, 1], [2, 3]]\nset()\n", "")


def test_a_program_that_ignores_the_end_of_its_children_may_have_workers():
    script = textwrap.dedent(
        """
        import signal
        from resilin.data import DataLoader
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        for kept in (False, True):
            print([batch.tolist() for batch in DataLoader(range(4), 2, num_workers=2, persistent_workers=kept)])
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[[0, 1], [2, 3]]\n" * 2, "")


def test_an_abandoned_pass_with_much_asked_for_ends_soon(patient):
    batches = iter(DataLoader(Calls(lambda index: np.zeros(200), 100_000), num_workers=2, prefetch_factor=2000))
    next(batches)
    begin = time.monotonic()
    del batches
    assert time.monotonic() - begin < PATIENCE_S


def test_a_kept_pool_goes_on_after_a_pass_that_was_left_early():
    loader = DataLoader(Calls(lambda index: os.getpid(), 50), num_workers=2, persistent_workers=True)
    pids = set()
    for _ in range(3):
        for batch in loader:
            pids.add(batch.item())
            break
    assert len(pids) == 1
    assert len({batch.item() for batch in loader} - pids) == 1
    del loader


def test_two_passes_at_once_over_kept_workers_do_not_mix():
    loader = DataLoader(Calls(lambda index: index, 6), num_workers=1, persistent_workers=True)
    pairs = [(first.item(), second.item()) for first, second in zip(loader, loader, strict=True)]
    assert pairs == [(index, index) for index in range(6)]
    del loader


def test_batches_come_as_they_are_ready_when_order_does_not_matter():
    flag = multiprocessing.get_context("fork").Event()

    def sample(index):
        while get_worker_info().id == 0 and not flag.is_set():
            flag.wait(PATIENCE_S)
        return index

    batches = iter(DataLoader(Calls(sample, 12), num_workers=2, batch_size=None, in_order=False, prefetch_factor=1))
    others = [next(batches) for _ in range(11)]
    flag.set()
    assert [*others, *batches] == [*range(1, 12), 0]


def test_an_error_of_the_sampler_ends_the_pass():
    def order():
        yield 0
        raise LookupError("no more order")

    with pytest.raises(LookupError, match="no more order"):
        list(DataLoader(range(5), sampler=order(), num_workers=1))


def test_programs_that_a_worker_starts_can_be_ended_by_signals():
    def sample(index):
        with subprocess.Popen(["sleep", "60"]) as program:
            program.terminate()
            return program.wait(PATIENCE_S)

    assert next(iter(DataLoader(Calls(sample, 1), num_workers=1))).item() == -signal.SIGTERM


def test_streams_of_unequal_length_come_whole_in_any_order():
    class Stream(IterableDataset):
        def __iter__(self):
            number = get_worker_info().id
            return iter(range(number * 100, number * 100 + 3 + 9 * number))

    for in_order in (True, False):
        loader = DataLoader(Stream(), batch_size=2, num_workers=2, in_order=in_order)
        values = [value for batch in loader for value in batch.tolist()]
        assert sorted(values) == [*range(3), *range(100, 112)]


def test_workers_that_cannot_be_started_say_what_to_raise():
    script = textwrap.dedent(
        """
        import multiprocessing, os, resource
        from resilin.data import DataLoader
        loader = DataLoader(range(9), num_workers=2)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 6, highest + 6))
        try:
            iter(loader)
        except RuntimeError as error:
            print(error, len(multiprocessing.active_children()))
        """
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, timeout=60, text=True)
    assert "cannot be started: [Errno 24] Too many open files; use fewer workers" in done.stdout, done.stderr
    assert done.stdout.endswith(" 0\n")


def test_a_sampler_that_cannot_be_iterated_leaves_no_workers():
    with pytest.raises(TypeError) as caught:
        iter(DataLoader(range(5), sampler=7, num_workers=1))
    assert multiprocessing.active_children() == []
    assert "int" in str(caught.value)


def test_a_full_dev_shm_does_not_matter():
    mount = 'mount -t tmpfs -o size=4k none /dev/shm && exec "$@"'
    own_shm = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "-"]
    try:
        subprocess.run([*own_shm, "true"], check=True, capture_output=True, timeout=PATIENCE_S)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system lets no one mount a small /dev/shm of their own")
    script = textwrap.dedent(
        """
        import numpy as np
        from resilin.data import DataLoader
        open("/dev/shm/full", "wb").write(bytes(4096))
        print(sum(batch.sum().item() for batch in DataLoader([np.ones(1 << 18)] * 4, batch_size=2, num_workers=1)))
        """
    )
    done = subprocess.run([*own_shm, sys.executable, "-c", script], capture_output=True, timeout=60, text=True)
    assert done.stdout == f"{4 * (1 << 18):.1f}\n", done.stderr
