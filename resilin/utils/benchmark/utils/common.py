"""What a measurement is: the task, its times, their statistics, and how figures are shortened for people.

Logarithms are taken in float32, as PyTorch takes them: where a figure lies on the edge of a unit or of a digit, both
must choose the same side for tables to be equal to the character.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from resilin.core.machine import threads
from resilin.errors import UsageError

__all__ = [
    "Measurement",
    "TaskSpec",
    "ordered_unique",
    "select_unit",
    "set_torch_threads",
    "trim_sigfig",
    "unit_to_english",
]

SCALES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}
ENGLISH = {"ns": "nanosecond", "us": "microsecond", "ms": "millisecond", "s": "second"}
MOST_FIGURES = 4  # of significance: clocks and machines do not give more
LEAST_INTERVAL_S = 25e-9  # a confidence interval below the cost of reading the clock would be a lie
Z_90 = 1.645  # of the normal distribution: 90 % lie within so many standard deviations
WIDE, VERY_WIDE = 0.1, 0.25  # interquartile range by median, from which on a measurement warns


@dataclass(repr=False, frozen=True)
class TaskSpec:
    """Says what a Timer measures, all but its globals. Equal tasks are replicates of one another."""

    stmt: str
    setup: str
    global_setup: str = ""
    label: str | None = None
    sub_label: str | None = None
    description: str | None = None
    env: str | None = None
    num_threads: int = 1

    @property
    def title(self) -> str:
        """The label, else the statement, and the sub-label beside it."""
        if self.label is None and "\n" in self.stmt:
            beside = f" ({self.sub_label})" if self.sub_label else ""
            return f"stmt:{beside}\n{textwrap.indent(self.stmt, '  ')}"
        name = self.stmt if self.label is None else self.label
        return f"{name}: {self.sub_label}" if self.sub_label else name

    def setup_str(self) -> str:
        """Return the setup as a section of text, empty where there is none."""
        if self.setup in ("", "pass"):
            return ""
        return f"setup:\n{textwrap.indent(self.setup, '  ')}" if "\n" in self.setup else f"setup: {self.setup}"

    def summarize(self) -> str:
        """Return title, description and setup, a line each; what has several lines ends with an empty one."""
        sections = (self.title, self.description, self.setup_str())
        return "\n".join(f"{text}\n" if "\n" in text else text for text in sections if text)


_OF_TASK = frozenset(field.name for field in fields(TaskSpec))


@dataclass(repr=False)
class Measurement:
    """Holds the times of one task; fields of its TaskSpec are attributes here, too.

    `raw_times` are seconds, each of `number_per_run` runs of the statement. All statistics are of the time of one run,
    in seconds. `metadata` is the caller's.
    """

    number_per_run: int
    raw_times: list[float]
    task_spec: TaskSpec
    metadata: dict[Any, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if name in _OF_TASK:
            return getattr(self.task_spec, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    @property
    def times(self) -> list[float]:
        """Seconds of one run, for each measurement."""
        return [time / self.number_per_run for time in self.raw_times]

    @cached_property
    def _sorted(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        if not self.raw_times or not min(self.raw_times) > 0:
            got = f"{min(self.raw_times)!r} s" if self.raw_times else "none"
            raise UsageError(f"Measurement of {self.title!r}: expected times, all of more than 0 s, got {got}")
        return np.sort(np.array(self.times, np.float64))

    @cached_property
    def _quartiles(self) -> tuple[float, float, float]:
        low, middle, high = np.quantile(self._sorted, (0.25, 0.5, 0.75)).tolist()
        return low, middle, high

    @property
    def median(self) -> float:
        """The median of the times."""
        return self._quartiles[1]

    @property
    def mean(self) -> float:
        """The mean of the times."""
        return float(self._sorted.mean())

    @property
    def iqr(self) -> float:
        """The interquartile range: the length of the middle half of the times."""
        return self._quartiles[2] - self._quartiles[0]

    @property
    def significant_figures(self) -> int:
        """How many figures of the median mean something, 1 to 4: a rough guess, which `Compare` trims by.

        It is by how many powers of ten the median exceeds its confidence interval (90 %), as though the times between
        the quartiles were normal.
        """
        n = len(self._sorted)
        inner = self._sorted[n // 4 : -(-3 * n // 4)].astype(np.float32)
        spread = float(np.float32(inner.std(dtype=np.float64)))
        interval = max(Z_90 * spread / float(np.sqrt(np.float32(len(inner)))), LEAST_INTERVAL_S)
        if self.median <= interval:
            return 1
        return min(max(int(log10(self.median / interval)), 1), MOST_FIGURES)

    @property
    def has_warnings(self) -> bool:
        """Whether the times vary so much that the median is in doubt."""
        return self._warning() is not None

    def _warning(self) -> str | None:
        if self.meets_confidence(WIDE):
            return None
        is_gross = not self.meets_confidence(VERY_WIDE)
        cause = "suggests significant environmental influence" if is_gross else "could indicate system fluctuation"
        share = self.iqr / self.median * 100
        return f"  WARNING: Interquartile range is {share:.1f}% of the median measurement.\n           This {cause}."

    def meets_confidence(self, threshold: float = WIDE) -> bool:
        """Return whether the interquartile range is less than this share of the median."""
        return self.iqr / self.median < threshold

    @property
    def title(self) -> str:
        """The task's title."""
        return self.task_spec.title

    @property
    def env(self) -> str | None:
        """The environment that the Timer was given; None where it was given none."""
        return self.task_spec.env

    @property
    def as_row_name(self) -> str:
        """What names this row in a table: the sub-label, else the statement."""
        return self.sub_label or self.stmt or "[Unknown]"

    def __repr__(self) -> str:
        n, (low, middle, high) = len(self._sorted), self._quartiles
        unit, scale = select_unit(middle)
        lines = [object.__repr__(self), self.task_spec.summarize()]
        lines += [f"  {'Median: ' if n > 1 else ''}{middle / scale:.2f} {unit}"]
        if n >= 4:  # of fewer there are no quartiles to speak of
            lines += [f"  IQR:    {self.iqr / scale:.2f} {unit} ({low / scale:.2f} to {high / scale:.2f})"]
        runs = f"{self.number_per_run} runs {'per measurement,' if n > 1 else ','}"
        lines += [f"  {n} measurement{_s(n)}, {runs} {self.num_threads} thread{_s(self.num_threads)}"]
        warning = self._warning()
        return "\n".join(lines if warning is None else [*lines, warning])

    @staticmethod
    def merge(measurements: Iterable[Measurement]) -> list[Measurement]:
        """Return one measurement for each task, with the times of all of its replicates, each of one run.

        Metadata is left out: replicates may differ in it.
        """
        times: dict[TaskSpec, list[float]] = {}
        for one in measurements:
            times.setdefault(one.task_spec, []).extend(one.times)
        return [Measurement(number_per_run=1, raw_times=found, task_spec=task) for task, found in times.items()]


