"""DataLoader with worker processes: order, hand-over, errors, and that nothing is left behind."""

import contextlib
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
from multiprocessing import resource_tracker

import numpy as np
import pytest
from data_descriptors import descriptors

from resilin import ones, rand, zeros
from resilin.core import rng
from resilin.core.kernels.loader import native
from resilin.core.machine import memory
from resilin.data import DataLoader, Dataset, IterableDataset, get_worker_info
from resilin.data.seeds import draw_seed
from resilin.errors import ResilinError
from resilin.testing.patience import PATIENCE_S

# the machine may have fewer cores than a test has workers
pytestmark = [pytest.mark.multiproc, pytest.mark.filterwarnings("ignore:DataLoader. num_workers=")]


class Rows(Dataset):
    """Row i is `width` times i, large enough to travel in shared memory."""

    def __init__(self, length, width=2000):
        self.length, self.width = length, width

    def __getitem__(self, index):
        return index, np.full(self.width, index, np.float32)

    def __len__(self):
        return self.length


class Scripted(Dataset):
    """Does what `script[index]` says."""

    def __init__(self, *script):
        self.script = script

    def __getitem__(self, index):
        act = self.script[index]
        return act() if callable(act) else act

    def __len__(self):
        return len(self.script)


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        return iter(range(info.id * 10, info.id * 10 + 3 + info.id))


@pytest.fixture(autouse=True, scope="module")
def the_standard_librarys_helper_runs():
    resource_tracker.ensure_running()  # spawning starts it, once per process; it holds a descriptor


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = descriptors()
    yield
    assert multiprocessing.active_children() == []
    assert descriptors() <= before


def test_batches_come_in_order_and_whole():
    loader = DataLoader(Rows(23), batch_size=4, num_workers=2)
    start = 0
    for index, rows in loader:
        assert index.tolist() == list(range(start, min(start + 4, 23)))
        assert (rows.numpy() == index.numpy()[:, None]).all()
        start += 4
    assert start == 24


def test_arrays_from_workers_can_be_written_and_outlive_the_workers():
    kept = [rows for _, rows in DataLoader(Rows(8), batch_size=4, num_workers=2)]
    kept[0].numpy()[:] = 7
    assert (kept[0].numpy() == 7).all()
    assert kept[1].numpy()[:, 0].tolist() == [4, 5, 6, 7]


def test_several_passes_and_several_workers_give_the_same_as_none():
    loaders = [DataLoader(Rows(11, 3), batch_size=2, shuffle=True, num_workers=n) for n in (0, 1, 3)]
    passes = []
    for loader in loaders:
        rng.manual_seed(4)
        passes.append([[index.tolist() for index, _ in loader] for _ in range(2)])
    assert passes[0] == passes[1] == passes[2]
    assert passes[0][0] != passes[0][1]


def test_an_error_keeps_its_type_and_brings_the_workers_traceback():
    loader = DataLoader(Scripted(1, 2, lambda: [0].index(7), 4), num_workers=2)
    batches = iter(loader)
    assert [next(batches).item(), next(batches).item()] == [1, 2]
    with pytest.raises(ValueError, match="7") as caught:
        next(batches)
    note = "\n".join(caught.value.__notes__)
    assert "in DataLoader worker 0" in note
    assert "test_loader_workers.py" in note
    assert [batch.item() for batch in batches] == [4]  # as in PyTorch, it goes on


def test_an_error_that_is_kept_keeps_no_workers():
    with pytest.raises(ValueError, match="7") as caught:
        list(DataLoader(Scripted(lambda: [0].index(7), *range(20)), num_workers=2))
    assert multiprocessing.active_children() == []
    assert "7" in str(caught.value)


def test_an_error_that_cannot_be_pickled_arrives_as_text():
    class Local(Exception):
        pass

    def fail():
        raise Local("only here")

    with pytest.raises(ResilinError, match="only here"):
        list(DataLoader(Scripted(fail), num_workers=1))


@pytest.mark.parametrize("what", [threading.Lock, lambda: lambda: None], ids=["a lock", "a function"])
def test_a_batch_that_cannot_be_pickled_is_an_error_with_reason_and_traceback(what, capfd):
    loader = DataLoader(Scripted(1, what), num_workers=1, batch_size=None)
    batches = iter(loader)
    assert next(batches) == 1
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError), match="pickle") as caught:
        next(batches)
    note = "\n".join(caught.value.__notes__)
    assert "cannot be sent from a worker process to its parent" in note
    assert "in DataLoader worker 0" in note
    assert "Traceback" in note
    assert list(batches) == []
    assert capfd.readouterr().err == ""


