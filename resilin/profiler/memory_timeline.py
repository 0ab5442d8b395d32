"""How much memory was in use over time, and for what: as far as what was recorded tells.

What each block is for follows from where it was taken and how long it lived. Parameters, gradients and the state of
optimizers are known by the objects that hold them when the recording ends; what was freed before then is judged by the
spans around its birth: the node of backward, the optimizer, the loader, the operation.
"""

from __future__ import annotations

import gzip
import json
import os
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from resilin._base.trace import SpanKind
from resilin._base.trace_ring import Span
from resilin.core.whole_file import write_whole
from resilin.profiler import memory_page
from resilin.profiler.memory_owners import Category, Owned
from resilin.profiler.nesting import Placed
from resilin.profiler.recorded import Recorded

ORDER: tuple[Category | None, ...] = (
    Category.PARAMETER,
    Category.OPTIMIZER_STATE,
    Category.INPUT,
    Category.TEMPORARY,
    Category.ACTIVATION,
    Category.GRADIENT,
    Category.AUTOGRAD_DETAIL,
    None,
)
"""Categories by their numbers in files; None: not known."""
PREEXISTING, CREATE, DESTROY = 1, 2, 4
NEVER = 1 << 63
"""When a block dies that is alive when the recording ends."""


@dataclass(slots=True)
class MemoryBlock:
    """Memory from when it was taken to when it was given back, nanoseconds of the monotonic clock."""

    address: int
    nbytes: int
    born_ns: int | None
    """None: before the recording began."""
    died_ns: int
    """2**63: not before it ended."""
    thread: int
    category: Category | None = None
    around: Placed | None = None
    """The innermost span that it was taken in; None: outside of all, or before the recording."""


