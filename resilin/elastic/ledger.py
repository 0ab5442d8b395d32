"""The record of committed samples: an append-only text file, and the check that every sample counted once.

One line per rank and committed step, in one `write` to a descriptor opened for appending:

    {"epoch":0,"step":41,"position":2624,"size":64,"generation":3,"rank":1}

Every rank writes, because the one rank that applied a step may be the one that dies: whoever applied it has a line.
A step that was applied by a rank which then died, and was redone by the others, has lines of two generations; they
name the same samples (a step is a pure function of its position), and the latest generation is the one that counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from resilin.errors import StateError, UsageError


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """Rank `rank` applied step `step`: positions [position, position + size) of the order of `epoch`."""

    epoch: int
    step: int
    position: int
    size: int
    generation: int
    rank: int

    def to_line(self) -> bytes:
        """The entry as one line of the file."""
        return (
            f'{{"epoch":{self.epoch},"step":{self.step},"position":{self.position},"size":{self.size},'
            f'"generation":{self.generation},"rank":{self.rank}}}\n'
        ).encode()


_FIELDS = tuple(field.name for field in fields(Entry))


class Ledger:
    """Appends entries to the file at `path` (made with its folder when missing). Close it when the world ends.

    UsageError when the file cannot be opened for appending.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            self._fd: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(
                f"RESILIN_LEDGER={path} cannot be opened for appending: {error.strerror} ({error.filename}); "
                "name a file that every worker can write to, or unset it"
            ) from error

    def append(self, entry: Entry) -> None:
        """Write `entry`; it survives the death of this process from here on (not a power cut). StateError if not."""
        if self._fd is None:
            raise StateError(f"ledger {self.path} is closed")
        line = entry.to_line()
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            raise StateError(
                f"ledger {self.path} (RESILIN_LEDGER): step {entry.step} cannot be written: {error.strerror}"
            ) from error
        if written != len(line):
            raise StateError(f"ledger {self.path}: wrote {written} of {len(line)} bytes: is the disk full?")

    def close(self) -> None:
        """Close the file; may be called twice."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def read(path: str) -> list[Entry]:
    """All entries of the file, in the order of writing.

    A last line without its end (a write torn by a crash of the machine) is left out: it was never complete. StateError
    names the first other line that is no entry.
    """
    with open(path, "rb") as file:
        lines = file.read().split(b"\n")
    lines.pop()  # what follows the last newline: empty, or torn
    return [_parse(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def _parse(line: bytes, where: str) -> Entry:
    try:
        body = json.loads(line)
        values = [body[name] for name in _FIELDS]
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{where}: expected an object with {', '.join(_FIELDS)}, got {line[:100]!r}") from error
    if any(type(value) is not int for value in values):
        raise StateError(f"{where}: expected integers, got {line[:100]!r}")
    return Entry(*values)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found. `problems` is empty exactly when every sample of every finished epoch counted once."""

    steps: int
    """Distinct committed steps."""
    epochs: Mapping[int, int]
    """Samples counted per epoch."""
    redone: int
    """Steps that were applied in more than one generation (a rank that applied it died, the others redid it)."""
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        head = f"{self.steps} steps, {sum(self.epochs.values())} samples in {len(self.epochs)} epochs"
        if self.redone:
            head += f", {self.redone} steps redone"
        return f"{head}: every sample once" if self.ok else "\n".join((f"{head}: WRONG", *self.problems))


def verify(entries: Iterable[Entry], samples_per_epoch: int, unfinished_last: bool = False) -> Verdict:
    """Check that the committed ranges of each epoch cover [0, samples_per_epoch) without a gap or an overlap.

    A position stands for one sample of the epoch's order, so ranges that tile the epoch count each sample once.
    samples_per_epoch: the sampler's length, less what `drop_last` leaves out.
    unfinished_last:   the last epoch may end early (training stopped in its middle).
    """
    counted: dict[int, Entry] = {}
    generations: dict[int, set[int]] = {}
    problems: list[str] = []
    for entry in entries:
        generations.setdefault(entry.step, set()).add(entry.generation)
        known = counted.get(entry.step)
        if known is not None and known.generation == entry.generation and _span(known) != _span(entry):
            problems.append(
                f"step {entry.step}, generation {entry.generation}: rank {known.rank} applied {_text(known)}, "
                f"rank {entry.rank} applied {_text(entry)}"
            )
        if known is None or entry.generation > known.generation:
            counted[entry.step] = entry
    by_epoch: dict[int, list[Entry]] = {}
    for step in sorted(counted):
        by_epoch.setdefault(counted[step].epoch, []).append(counted[step])
    if not by_epoch and not unfinished_last:
        problems.append("no step was committed")
    last = max(by_epoch, default=0)
    problems += [f"epoch {epoch}: no step was committed" for epoch in range(last) if epoch not in by_epoch]
    for epoch, steps in sorted(by_epoch.items()):
        problems += _check_epoch(epoch, steps, samples_per_epoch, unfinished_last and epoch == last)
    numbers = sorted(counted)
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        problems.append(f"steps {numbers[0]} to {numbers[-1]}: {numbers[-1] + 1 - numbers[0] - len(numbers)} missing")
    return Verdict(
        steps=len(counted),
        epochs={epoch: sum(entry.size for entry in steps) for epoch, steps in sorted(by_epoch.items())},
        redone=sum(len(seen) > 1 for seen in generations.values()),
        problems=tuple(problems),
    )


def _check_epoch(epoch: int, steps: list[Entry], samples: int, may_end_early: bool) -> list[str]:
    problems = []
    position = 0
    for entry in sorted(steps, key=lambda entry: entry.position):
        if entry.position != position:
            what = "lost" if entry.position > position else "counted twice"
            low, high = sorted((entry.position, position))
            problems.append(f"epoch {epoch}: positions [{low}, {high}) {what} before step {entry.step}")
        position = max(position, entry.position + entry.size)
    if position > samples or (position < samples and not may_end_early):
        problems.append(f"epoch {epoch}: covers [0, {position}), expected [0, {samples})")
    return problems


def _span(entry: Entry) -> tuple[int, int, int]:
    return entry.epoch, entry.position, entry.size


def _text(entry: Entry) -> str:
    return f"[{entry.position}, {entry.position + entry.size}) of epoch {entry.epoch}"
