"""Arrays live in arenas that others can map; freed memory is reused; forks keep private copies."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import loader
from resilin.core.machine import memory

pytestmark = pytest.mark.slow  # most start a process

PAGE = 4096


@pytest.fixture(autouse=True)
def arenas() -> Iterator[None]:
    memory.install()
    yield
    gc.collect()


def _mapped(array: Any) -> Any:
    """The array's bytes as another process would see them: through the arena's descriptor."""
    place = memory.locate(array)
    assert place is not None
    arena, offset = place
    with mmap.mmap(memory.arena_fd(arena), memory.arena_size(arena), mmap.MAP_SHARED, mmap.PROT_READ) as view:
        return np.frombuffer(view[offset : offset + array.nbytes], array.dtype).reshape(array.shape)


def test_an_array_can_be_read_through_its_arena() -> None:
    x = np.arange(10_000, dtype=np.float32)
    np.testing.assert_array_equal(_mapped(x), x)
    x *= 2
    np.testing.assert_array_equal(_mapped(x), x)


def test_views_are_located_at_their_first_element() -> None:
    x = np.zeros((100, 100))
    place = memory.locate(x)
    assert place is not None
    arena, offset = place
    assert memory.locate(x[3:, 5:]) == (arena, offset + 8 * 305)
    assert memory.locate(x[::-1]) == (arena, offset + 8 * 9900)
    assert memory.locate(x.T) == place


def test_foreign_small_and_empty_arrays_have_no_place() -> None:
    assert memory.locate(np.frombuffer(bytearray(1 << 20), np.uint8)) is None
    assert memory.locate(np.zeros(10)) is None
    assert memory.locate(np.zeros((0, 4096))) is None


def test_large_arrays_are_aligned_to_cache_lines() -> None:
    for size in (PAGE, 5000, 1 << 20):
        assert np.empty(size, np.uint8).ctypes.data % 64 == 0


def test_the_block_freed_last_is_reused_first() -> None:
    first, second = np.empty(1 << 20, np.uint8), np.empty(1 << 20, np.uint8)
    address = second.ctypes.data
    before = memory.stats()["hits"]
    del first, second
    assert np.empty(1 << 20, np.uint8).ctypes.data == address
    assert memory.stats()["hits"] > before


def test_zeros_are_zero_in_reused_blocks() -> None:
    for size in (100, PAGE, 1 << 20):
        dirty = np.full(size, 255, np.uint8)
        del dirty
        assert not np.zeros(size, np.uint8).any()


def test_resize_keeps_the_content_across_all_size_classes() -> None:
    x = np.arange(10, dtype=np.int64)
    for size in (100, 1000, 100_000, 101_000, 300, 5):
        kept = min(x.size, size)
        x.resize(size, refcheck=False)
        np.testing.assert_array_equal(x[: min(kept, 10)], np.arange(min(kept, 10)))


def _collapses() -> bool:
    """Whether this kernel makes a huge page of an arena's memory when it is asked to."""
    unit, some = 2 << 20, np.ones(4 << 20, np.uint8)
    aligned = (some.ctypes.data + unit - 1) // unit * unit
    return ctypes.CDLL(None).madvise(ctypes.c_void_p(aligned), ctypes.c_size_t(unit), 25) == 0


_REUSES = """
import time
import numpy as np
from resilin.core.machine import memory
memory.install()
def kib(name):
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":"))
kept, lazy = np.arange(LENGTH, dtype=np.int32), np.zeros(64 << 20, np.uint8)
before, end = kib("Rss"), time.monotonic() + 30  # a collapse may take long, and takes a twentieth of the time at most
while kib("ShmemPmdMapped") < WANTED and time.monotonic() < end:
    for _ in range(40):
        np.ones(8 << 20, np.uint8)
print(kib("ShmemPmdMapped"), kib("Rss") - before)
assert np.array_equal(kept, np.arange(LENGTH, dtype=np.int32))
assert not lazy.any()
"""


