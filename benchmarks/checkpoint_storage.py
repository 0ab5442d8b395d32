"""At what rate does a folder take and give a file, and what do advice to the system and O_DIRECT change?"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Options, Report
from resilin.checkpoint import local
from resilin.checkpoint.local import LocalStorage

PIECE = 16 << 20

METHOD = """One process, one thread, the folder that the benchmark runs in; {mib} MiB in pieces of 16 MiB, from and
into memory that is in use already. Writing: a new file up to the end of its fsync, after a sync of the whole system.
Reading: after the system was told to forget the file. `LocalStorage` tells the system after each 8 MiB that it may
write them now and keep no copy (posix_fadvise); without advice the file fills the cache, and fsync waits for the disk.
Variants take turns; medians of {rounds} rounds after one that is not counted."""


def benchmark(options: Options) -> Report:
    """All variants, in turns."""
    nbytes, rounds = (64 << 20, 2) if options.quick else (1 << 30, 5)
    memory = mmap.mmap(-1, nbytes)  # at the start of a page, as O_DIRECT needs it
    memory.write(os.urandom(1 << 20) * (nbytes >> 20))
    view = memoryview(memory)
    with tempfile.TemporaryDirectory(prefix="storage-", dir=Path.cwd()) as folder:
        variants = _variants(LocalStorage(folder), Path(folder) / "file", view)
        samples: dict[str, list[float]] = {what: [] for what in variants}
        for number in range(rounds + 1):
            with harness.progress(f"round {number}"):
                for what, run in variants.items():
                    os.sync()
                    seconds = run()
                    if number:
                        samples[what].append(seconds)
    rows = [harness.timing_row(what, {"resilin": found}, unit="ms") for what, found in samples.items()]
    return Report(
        name="checkpoint_storage",
        question=f"{nbytes >> 20} MiB written to and read from a folder.",
        method=METHOD.format(mib=nbytes >> 20, rounds=rounds),
        rows=rows,
        data={"nbytes": nbytes, "seconds": samples},
    )


def _variants(storage: LocalStorage, path: Path, view: memoryview) -> dict[str, Callable[[], float]]:
    """Each writes or reads the same file and returns its seconds."""

    def write() -> None:
        with storage.writing(path.name) as file:
            for start in range(0, len(view), PIECE):
                file.write(view[start : start + PIECE])

    def write_without_advice() -> None:
        sent, local._SENT_BYTES = local._SENT_BYTES, len(view) + 1
        try:
            write()
        finally:
            local._SENT_BYTES = sent

    def write_directly() -> None:
        fd = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CREAT, 0o644)
        for start in range(0, len(view), PIECE):
            os.write(fd, view[start : start + PIECE])
        os.fsync(fd)
        os.close(fd)

    def read() -> None:
        for start in range(0, len(view), PIECE):
            storage.read_into(path.name, start, view[start : start + PIECE])

    def read_directly() -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        for start in range(0, len(view), PIECE):
            os.preadv(fd, [view[start : start + PIECE]], start)
        os.close(fd)

    def timed(run: Callable[[], None], before: Callable[[Path], None]) -> Callable[[], float]:
        def once() -> float:
            before(path)
            start = time.perf_counter()
            run()
            return time.perf_counter() - start

        return once

    return {
        "write, LocalStorage": timed(write, _remove),
        "write, LocalStorage without advice": timed(write_without_advice, _remove),
        "write, O_DIRECT": timed(write_directly, _remove),
        "read cold, LocalStorage": timed(read, _forget),
        "read cold, O_DIRECT": timed(read_directly, _forget),
    }


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _forget(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