def test_a_sample_that_raises_stop_iteration_is_an_error_and_no_end():
    def stop():
        return next(iter([]))

    batches = iter(DataLoader(Scripted(1, 2, stop, 4), num_workers=2))
    assert [next(batches).item(), next(batches).item()] == [1, 2]
    with pytest.raises(RuntimeError, match=r"raised StopIteration.*samples missing"):
        next(batches)


def test_a_set_up_that_raises_stop_iteration_is_an_error_and_no_end():
    def stop(number):
        raise StopIteration

    with pytest.raises(RuntimeError, match="setting up worker 0 raised StopIteration"):
        list(DataLoader(Rows(3), num_workers=1, worker_init_fn=stop))


def test_a_failing_worker_init_fn_is_reported():
    def fail(number):
        raise ValueError(f"no set-up for {number}")

    with pytest.raises(ValueError, match="no set-up for 0"):
        list(DataLoader(Rows(3), num_workers=1, worker_init_fn=fail))


def test_a_killed_worker_is_named_with_its_signal():
    loader = DataLoader(Scripted(1, lambda: os.kill(os.getpid(), signal.SIGKILL)), num_workers=1)
    with pytest.raises(ResilinError, match=r"worker 0 \(pid \d+\) was killed by signal 9 \(SIGKILL\)"):
        list(loader)


def test_a_worker_that_exits_is_named_with_its_code():
    with pytest.raises(ResilinError, match="exited with code 3"):
        list(DataLoader(Scripted(lambda: os._exit(3)), num_workers=1))


def test_a_slow_worker_runs_into_the_timeout():
    def wait_for_ever():
        signal.pause()

    loader = DataLoader(Scripted(wait_for_ever), num_workers=1, timeout=0.2)
    with pytest.raises(ResilinError, match=r"timeout=0\.2"):
        list(loader)


def test_leaving_the_loop_early_ends_the_workers():
    for _ in DataLoader(Rows(1000), batch_size=2, num_workers=2):
        break
    assert multiprocessing.active_children() == []


def test_an_exception_in_the_loop_ends_the_workers():
    def train():
        for _ in DataLoader(Rows(1000), batch_size=2, num_workers=2):
            raise RuntimeError("out of the loop")

    with contextlib.suppress(RuntimeError):
        train()
    assert multiprocessing.active_children() == []


def test_persistent_workers_serve_every_pass_and_end_with_the_loader():
    loader = DataLoader(Scripted(*[os.getpid] * 6), num_workers=2, persistent_workers=True)
    first = {batch.item() for batch in loader}
    second = {batch.item() for batch in loader}
    assert first == second
    assert os.getpid() not in first
    assert {child.pid for child in multiprocessing.active_children()} == first
    del loader
    assert multiprocessing.active_children() == []


def test_workers_know_themselves_and_are_seeded_differently():
    def describe():
        info = get_worker_info()
        return np.array([info.id, info.num_workers, info.seed, np.random.randint(1 << 30)])

    loader = DataLoader(Scripted(*[describe] * 4), batch_size=None, num_workers=2)
    rng.manual_seed(0)
    rows = [row.tolist() for row in loader]
    assert [row[:2] for row in rows] == [[0, 2], [1, 2], [0, 2], [1, 2]]
    assert rows[1][2] == rows[0][2] + 1
    assert rows[0][3] != rows[1][3]
    rng.manual_seed(0)
    assert [row.tolist() for row in loader] == rows
    assert get_worker_info() is None


def test_every_generator_of_a_worker_starts_from_the_base_seed_and_its_number():
    def draw():
        return np.array([get_worker_info().seed, random.random(), np.random.random(), rand(1).item()], np.float64)

    rng.manual_seed(1)
    rows = [row.tolist() for row in DataLoader(Scripted(draw, draw), batch_size=None, num_workers=2)]
    rng.manual_seed(1)
    base = draw_seed(None)
    for number, row in enumerate(rows):
        state = np.random.SeedSequence([number, base & 0xFFFFFFFF, base >> 32, 0]).generate_state(4)  # PyTorch's choice
        expected = rand(1, generator=rng.Generator().manual_seed(base + number)).item()
        assert row[0] == float(base + number)
        assert row[1:] == [random.Random(base + number).random(), np.random.RandomState(state).random(), expected]