@pytest.mark.parametrize(("kept_mib", "huge_mib"), [(16, 8), (80, 24)], ids=["in its arena", "in one of its own"])
def test_memory_moves_into_huge_pages_as_some_is_used_again_and_nothing_else_becomes_resident(
    kept_mib: int, huge_mib: int
) -> None:
    if not _collapses():
        pytest.skip("this kernel has no MADV_COLLAPSE for shared memory, or no huge page free")
    text = _REUSES.replace("LENGTH", str(kept_mib << 18)).replace("WANTED", str(huge_mib << 10))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    huge, grown = (int(number) for number in done.stdout.split())
    assert huge >= huge_mib << 10
    assert grown < 12 << 10, "the 8 MiB that were written, and not the 64 that were not"


_IS_NEW = """
import numpy as np
from resilin.core.machine import memory
memory.install()
def kib(name):
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":"))
before, huge, kept = kib("Rss"), 0, []
for i in range(24):  # the kernel may have to look for a huge page, after which some blocks do without
    kept.append(np.full(3 << 20, i, np.uint8))
    huge = max(huge, kib("ShmemPmdMapped"))
grown = kib("Rss") - before
lazy = np.empty(64 << 20, np.uint8)
print(huge, grown, kib("Rss") - before - grown)
assert all((x == i).all() for i, x in enumerate(kept))
"""


def test_new_memory_comes_in_huge_pages_but_that_of_large_arrays_as_it_is_written() -> None:
    if not _collapses():
        pytest.skip("this kernel has no MADV_COLLAPSE for shared memory, or no huge page free")
    done = subprocess.run([sys.executable, "-c", _IS_NEW], capture_output=True, text=True, timeout=60, check=True)
    huge, grown, lazy = (int(number) for number in done.stdout.split())
    assert huge >= 2 << 10
    assert grown < (24 * 3 + 4) << 10, "what was written, and the rest of the last huge page"
    assert lazy < 4 << 10


def test_what_lies_behind_a_block_in_its_huge_page_is_zero_for_the_next() -> None:
    kept = [np.full(65 * PAGE, 7, np.uint8) for _ in range(20)]
    for size in (3, 65, 700, 1300):
        assert not np.zeros(size * PAGE, np.uint8).any()
    assert all((x == 7).all() for x in kept)


def test_an_array_larger_than_an_arena_gets_its_own() -> None:
    x = np.empty(100 << 20, np.uint8)  # never written: costs address space only
    place = memory.locate(x)
    assert place is not None
    assert memory.arena_size(place[0]) >= x.nbytes


def test_emptying_the_cache_releases_free_arenas_and_never_reuses_their_ids() -> None:
    memory.empty_cache()
    reserved = memory.stats()["reserved"]
    x = np.empty(200 << 20, np.uint8)
    place = memory.locate(x)
    assert place is not None
    arena = place[0]
    fd = memory.arena_fd(arena)
    del x
    memory.empty_cache()
    assert memory.stats()["reserved"] <= reserved
    with pytest.raises(KeyError):
        memory.arena_fd(arena)
    with pytest.raises(KeyError):
        memory.arena_size(arena)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    y = np.empty(200 << 20, np.uint8)
    again = memory.locate(y)
    assert again is not None
    assert again[0] > arena


def test_emptying_the_cache_returns_pages_of_free_blocks_in_used_arenas() -> None:
    keep = np.ones(PAGE, np.uint8)
    big = np.ones(32 << 20, np.uint8)
    place = memory.locate(big)
    assert place is not None
    fd = memory.arena_fd(place[0])
    before = os.fstat(fd).st_blocks
    del big
    memory.empty_cache()
    assert keep.all()
    try:
        after = os.fstat(fd).st_blocks
    except OSError:
        after = 0  # the whole arena went
    assert after <= before - (30 << 20) // 512
    assert not np.zeros(32 << 20, np.uint8).any()


