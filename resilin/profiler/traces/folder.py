"""Finds the traces in folders, reads each, and sorts them into ranks. What cannot be used is said, not hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path

from resilin._base import span_file
from resilin.errors import UsageError
from resilin.profiler.traces import chrome_file, memory_file
from resilin.profiler.traces.rank_trace import RankTrace

SUFFIXES = (".json", ".json.gz", span_file.SUFFIX)
_FEW = 12  # ranks that a sentence names


@dataclass
class Traces:
    """The traces of one job, by rank; of one rank, processes by when they began."""

    ranks: list[RankTrace]
    notes: list[str] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)
    """Where they were read, without links."""


def read(given: Sequence[Path], most_bytes: int = chrome_file.MOST_BYTES) -> Traces:
    """Read files, and those in folders. UsageError when none can be read.

    What `merge` wrote is read if it is given itself: in a folder it lies beside the traces that it was made of.
    """
    paths: list[Path] = []
    for place in given:
        if place.is_dir():
            paths += sorted(p for p in place.rglob("*") if p.name.endswith(SUFFIXES) and p.is_file())
        else:
            paths.append(place)
    paths = list(dict.fromkeys(paths))
    if not paths:
        where = ", ".join(map(str, given))
        raise UsageError(f"{where}: no traces (*{', *'.join(SUFFIXES)}): is it the folder that ranks recorded into?")
    found: list[RankTrace] = []
    notes: list[str] = []
    files: set[Path] = set()
    for path in paths:
        try:
            if path.name.endswith(span_file.SUFFIX):
                trace = memory_file.read(path)  # None: a process that did nothing, and is no rank
                own = [] if trace is None else [trace]
            else:
                own = chrome_file.read_each(path, most_bytes, merged=path in given)
            if own:
                files.add(path.resolve())
            found += own
        except (UsageError, OSError) as error:
            notes.append(f"not read: {error}")
    if not found:
        raise UsageError("\n".join(notes) or f"{paths[0].parent}: no process has recorded a span yet")
    return replace(of(found, notes), files=files)


def of(found: Sequence[RankTrace], notes: Sequence[str] = ()) -> Traces:
    """Sort traces into ranks: those that do not say theirs get free numbers, one that is there twice is left out."""
    notes = list(notes)
    known: list[RankTrace] = []
    for trace in sorted(found, key=lambda each: (each.rank < 0, each.rank, each.start_ns, each.source)):
        twin = next((other for other in known if _same(other, trace)), None)
        if twin is not None:
            notes.append(f"{trace.source}: left out, {twin.source} is of the same process ({trace.process}) and time")
            continue
        if trace.rank < 0:
            trace.rank = next(n for n in range(len(found) + 1) if all(other.rank != n for other in known))
            notes.append(f"{trace.source}: it does not say which rank it is of; taken for rank {trace.rank}")
        known.append(trace)
    known.sort(key=lambda each: (each.rank, each.start_ns))
    for trace in known:
        notes += [f"{trace.source}: {note}" for note in trace.notes]
        if trace.dropped:
            notes.append(f"rank {trace.rank}: {trace.dropped} spans are gone, newer ones took their place")
    for before, after in pairwise(known):
        if before.rank == after.rank:
            how = "the second began when the first had ended" if after.start_ns >= before.stop_ns else (
                "both at one time: are these of two jobs?" if after.clock == before.clock else "on two hosts"
            )  # fmt: skip
            notes.append(f"rank {after.rank} is there twice, {before.source} and {after.source}: {how}")
    size = max(max((trace.world_size for trace in known), default=0), max(trace.rank for trace in known) + 1)
    there = {trace.rank for trace in known}
    missing = size - len(there)
    if missing:  # a damaged file may speak of a billion ranks: they are not counted one by one
        first = list(islice((rank for rank in range(size) if rank not in there), _FEW))
        shown = ", ".join(map(str, first)) + (f" and {missing - _FEW} more" if missing > _FEW else "")
        notes.append(f"no trace of rank {shown}, of {size}: what waited for it shows no cause")
    return Traces(known, notes)


def _same(one: RankTrace, other: RankTrace) -> bool:
    """Whether both are of one process and of times that overlap: a file and its copy, say."""
    return (one.host, one.process, one.clock, one.rank) == (other.host, other.process, other.clock, other.rank) and (
        max(one.start_ns, other.start_ns) < min(one.stop_ns, other.stop_ns)
    )