def test_loaders_can_run_inside_one_another():
    outer = DataLoader(Rows(4, 3), batch_size=2, num_workers=1, persistent_workers=True)
    for _ in range(2):
        seen = []
        for index, _ in outer:
            inner = DataLoader(Rows(3, 3), batch_size=1, num_workers=2)
            seen.append((index.tolist(), [i.item() for i, _ in inner]))
        assert seen == [([0, 1], [0, 1, 2]), ([2, 3], [0, 1, 2])]


def test_each_worker_runs_its_own_part_of_a_stream():
    batches = [batch.tolist() for batch in DataLoader(Stream(), batch_size=2, num_workers=2)]
    assert batches == [[0, 1], [10, 11], [2], [12, 13]]


def test_batches_of_nested_arrays_and_text_arrive_as_sent():
    def sample():
        return {"x": np.arange(3000.0), "name": "n" * 5000, "empty": np.zeros((0, 2))}

    (batch,) = DataLoader(Scripted(sample, sample), batch_size=2, num_workers=1)
    assert batch["x"].shape == (2, 3000)
    assert batch["name"] == ["n" * 5000] * 2
    assert batch["empty"].shape == (2, 0, 2)


def test_spawned_workers_do_the_same():
    loader = DataLoader(Rows(4, 5), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    assert [index.tolist() for index, _ in loader] == [[0, 1], [2, 3]]


def test_workers_survive_the_signals_that_are_for_the_parent():
    batches = iter(DataLoader(Scripted(*[os.getpid] * 8), num_workers=1, prefetch_factor=1))
    pid = next(batches).item()
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGINT)
    assert [batch.item() for batch in batches] == [pid] * 7


def test_workers_outlive_a_thread_that_started_them():
    started = []
    loader = DataLoader(Scripted(*[os.getpid] * 8), num_workers=1, prefetch_factor=1)
    thread = threading.Thread(target=lambda: started.append(iter(loader)))
    thread.start()
    thread.join()
    assert len({batch.item() for batch in started.pop()}) == 1


def test_an_interpreter_can_exit_in_the_middle_of_a_pass():
    script = textwrap.dedent(
        """
        from resilin.data import DataLoader
        kept = DataLoader(range(99), num_workers=1, persistent_workers=True)
        list(kept)
        batches = iter(DataLoader(range(99), num_workers=1))
        print(next(batches).item())
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=PATIENCE_S, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_workers_die_with_a_killed_parent():
    script = textwrap.dedent(
        """
        import os, signal
        from resilin.data import DataLoader
        class Stuck:
            def __len__(self): return 8
            def __getitem__(self, index):
                if index > 1: signal.pause()
                return os.getpid()
        loader = DataLoader(Stuck(), num_workers=2)
        batches = iter(loader)
        print(next(batches).item(), next(batches).item(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    # the workers hold stdout open and wait for ever: that its end is reached proves that they are gone
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=PATIENCE_S, text=True)
    assert done.returncode == -signal.SIGKILL
    assert len(done.stdout.split()) == 2


def private_megabytes():
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("Private_Dirty"))


class Large(Dataset):
    """256 MB of ones; says which values of them it sees, and how much memory is this process's alone."""

    def __init__(self):
        self.rows = [ones(1 << 20) for _ in range(64)]

    def __getitem__(self, index):
        return float(self.rows[index].numpy().mean()), private_megabytes()

    def __len__(self):
        return len(self.rows)


def test_a_forked_worker_reads_the_data_set_where_it_lies_also_after_the_parent_let_it_go():
    dataset = Large()
    batches = iter(DataLoader(dataset, batch_size=4, num_workers=2, prefetch_factor=1))
    first = next(batches)
    dataset.rows.clear()
    others = [zeros(1 << 20) for _ in range(64)]
    for means, megabytes in (first, *batches):
        assert (means.numpy() == 1).all()
        assert megabytes.numpy().max() < 150
    assert len(others) == 64


@pytest.mark.skipif(native is None, reason="without native code tensors have ordinary memory")
def test_memory_kept_for_workers_is_reused_when_they_have_ended():
    box = [ones(1 << 20)]
    batches = iter(DataLoader(Rows(8), num_workers=1))
    next(batches)
    before = memory.stats()["allocated"]
    box.clear()
    assert memory.stats()["allocated"] >= before
    for _ in batches:
        pass
    assert memory.stats()["allocated"] < before - (3 << 20)
