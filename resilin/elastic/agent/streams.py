"""Send a worker's standard output and error on: to the terminal, a file, or both with a prefix.

    nothing asked      inherited: the worker writes to the launcher's own streams, nothing in between
    redirect           the worker writes to its file, nothing in between
    tee                a pipe to the agent, which writes file and terminal (whole lines, prefixed), until the last
                       process that holds the other end has ended: what a worker started may outlive it

Folders: `<base>/attempt_<n>/<local_rank>/{stdout.log,stderr.log,error.json}`; never deleted by a restart. Teed lines
that hold one of `Plan.filters` go, prefixed, to `<base>/attempt_<n>/filtered_{stdout,stderr}.log`, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from resilin._base.text import visible
from resilin.elastic import failure
from resilin.elastic.agent.console import Console, Name, Sink
from resilin.elastic.agent.stream_selection import StreamSelection

_PIPE_BYTES = 1 << 20  # no pipe of an ordinary user holds more


@dataclass(frozen=True)
class Who:
    """Say whose streams they are, as far as that was known when they were made: a warm spare gets its rank late."""

    local_rank: int
    rank: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Set how the output of all workers of a node is treated."""

    base: Path
    """The folder of this run on this node."""
    keep: bool
    """Whether the user asked for the folder (`--log-dir`); otherwise it is temporary."""
    redirects: StreamSelection = field(default_factory=StreamSelection)
    tee: StreamSelection = field(default_factory=StreamSelection)
    global_ranks: bool = False
    """Whether the numbers in `redirects` and `tee` are global ranks."""
    shown_ranks: frozenset[int] | None = None
    """Local ranks whose output may reach the terminal; None: all."""
    shown_global_ranks: frozenset[int] | None = None
    """The same by global rank; output is shown when both allow it."""
    console: Console = field(default_factory=Console)
    """The terminal; whoever made it closes it."""
    filters: Mapping[Name, tuple[str, ...]] = field(default_factory=dict)
    """By stream: texts; teed lines that hold one of them are kept in a file for all ranks."""
    prefix: str = ""
    """Template for prefixes: ${role_name} ${local_rank} ${rank} ${hostname}; empty: torchrun's `[default0]:`."""

    def folder(self, attempt: int, local_rank: int) -> Path:
        """The folder of one worker, made now. `attempt`: how many processes its slot has had before."""
        path = self.base / f"attempt_{attempt}" / str(local_rank)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def open(
        self, attempt: int, local_rank: int, role: str, host: str, who: Callable[[], tuple[int, int]]
    ) -> WorkerStreams:
        """The streams of one worker. `who`: its local and its present rank."""
        return WorkerStreams(self, self.folder(attempt, local_rank), local_rank, role, host, who)

    def on_terminal(self, who: Who, name: Name) -> bool:
        """Return whether people see this stream."""
        for shown, rank in ((self.shown_ranks, who.local_rank), (self.shown_global_ranks, who.rank)):
            if shown is not None and rank not in shown:
                return False
        number = who.rank if self.global_ranks else who.local_rank
        return self.tee.has(number, name) or not self.redirects.has(number, name)

    def in_file(self, who: Who, name: Name) -> bool:
        """Return whether this stream is kept in a file."""
        number = who.rank if self.global_ranks else who.local_rank
        return not self.on_terminal(who, name) or self.tee.has(number, name)

    def prefix_for(self, local_rank: int, rank: int, role: str, host: str) -> str:
        """The text before each line of a teed stream."""
        if not self.prefix:
            return f"[{visible(role)}{local_rank}]:"
        values = {"role_name": visible(role), "local_rank": local_rank, "rank": rank, "hostname": visible(host)}
        return string.Template(self.prefix).safe_substitute(values)


class Copy:
    """A file that gets the lines with one of `needles` (None: all) until it cannot be written, which is said once."""

    def __init__(self, path: Path, on_trouble: Callable[[str], None], needles: Sequence[str] | None = None) -> None:
        self._file = path.open("ab", buffering=0)
        self._on_trouble = on_trouble
        self._needles = None if needles is None else [needle.encode() for needle in needles]
        self._ok = True

    def write(self, data: bytes) -> None:
        """Append `data`."""
        rest = memoryview(data)
        try:
            while rest and self._ok:
                rest = rest[self._file.write(rest) :]
        except OSError as error:  # a full disk ends the copy, not the job
            self._ok = False
            self._on_trouble(f"{self._file.name} is not written any more: {error.strerror}")

    def write_lines(self, head: bytes, lines: Iterable[bytes]) -> None:
        """Append those of `lines` that are wanted, each with `head` before it."""
        wanted = self._needles
        kept = [line for line in lines if wanted is None or any(needle in line for needle in wanted)]
        if kept:
            self.write(b"".join(head + line + b"\n" for line in kept))

    def close(self) -> None:
        """No more will come."""
        self._file.close()


