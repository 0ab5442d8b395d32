"""Record committed samples in an append-only text file, and check that every sample counted once.

One line per rank and committed step, in one `write` to a descriptor opened for appending:

    {"epoch":0,"step":41,"position":2624,"size":64,"generation":3,"rank":1,"after":3,
     "samples":50000,"length":50010,"seed":0}

Every rank writes, because the one rank that applied a step may be the one that dies: whoever applied it has a line.
A step that was applied by a rank which then died, and was redone by the others, has lines of two generations. Which of
them is in the parameters at the end is told by `after`: from the last step of the last generation the steps that count
are found backwards, as the state came down from one rank to the next. What lies aside was given up, and is not counted:
a generation whose state all died with its ranks, steps after the checkpoint that a job went on from.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from resilin._base import fault_points, json_text, private_files
from resilin._base.private_files import NotOurs
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
    after: int | None = None
    """The generation that the step before was applied in, in the state that this one changed; 0: there was none."""
    samples: int = 0
    """Positions of a whole epoch; 0: not told (also below)."""
    length: int = 0
    """Size of the data set: `samples`, and what `drop_last` leaves out."""
    seed: int | None = None
    """Key of the order, with the epoch; None: position p is sample p."""

    def to_line(self) -> bytes:
        """The entry as one line of the file."""
        after, seed = ("null" if number is None else number for number in (self.after, self.seed))
        return (
            f'{{"epoch":{self.epoch},"step":{self.step},"position":{self.position},"size":{self.size},'
            f'"generation":{self.generation},"rank":{self.rank},"after":{after},'
            f'"samples":{self.samples},"length":{self.length},"seed":{seed}}}\n'
        ).encode()


_FIELDS = tuple(field.name for field in fields(Entry))
_NEEDED = _FIELDS[:6]
_START = b'{"epoch":'
_MOST = 1 << 64  # what a seed can be; and a file's numbers cost no more than its lines, however large they are
_MOST_EPOCHS = 1 << 24


class Ledger:
    """Appends entries to the file at `path` (made with its folder when missing). Close it when the world ends.

    UsageError when the file cannot be opened for appending.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            private_files.make_folders(os.path.dirname(os.path.abspath(path)))
            self._fd: int | None = private_files.open_log(path)
        except NotOurs as error:
            raise UsageError(f"RESILIN_LEDGER: {error}") from None
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
        fault_points.reached("ledger")
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
    entries, errors = sift(path)
    if errors:
        raise errors[0]
    return entries


def sift(path: str) -> tuple[list[Entry], list[StateError]]:
    """Read as `read` does, with what is wrong with each line that is no entry, in place of an exception.

    A piece of a line, all that a full disk took of it, stands in front of the next writer's: that one counts.
    """
    with open(path, "rb") as file:
        lines = file.read().split(b"\n")
    lines.pop()  # what follows the last newline: empty, or torn
    entries, errors = [], []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(_parse(line, f"{path}, line {number}"))
        except StateError as error:
            errors.append(error)
            with contextlib.suppress(StateError):  # what is told already
                entries += [_parse(line[at:], "") for at in [line.rfind(_START)] if at > 0]
    return entries, errors