def test_stats_count_what_is_in_use() -> None:
    gc.collect()
    before = memory.stats()
    x = np.empty(1 << 20, np.uint8)
    during = memory.stats()
    assert during["allocated"] - before["allocated"] == 1 << 20
    assert during["peak"] >= during["allocated"]
    assert during["reserved"] >= during["allocated"]
    del x
    assert memory.stats()["allocated"] == before["allocated"]


def test_another_thread_allocates_from_the_arenas_after_installing() -> None:
    places: list[tuple[int, int] | None] = []

    def work() -> None:
        places.append(memory.locate(np.zeros(1 << 16)))
        memory.install()
        places.append(memory.locate(np.zeros(1 << 16)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert places[0] is None
    assert places[1] is not None


def test_blocks_in_use_never_overlap_whatever_is_allocated_and_freed() -> None:
    random = np.random.default_rng(3)
    live: dict[int, Any] = {}
    for i in range(4000):
        if live and random.random() < 0.5:
            number, x = live.popitem() if random.random() < 0.5 else _take_oldest(live)
            assert (x == number % 251).all()
        else:
            live[i] = np.full(int(2 ** random.uniform(0, 20)), i % 251, np.uint8)
        if i % 500 == 0:
            memory.empty_cache()
    for number, x in live.items():
        assert (x == number % 251).all()


def _take_oldest(live: dict[int, Any]) -> tuple[int, Any]:
    number = next(iter(live))
    return number, live.pop(number)


def test_threads_allocate_and_free_at_once() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        memory.install()
        random = np.random.default_rng(seed)
        live = []
        for _ in range(1000):
            live.append(np.full(int(2 ** random.uniform(10, 18)), seed, np.uint8))
            if len(live) > 8:
                x = live.pop(int(random.integers(8)))
                if not (x == seed).all():
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def _in_child(check: Callable[[], bool]) -> int:
    """Fork, run `check` in the child, return its exit status: 0 for True."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        status = 1
        try:
            status = 0 if check() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_keeps_private_copies() -> None:
    x = np.arange(1 << 16, dtype=np.float32)
    expected = x.copy()
    reader, writer = os.pipe()

    def check() -> bool:
        os.read(reader, 1)  # the parent has overwritten its array by now
        same = bool((x == expected).all())
        x[:] = -1
        y = np.full(1 << 16, 5.0)
        fresh = memory.locate(y) is not None and memory.locate(x) is None
        return same and fresh and bool((y == 5.0).all())

    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        status = 1
        try:
            status = 0 if check() else 2
        finally:
            os._exit(status)
    x[:] = 7
    os.write(writer, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(reader)
    os.close(writer)
    assert (x == 7).all()


def test_a_forked_child_can_fork_again_and_free_what_it_inherited() -> None:
    box = [np.ones(1 << 18, np.uint8)]

    def check() -> bool:
        grandchild = _in_child(lambda: bool(box[0].all()))
        box.clear()
        return grandchild == 0 and bool(np.ones(1 << 20, np.uint8).all())

    assert _in_child(check) == 0
    assert box[0].all()


def test_descriptors_are_not_inherited_by_programs() -> None:
    x = np.zeros(1 << 16)
    place = memory.locate(x)
    assert place is not None
    assert not os.get_inheritable(memory.arena_fd(place[0]))


@pytest.mark.parametrize("body", ["", "import numpy as np; x = np.ones(1 << 20); m.empty_cache()"])
def test_the_interpreter_ends_cleanly_with_arrays_alive(body: str) -> None:
    begin = "from resilin.core.machine import memory as m; m.install()\nimport numpy as np; keep = np.ones(1 << 20)\n"
    program = begin + body
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("limit", "value"), [("RLIMIT_AS", 3 << 30), ("RLIMIT_NOFILE", 7)])
def test_arrays_work_where_address_space_or_descriptors_run_out(limit: str, value: int) -> None:
    program = (
        f"import resource; resource.setrlimit(resource.{limit}, ({value}, {value}))\n"
        "import numpy as np\nfrom resilin.core.machine import memory\nmemory.install()\n"
        "n = 65 << 20\nkeep = [np.zeros(n, np.uint8) for _ in range(20)]\n"  # more than an arena each, hardly touched
        "for i, x in enumerate(keep): x[-1] = i\n"
        "keep[0].resize(n + 4096, refcheck=False)\n"
        "assert [int(x[n - 1]) for x in keep] == list(range(20))\n"
        "assert memory.locate(keep[-1]) is None\nkeep.clear(); del x; memory.empty_cache()\n"
        "assert memory.stats()['allocated'] == 0"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_native_code_memory_is_ordinary_and_says_so() -> None:
    program = (
        "import numpy as np\nfrom resilin.core.machine import memory\n"
        "from resilin.core.kernels import loader, softmax\n"
        "memory.install(); memory.empty_cache()\nassert loader.native is None\n"
        "assert memory.locate(np.ones(1 << 20)) is None and memory.stats()['allocated'] == 0\n"
        "assert softmax.forward(np.zeros((2, 2), np.float32)).tolist() == [[0.5, 0.5]] * 2\n"
        "print(loader.describe())"
    )
    env = {**os.environ, "RESILIN_NATIVE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, env=env
    )
    assert done.stdout.startswith("numpy references (no native kernels: RESILIN_NATIVE=0 is set")
    assert loader.native is not None


class _ReaderChild:
    """A child forked under `readers` that answers questions about the arrays it inherited."""

    def __init__(self, readers: memory.Readers, answer: Callable[[], bool]) -> None:
        asked, self._ask = os.pipe()
        with readers.forking():
            self._pid = os.fork()
        if self._pid == 0:
            signal.alarm(30)
            status = 1
            try:
                os.read(asked, 1)
                status = 0 if answer() else 2
            finally:
                os._exit(status)
        os.close(asked)

    def says_yes(self) -> bool:
        self.ask()
        return self.said_yes()

    def ask(self) -> None:
        os.write(self._ask, b"?")
        os.close(self._ask)

    def said_yes(self) -> bool:
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1]) == 0


def test_a_reader_sees_arrays_that_its_parent_has_freed_since() -> None:
    size = 5 << 20
    box = [np.full(size, 3, np.uint8)]
    readers = memory.Readers()
    child = _ReaderChild(readers, lambda: bool((box[0] == 3).all()))
    address = box.pop().ctypes.data
    others = [np.full(size, 9, np.uint8) for _ in range(8)]
    assert address not in [x.ctypes.data for x in others]
    memory.empty_cache()
    del others
    memory.empty_cache()
    assert child.says_yes()
    readers.close()


def test_memory_kept_for_readers_is_reused_when_the_last_of_them_is_gone() -> None:
    size = 5 << 20
    first, second = memory.Readers(), memory.Readers()
    x = np.full(size, 3, np.uint8)
    children = [_ReaderChild(first, lambda: True), _ReaderChild(second, lambda: True)]
    address, before = x.ctypes.data, memory.stats()["allocated"]
    del x
    assert memory.stats()["allocated"] == before
    assert all(child.says_yes() for child in children)
    second.close()
    assert np.empty(size, np.uint8).ctypes.data != address
    first.close()
    first.close()
    assert memory.stats()["allocated"] == before - size
    assert np.empty(size, np.uint8).ctypes.data == address


def test_memory_younger_than_every_reader_is_reused_at_once() -> None:
    readers = memory.Readers()
    child = _ReaderChild(readers, lambda: True)
    x = np.full(5 << 20, 3, np.uint8)
    address = x.ctypes.data
    del x
    assert np.empty(5 << 20, np.uint8).ctypes.data == address
    assert child.says_yes()
    readers.close()


def _private_bytes() -> int:
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Private_Dirty"))


def _private_bytes_around(address: int) -> int:
    """Of the mapping that holds `address`, how much belongs to this process alone."""
    inside = False
    with open("/proc/self/smaps", encoding="ascii") as file:
        for line in file:
            if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                inside = int(found[1], 16) <= address < int(found[2], 16)
            elif inside and line.startswith("Private_Dirty"):
                return int(line.split()[1]) << 10
    raise AssertionError(f"no mapping holds {address:#x}")


def test_a_reader_copies_nothing_and_what_it_writes_is_its_own() -> None:
    x = np.ones(64 << 20, np.uint8)
    readers = memory.Readers()

    def answer() -> bool:
        copied = _private_bytes_around(x.ctypes.data + (32 << 20))
        before = _private_bytes()
        whole = bool((x == 1)[::PAGE].all()) and int(x[::PAGE].sum()) == x.size // PAGE
        x[:PAGE] = 7
        return whole and copied < 32 << 20 and _private_bytes() < before + (80 << 20) and bool((x[:PAGE] == 7).all())

    assert _ReaderChild(readers, answer).says_yes()
    readers.close()
    assert (x == 1).all()


def test_a_child_of_a_reader_owns_its_arrays() -> None:
    x = np.full(1 << 20, 3, np.uint8)
    readers = memory.Readers()
    ready, tell = os.pipe()

    def answer() -> bool:
        pid = os.fork()
        if pid == 0:
            os.write(forked[1], b"x")
            os.read(ready, 1)  # the first process has written by now
            os._exit(0 if (x == 3).all() else 2)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    forked = os.pipe()
    child = _ReaderChild(readers, answer)
    child.ask()
    os.read(forked[0], 1)
    x[:] = 4
    os.write(tell, b"x")
    assert child.said_yes()
    readers.close()
    for fd in (ready, tell, *forked):
        os.close(fd)


def test_signals_do_not_end_the_wait_for_a_child_that_copies() -> None:
    keep = np.ones(128 << 20, np.uint8)
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert came
    assert status == 0
    assert keep[-1] == 1


def test_a_fork_without_descriptors_to_copy_safely_ends_the_child_and_says_why() -> None:
    program = (
        "import os, resource\nimport numpy as np\nfrom resilin.core.machine import memory\nmemory.install()\n"
        "x = np.ones(1 << 20)\nused = [os.dup(1)]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (used[0] + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "pid = os.fork()\nif pid == 0: os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "127\n"
    assert "no descriptors were left" in done.stderr


def _all_memory() -> int:
    """Bytes of memory and swap of this machine."""
    with open("/proc/meminfo") as file:
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in file}
    return (sizes["MemTotal"] + sizes["SwapTotal"]) * 1024


@pytest.mark.skipif(loader.native is None, reason="numpy's own allocator asks the kernel, which may promise anything")
def test_a_block_that_memory_cannot_hold_is_refused_before_it_is_touched() -> None:
    size = _all_memory() + (1 << 30)
    for make in (np.empty, np.zeros):
        with pytest.raises(MemoryError):
            make(size, np.uint8)
    with pytest.raises(RuntimeError, match="not enough memory"):
        resilin.empty(size, dtype=resilin.uint8)
    side = resilin.ones(int((size / 4) ** 0.5) + 1)
    with pytest.raises(RuntimeError, match="not enough memory"):
        resilin.kron(side, side)


@pytest.mark.skipif(loader.native is None, reason="numpy's own allocator has no arenas")
def test_cached_blocks_make_room_for_a_huge_one() -> None:
    size = 1 << 30
    for _ in range(3):  # none of these pages is touched
        block = np.empty(size, np.uint8)
        assert memory.locate(block) is not None
        size += 1 << 20
        del block