class MemoryTimeline:
    """What `export_memory_timeline` writes."""

    def __init__(self, recorded: Recorded, owned: list[Owned]) -> None:
        self._recorded = recorded
        self.blocks = _blocks(recorded.memory)
        _judge_by_spans(self.blocks, recorded)
        self.blocks += _judge_by_owners(self.blocks, owned)

    def changes(self) -> list[tuple[int, int, int, int]]:
        """Return each change by time: (nanoseconds since 1970, action, bytes, category); -1: before the recording."""
        found = []
        for block in self.blocks:
            number = ORDER.index(block.category)
            if block.born_ns is None:
                found.append((-1, PREEXISTING, block.nbytes, number))
            else:
                found.append((self._recorded.wall_ns(block.born_ns), CREATE, block.nbytes, number))
            if block.died_ns < NEVER:
                found.append((self._recorded.wall_ns(block.died_ns), DESTROY, -block.nbytes, number))
        found.sort(key=lambda change: change[0])
        return found

    def sizes(self) -> tuple[list[int], list[list[int]]]:
        """Return the times of changes in microseconds, and at each [0, bytes of each category in ORDER]."""
        times: list[int] = []
        sizes: list[list[int]] = []
        changes = self.changes()
        first = next((change[0] for change in changes if change[0] >= 0), self._recorded.wall_ns(0)) // 1000
        for nanoseconds, _, nbytes, number in changes:
            time = first if nanoseconds < 0 else nanoseconds // 1000
            if not times or time != times[-1]:
                times.append(time)
                sizes.append(list(sizes[-1]) if sizes else [0] * (len(ORDER) + 1))
            sizes[-1][number + 1] += nbytes
        return times, sizes

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it whole, as the end of `path` says. OSError that names `path`."""
        name = os.fspath(path)
        if name.endswith(".html"):
            names = ["not known" if one is None else one.name.lower().replace("_", " ") for one in ORDER]
            data = memory_page.page(*self.sizes(), names).encode()
        else:
            content: Any = self.changes() if name.endswith(("raw.json", "raw.json.gz")) else self.sizes()
            data = json.dumps(content).encode()
            if name.endswith(".gz"):
                data = gzip.compress(data)
        write_whole(path, lambda file: file.write(data))


def _blocks(memory: list[Span]) -> list[MemoryBlock]:
    """What was taken, with what was given back; what was given back only was there before."""
    blocks: list[MemoryBlock] = []
    alive: dict[int, MemoryBlock] = {}
    for moment in memory:
        if moment.value > 0:
            alive[moment.link] = MemoryBlock(moment.link, moment.value, moment.start_ns, NEVER, moment.thread)
            blocks.append(alive[moment.link])
        elif moment.value < 0:
            block = alive.pop(moment.link, None)
            if block is None:
                blocks.append(MemoryBlock(moment.link, -moment.value, None, moment.start_ns, moment.thread))
            else:
                block.died_ns = moment.start_ns
    return blocks


def _judge_by_owners(blocks: list[MemoryBlock], owned: list[Owned]) -> list[MemoryBlock]:
    """Say of blocks that are alive at the end whose they are, and return those that were there all the time."""
    alive = sorted((block for block in blocks if block.died_ns == NEVER), key=lambda block: block.address)
    addresses = [block.address for block in alive]
    before: list[MemoryBlock] = []
    for one in owned:
        at = bisect_right(addresses, one.address) - 1
        if at >= 0 and one.address < alive[at].address + alive[at].nbytes:
            alive[at].category = one.category
        elif not before or one.address >= before[-1].address + before[-1].nbytes:  # parts of one tensor count once
            before.append(MemoryBlock(one.address, one.nbytes, None, NEVER, 0, one.category))
    return before


def _judge_by_spans(blocks: list[MemoryBlock], recorded: Recorded) -> None:
    """Say what blocks are for by the spans that they were taken in."""
    threads: dict[int, list[Placed]] = {}
    forward: dict[int, list[int]] = {}  # where operations outside of backward begin
    for one in recorded.placed:
        if one.lane == 0:
            threads.setdefault(one.span.thread, []).append(one)
            if one.span.kind in (SpanKind.OP, SpanKind.OPTIMIZER) and _outermost(one, SpanKind.BACKWARD) is None:
                forward.setdefault(one.span.thread, []).append(one.start_ns)
    starts = {thread: [one.start_ns for one in spans] for thread, spans in threads.items()}
    for block in blocks:
        if block.born_ns is None or block.thread not in threads:
            continue
        around: Placed | None = None
        at = bisect_right(starts[block.thread], block.born_ns) - 1
        if at >= 0:
            around = threads[block.thread][at]
            while around is not None and around.end_ns < block.born_ns:
                around = around.parent
        if around is not None:
            block.around = around
            block.category = _category(block, around, forward.get(block.thread, []))


def _category(block: MemoryBlock, around: Placed, forward: list[int]) -> Category | None:
    born, died = block.born_ns or 0, block.died_ns
    for kind, kept in ((SpanKind.OPTIMIZER, Category.OPTIMIZER_STATE), (SpanKind.DATA, Category.INPUT)):
        found = _outermost(around, kind)
        if found is not None:
            return kept if died > found.end_ns else Category.TEMPORARY
    if _outermost(around, SpanKind.BACKWARD) is not None:
        following = bisect_right(forward, born)
        ended = forward[following] if following < len(forward) else NEVER - 1
        return Category.GRADIENT if died > ended else Category.AUTOGRAD_DETAIL
    operation = _outermost(around, SpanKind.OP)
    if operation is None:
        return None
    if died <= operation.end_ns:
        return Category.TEMPORARY
    while around is not operation and around.span.link < 0 and around.parent is not None:
        around = around.parent
    return Category.ACTIVATION if around.span.link >= 0 else None  # without a node, it is not part of the graph


def _outermost(one: Placed | None, kind: SpanKind) -> Placed | None:
    """The outermost span of this kind among a span and those around it."""
    found = None
    while one is not None:
        if one.span.kind is kind:
            found = one
        one = one.parent
    return found