def _parse(line: bytes, where: str) -> Entry:
    try:
        body = json_text.parse(line)
        values = {name: body[name] for name in _NEEDED}
        values |= {name: body[name] for name in _FIELDS[len(_NEEDED) :] if body.get(name) is not None}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(f"{where}: expected an object with {', '.join(_NEEDED)}, got {line[:100]!r}") from error
    if any(type(value) is not int or abs(value) >= _MOST for value in values.values()):
        raise StateError(f"{where}: expected integers of at most {_MOST.bit_length() - 1} bits, got {line[:100]!r}")
    if values["epoch"] >= _MOST_EPOCHS or any(value < 0 for name, value in values.items() if name != "seed"):
        raise StateError(f"{where}: expected counts from 0 on, of epochs below {_MOST_EPOCHS}, got {line[:100]!r}")
    return Entry(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong.

    `what`: "lost", "repeated", "missing step", "disagreement", "another order", "nothing committed".
    """

    what: str
    text: str
    """One sentence for people."""
    epoch: int | None = None
    start: int = 0
    stop: int = 0
    """Positions [start, stop) of the epoch's order, for "lost" and "repeated"."""
    length: int = 0
    seed: int | None = None
    """What makes sample numbers of positions: see `Entry`. length 0: not known."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class LedgerVerdict:
    """Hold what `verify` found. `problems` is empty exactly when every sample of every finished epoch counted once."""

    steps: int
    """Distinct committed steps."""
    epochs: Mapping[int, int]
    """Samples counted per epoch."""
    redone: int
    """Steps that were applied in more than one generation (a rank that applied it died, the others redid it)."""
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Return whether nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        return (
            f"{self.headline}: every sample once" if self.ok else "\n".join((f"{self.headline}: WRONG", *self._texts))
        )

    @property
    def headline(self) -> str:
        """Say what was counted, without a verdict."""
        head = f"{self.steps} steps, {sum(self.epochs.values())} samples in {len(self.epochs)} epochs"
        return f"{head}, {self.redone} steps redone" if self.redone else head

    @property
    def _texts(self) -> list[str]:
        return [problem.text for problem in self.problems]


def verify(
    entries: Iterable[Entry], samples_per_epoch: int | None = None, unfinished_last: bool = False
) -> LedgerVerdict:
    """Check that the committed ranges of each epoch cover [0, samples_per_epoch) without a gap or an overlap.

    A position stands for one sample of the epoch's order, so ranges that tile the epoch count each sample once.
    samples_per_epoch: the sampler's length, less what `drop_last` leaves out; None: as the entries say. UsageError
        when they do not.
    unfinished_last:   the last epoch may end early (training stopped in its middle).
    """
    counted, redone, problems = _counted(entries)
    by_epoch: dict[int, list[Entry]] = {}
    for entry in counted:
        by_epoch.setdefault(entry.epoch, []).append(entry)
    if not by_epoch and not unfinished_last:
        problems.append(Problem(what="nothing committed", text="no step was committed"))
    last = max(by_epoch, default=0)
    for before, after in pairwise([-1, *sorted(by_epoch)]):
        if after > before + 1:
            which = f"epoch {before + 1}" if after == before + 2 else f"epochs {before + 1} to {after - 1}"
            text = f"{which}: no step was committed"
            problems.append(Problem(what="nothing committed", text=text, epoch=before + 1))
    for epoch, steps in sorted(by_epoch.items()):
        samples = samples_per_epoch or steps[-1].samples
        if not samples:
            raise UsageError("the ledger does not say how many samples an epoch has: give their number")
        problems += _other_orders(steps)
        problems += _check_epoch(steps, samples, unfinished_last and epoch == last)
    missing = counted[-1].step + 1 - counted[0].step - len(counted) if counted else 0
    if missing:
        text = f"steps {counted[0].step} to {counted[-1].step}: {missing} missing"
        problems.append(Problem(what="missing step", text=text))
    return LedgerVerdict(
        steps=len(counted),
        epochs={epoch: sum(entry.size for entry in steps) for epoch, steps in sorted(by_epoch.items())},
        redone=redone,
        problems=tuple(problems),
    )


_Row = list[Entry]
"""What was applied as one step, in ascending generations: one entry of each."""


def _counted(entries: Iterable[Entry]) -> tuple[list[Entry], int, list[Problem]]:
    """The entry that counts of each step, how many steps were redone, and where ranks of a generation disagree.

    Sorted, not by number in dicts: a file can have numbers that a dict is slow with.
    """
    rows: list[_Row] = []
    problems = []
    for entry in sorted(entries, key=lambda entry: (entry.step, entry.generation)):  # else in the order of writing
        if not rows or rows[-1][0].step != entry.step:
            rows.append([])
        row = rows[-1]
        if not row or row[-1].generation != entry.generation:
            row.append(entry)
            continue
        known = row[-1]
        if _span(known) != _span(entry):
            text = (
                f"step {entry.step}, generation {entry.generation}: rank {known.rank} applied {_text(known, entry)}, "
                f"rank {entry.rank} applied {_text(entry, known)}"
            )
            problems.append(Problem(what="disagreement", text=text, epoch=entry.epoch))
    counted = _line_of_descent(rows)[::-1]
    for before, entry in pairwise(counted):
        if before.step == entry.step - 1 and entry.after not in (None, before.generation):
            step = before.step
            text = f"{_place(entry)} was applied after step {step} of generation {entry.after}, which has no line"
            problems.append(Problem(what="missing step", text=text, epoch=entry.epoch))
    return counted, sum(len(row) > 1 for row in rows), problems


def _line_of_descent(rows: Sequence[_Row]) -> list[Entry]:
    """What the last generation's last step came from, backwards.

    Unless that generation's line began anew, and another one is further on: had nobody of that line come back, the new
    one would have gone on; so it was given up for the other, which had no step left to commit.
    """
    if not rows:
        return []
    newest = max(row[-1].generation for row in rows)
    line, other = (list(_backwards(rows, generation)) for generation in (newest, rows[-1][-1].generation))
    anew = line[-1].after == 0 and line[-1] is not other[-1]
    return other if anew and line[0].step < rows[-1][0].step else line


def _backwards(rows: Sequence[_Row], generation: int) -> Iterator[Entry]:
    """From the last step of `generation`; over a missing line to the newest that can be before it."""
    begun = False
    for row in reversed(rows):
        begun = begun or any(entry.generation == generation for entry in row)
        before = [entry for entry in row if entry.generation <= generation] if begun else []
        if before:
            yield before[-1]
            generation = before[-1].generation if before[-1].after is None else before[-1].after


def _other_orders(steps: list[Entry]) -> list[Problem]:
    """Where an epoch goes on in another order: the same positions are then other samples, so tiling proves nothing."""
    told = [entry for entry in steps if entry.length]
    return [
        Problem(
            what="another order",
            text=f"epoch {entry.epoch}: {_place(entry)} has another order than {_place(before)}: {_order(entry)}, "
            f"before {_order(before)}; samples may be lost or counted twice, whatever the positions say",
            epoch=entry.epoch,
        )
        for before, entry in pairwise(told)
        if (before.seed, before.length) != (entry.seed, entry.length)
    ]


def _check_epoch(steps: list[Entry], samples: int, may_end_early: bool) -> list[Problem]:
    problems = []
    covered, before = 0, "the beginning"
    for entry in sorted(steps, key=lambda entry: entry.position):
        end = entry.position + entry.size
        if entry.position > covered:
            problems.append(_gap("lost", covered, entry.position, entry, f"before {_place(entry)}, after {before}"))
        elif entry.position < covered:
            stop = min(covered, end)
            problems.append(_gap("repeated", entry.position, stop, entry, f"before {_place(entry)}, by {before}"))
        if end > covered:
            covered, before = end, _place(entry)
    last = steps[-1]
    if covered > samples or (covered < samples and not may_end_early):
        what, start, stop = ("lost", covered, samples) if covered < samples else ("repeated", samples, covered)
        text = f"epoch {last.epoch}: covers [0, {covered}), expected [0, {samples}); the last is {before}"
        problems.append(_problem(what, start, stop, last, text))
    return problems


def _gap(what: str, start: int, stop: int, entry: Entry, where: str) -> Problem:
    said = "lost" if what == "lost" else "counted twice"
    return _problem(what, start, stop, entry, f"epoch {entry.epoch}: positions [{start}, {stop}) {said} {where}")


def _problem(what: str, start: int, stop: int, entry: Entry, text: str) -> Problem:
    return Problem(
        what=what, text=text, epoch=entry.epoch, start=start, stop=stop, length=entry.length, seed=entry.seed
    )


def _place(entry: Entry) -> str:
    return f"step {entry.step} (generation {entry.generation})"


def _span(entry: Entry) -> tuple[int | None, ...]:
    return entry.epoch, entry.position, entry.size, entry.samples, entry.length, entry.seed


def _text(entry: Entry, other: Entry) -> str:
    text = f"[{entry.position}, {entry.position + entry.size}) of epoch {entry.epoch}"
    return text if _order(entry) == _order(other) else f"{text} ({_order(entry)})"


def _order(entry: Entry) -> str:
    order = "not shuffled" if entry.seed is None else f"seed {entry.seed}"
    return f"{order}, {entry.samples} of {entry.length} samples"