def _s(count: int) -> str:
    return "s" if count > 1 else ""


def log10(x: float) -> float:
    """Return the logarithm of the float32 next to `x`, rounded to float32: that of 1e-6 is -6, not a bit less."""
    return float(np.float32(math.log10(np.float32(x))))


def select_unit(t: float) -> tuple[str, float]:
    """Return the unit ("ns", "us", "ms" or "s") in which `t` seconds are a short number, and its length in seconds."""
    if not t > 0:
        raise UsageError(f"select_unit: expected a time of more than 0 s, got {t!r}")
    unit = {-3: "ns", -2: "us", -1: "ms"}.get(int(log10(t) // 3), "s")
    return unit, SCALES[unit]


def unit_to_english(u: str) -> str:
    """Return the name of a unit: "us" is "microsecond"."""
    return ENGLISH[u]


def trim_sigfig(x: float, n: int) -> float:
    """Round `x` to `n` significant figures, in float32: 3.14159 to 2 is about 3.1."""
    if n != int(n):
        raise UsageError(f"trim_sigfig: expected a whole number of figures, got {n!r}")
    if x == 0:
        return 0.0
    scale = 10 ** (math.ceil(log10(abs(x))) - n)
    return float(np.round(np.float32(x / scale)) * np.float32(scale))


def ordered_unique(elements: Iterable[Any]) -> list[Any]:
    """Return the elements without repetition, in the order in which each came first."""
    return list(dict.fromkeys(elements))


@contextmanager
def set_torch_threads(n: int) -> Iterator[None]:
    """Compute with `n` threads within this, and with as many as before after it."""
    before = threads.get_num_threads()
    threads.set_num_threads(n)
    try:
        yield
    finally:
        threads.set_num_threads(before)