class Pump:
    """Copies one pipe to a file, the terminal and what holds selected lines. Ends at end of file or `close()`."""

    def __init__(self, file: Copy, terminal: Sink, prefix: Callable[[], str], selected: Copy | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._file = file
        self._terminal = terminal
        self._prefix = prefix
        self._selected = selected
        self._rest = b""
        self._read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_fd, False)
        self.open = True
        self._loop.add_reader(self._read_fd, self._read)

    def started(self) -> None:
        """The worker has its end of the pipe: give up ours, so that end of file arrives when it ends."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def catch_up(self) -> None:
        """Copy what is there now."""
        left = _PIPE_BYTES  # who goes on writing meanwhile is not waited for
        while left > 0 and (count := self._read()):
            left -= count

    def close(self) -> None:
        """Copy what is there and stop."""
        self.started()
        self.catch_up()
        if self.open:
            self._end()

    def _read(self) -> int:
        """Copy a part of what is there; how much that was. One at a time: others of the loop have their turns."""
        if not self.open:
            return 0
        try:
            data = os.read(self._read_fd, 1 << 16)
        except BlockingIOError:
            return 0
        if not data:
            self._end()
            return 0
        self._file.write(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._show(lines)
        return len(data)

    def _show(self, lines: list[bytes]) -> None:
        if lines:
            head = self._prefix().encode("utf-8", "backslashreplace")
            self._terminal.write(b"".join(head + line + b"\n" for line in lines))
            if self._selected is not None:
                self._selected.write_lines(head, lines)

    def _end(self) -> None:
        self.open = False
        self._loop.remove_reader(self._read_fd)
        os.close(self._read_fd)
        if self._rest:
            self._show([self._rest])
        self._file.close()
        if self._selected is not None:
            self._selected.close()


class WorkerStreams:
    """The streams of one worker. Make it before the worker starts, call `started()` after, `ended()` at its end.

    They end by themselves when nobody can write to them any more, and with `close()`.

    `identity` gives (local rank, rank) at the time a line is shown: a warm spare gets its rank late.
    """

    def __init__(
        self, plan: Plan, folder: Path, local_rank: int, role: str, host: str, identity: Callable[[], tuple[int, int]]
    ) -> None:
        self.folder = folder
        self.error_file = folder / "error.json"
        self._plan = plan
        self._who = Who(local_rank, identity()[1])
        self._pumps: dict[Name, Pump] = {}
        self._files: dict[Name, BinaryIO] = {}
        with contextlib.ExitStack() as opened:  # closed again when there is no descriptor for one more
            for name in ("stdout", "stderr"):
                if not plan.in_file(self._who, name):
                    continue
                if plan.on_terminal(self._who, name):
                    prefix = lambda: plan.prefix_for(*identity(), role, host)  # noqa: E731 - two lines for one use
                    file = opened.enter_context(contextlib.closing(Copy(folder / f"{name}.log", self._say)))
                    selected = self._selected(name)
                    if selected is not None:
                        opened.callback(selected.close)
                    self._pumps[name] = Pump(file, plan.console.sink(name), prefix, selected)
                    opened.callback(self._pumps[name].close)
                else:
                    plain = (folder / f"{name}.log").open("ab", buffering=0)
                    self._files[name] = opened.enter_context(plain)
            opened.pop_all()

    def _selected(self, name: Name) -> Copy | None:
        """What the stream shares with that of the other ranks of its attempt, if lines are to be selected."""
        needles = self._plan.filters.get(name)
        return Copy(self.folder.parent / f"filtered_{name}.log", self._say, needles) if needles else None

    def _say(self, text: str) -> None:
        print(f"elastic-run: {visible(text)}", file=self._plan.console.text)

    def fd(self, name: Name) -> int | None:
        """The descriptor to give to the worker; None: it inherits."""
        if name in self._pumps:
            return self._pumps[name].write_fd
        return self._files[name].fileno() if name in self._files else None

    def started(self) -> None:
        """The worker holds its descriptors."""
        for pump in self._pumps.values():
            pump.started()
        for file in self._files.values():
            file.close()

    def ended(self) -> None:
        """The worker has ended: what it wrote is shown and stored now, what it has left behind may write on."""
        self.started()
        for pump in self._pumps.values():
            pump.catch_up()

    @property
    def open(self) -> bool:
        """Return whether there may be more to come."""
        return any(pump.open for pump in self._pumps.values())

    def close(self) -> None:
        """Show and store what is left in the pipes; no more is read."""
        self.started()
        for pump in self._pumps.values():
            pump.close()

    @property
    def stderr_shown(self) -> bool:
        """Return whether people have seen its standard error already."""
        return self._plan.on_terminal(self._who, "stderr")

    @property
    def stderr_kept(self) -> bool:
        """Return whether its standard error is in a file."""
        return self._plan.in_file(self._who, "stderr")

    def tail(self) -> tuple[str, ...]:
        """The last lines of its standard error, if they are in a file: enough for a long traceback."""
        return failure.read_tail(self.folder / "stderr.log") if self.stderr_kept else ()
