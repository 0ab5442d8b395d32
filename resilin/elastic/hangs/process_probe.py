"""Look at a worker from outside, as far as the kernel and its files tell: nothing here needs the worker's help."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from resilin._base import flight, stacks
from resilin._base.clock import Clock
from resilin._base.flight_record import Call
from resilin.elastic.hangs.stall_record import Doing
from resilin.errors import UsageError

STACKS_S = 1.0  # a process that runs at all writes its stacks within this; asked for again, it adds to the same file
_SETTLED_S = 0.05  # and what has not grown for this is whole
_BUSY_SHARE = 0.02  # of one processor: what threads of an idle interpreter use by waking up
_NOISE_SHARE = 0.1  # and what threads use beside one that sleeps to say that they live, to count, to write a line
_NOISE_BYTES = 64 << 10  # a second, for the same
_MOST_CHARS = 20_000


@dataclass(frozen=True)
class Use:
    """Record what a worker and the processes it has started have used so far."""

    ticks: int  # of processors
    moved: int  # bytes read and written, by any system call
    faults: int  # pages touched for the first time
    main: int = 0  # ticks of the worker's main thread


def use_of(workers: Collection[int]) -> dict[int, Use]:
    """By worker, which leads a session of its own: what all processes of that session have used."""
    result = {pid: Use(0, 0, 0, _ticks(f"/proc/{pid}/task/{pid}")) for pid in workers}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended, or is not ours
                fields = _fields(entry.path)
                session, ticks = int(fields[3]), int(fields[11]) + int(fields[12])
                if session in result:
                    known = result[session]
                    faults = int(fields[7]) + int(fields[9])
                    moved = _moved(int(entry.name))
                    result[session] = Use(known.ticks + ticks, known.moved + moved, known.faults + faults, known.main)
    return result


def doing(pid: int, before: Use, after: Use, seconds: float) -> Doing:
    """Say what worker `pid` is at, by what it has used in so many seconds."""
    state = _state(pid)
    if state in ("T", "t"):
        return "stopped" if state == "T" else "traced"
    ticks = (after.ticks - before.ticks) / os.sysconf("SC_CLK_TCK")
    asleep_in_kernel = state == "D"  # a slow disk or network file system: it comes back, or nothing can end it
    return "busy" if asleep_in_kernel or ticks > _BUSY_SHARE * seconds or after.moved != before.moved else "idle"


def is_quiet(before: Use, after: Use, seconds: float) -> bool:
    """Return whether a worker has read and written nothing meanwhile, and touched no new memory.

    Or whether its main thread slept all the time, and the others did no more than make a little noise.
    """
    if (before.moved, before.faults) == (after.moved, after.faults):
        return True
    share = (after.ticks - before.ticks) / os.sysconf("SC_CLK_TCK") / seconds
    noise = share <= _NOISE_SHARE and after.moved - before.moved <= _NOISE_BYTES * seconds
    return before.main == after.main and noise


def _moved(pid: int) -> int:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))
    return 0


def _ticks(folder: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = _fields(folder)
        return int(fields[11]) + int(fields[12])
    return 0


def _state(pid: int) -> str:
    with contextlib.suppress(OSError, IndexError):
        return _fields(f"/proc/{pid}")[0]
    return ""


def _fields(folder: str) -> list[str]:
    """Of the file `stat` of a process or thread, from its state on."""
    return Path(folder, "stat").read_text(errors="replace").rpartition(")")[2].split()


# ---------------------------------------------------------------------------------------------- stacks


async def gathered(asked: Iterable[tuple[int, Path, Callable[[int], None]]], clock: Clock) -> dict[int, str]:
    """By pid, the Python stack of the main thread of workers that can write it.

    asked: of each worker its pid, its folder, and what sends it a signal.
    """
    files: dict[int, tuple[Path, int]] = {}
    for pid, folder, send in asked:
        path = folder / stacks.FILE
        if _size(path) >= 0 and stacks.answers(pid):
            files[pid] = path, _size(path)
            send(int(stacks.SIGNAL))
    sizes = {pid: size for pid, (_, size) in files.items()}
    end, since = clock.monotonic() + STACKS_S, clock.monotonic()
    while (now := clock.monotonic()) < end:
        await asyncio.sleep(_SETTLED_S / 5)
        fresh = {pid: _size(path) for pid, (path, _) in files.items()}
        if fresh != sizes:
            sizes, since = fresh, now
        elif now - since > _SETTLED_S and all(sizes[pid] > size for pid, (_, size) in files.items()):
            break
    return {pid: text for pid, (path, size) in files.items() if (text := _tail(path, size))}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _tail(path: Path, start: int) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(start)
        return file.read(_MOST_CHARS).decode("utf-8", "replace")
    return ""


# ------------------------------------------------------------------------------------- flight recorder


class Calls(NamedTuple):
    """Record what the flight recorder of a worker holds."""

    calls: tuple[Call, ...] = ()
    unread: str = ""
    """What of it cannot be read, and why, for people; "": nothing."""


NO_RECORDER = "it has no flight recorder: RESILIN_TRACE_CALLS=0, no room for it, or no group"


def calls(folder: Path, pid: int) -> Calls:
    """Read what the flight recorder of a worker holds."""
    path = _recorder(folder, pid)
    if path is None:
        return Calls(unread=NO_RECORDER)
    try:
        found = flight.read(path)
    except (OSError, UsageError) as error:
        return Calls(unread=f"its flight recorder cannot be read: {error}")
    return Calls(found.calls, f"{path}: {found.damage}" if found.damage else "")


def inside(folder: Path, pid: int) -> str:
    """The collective or message that process `pid` is in, or was in when it ended: "all_reduce #41 float32[8] SUM of
    group 'world'"; "" for none."""
    path = _recorder(folder, pid)
    with contextlib.suppress(OSError):
        found = flight.running(path) if path is not None else ()
        for call in sorted(found, key=lambda each: each.sequence < 0):  # collectives first
            return f"{call} of group {call.group!r}"
    return ""


def count(folder: Path, pid: int) -> int:
    """Count the calls that its flight recorder has seen: grows with each, and costs a millisecond to read.

    OSError, UsageError: it cannot be read.
    """
    path = _recorder(folder, pid)
    return 0 if path is None else flight.newest(path)


def _recorder(folder: Path, pid: int) -> Path | None:
    """The newest file of process `pid`: a number may have been another one's before."""
    name = f"{socket.gethostname()}_{pid}"
    with contextlib.suppress(OSError):
        files = [*folder.glob(f"{name}{flight.SUFFIX}"), *folder.glob(f"{name}_*{flight.SUFFIX}")]
        return max(files, key=lambda path: path.stat().st_mtime, default=None)
    return None
