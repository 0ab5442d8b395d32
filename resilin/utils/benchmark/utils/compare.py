"""Tables of measurements: a row for each task and number of threads, a column for each description.

What a table says is laid out as PyTorch lays it out, to the character.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from resilin.errors import UsageError
from resilin.utils.benchmark.utils.common import (
    Measurement,
    log10,
    ordered_unique,
    select_unit,
    trim_sigfig,
    unit_to_english,
)

__all__ = ["Colorize", "Compare"]

BETWEEN = "  |  "
WARNING_WIDTH = 7  # of " (! 42%)", but for its first character
NEAR_S = 100e-9  # medians that differ by less are equal: it is within the clock's noise
END = "\033[0m"
BEST, GOOD = "\033[92m\033[1m", "\033[34m\033[1m"
BAD, VERY_BAD = "\033[2m\033[91m", "\033[31m\033[1m"


class Colorize(enum.Enum):
    """With what a figure is compared for its color: with nothing, with its column's best one, or with its row's."""

    NONE = "none"
    COLUMNWISE = "columnwise"
    ROWWISE = "rowwise"


@dataclass(frozen=True)
class _Style:
    """How a table shows its figures."""

    trims: bool = False
    warns: bool = False
    colors: Colorize = Colorize.NONE


class _RowKey(NamedTuple):
    """Whose figures a row has: one environment's and one name's, with one number of threads."""

    num_threads: int
    env: str | None
    name: str


class _Column:
    """Formats the figures of one column, all with as many digits after the point."""

    def __init__(self, cells: Iterable[Measurement | None], scale: float, style: _Style) -> None:
        found = [one for one in cells if one is not None]
        self._scale, self._trims = scale, style.trims
        self._warns = style.warns and any(one.has_warnings for one in found)
        digits = [math.ceil(log10(one.median / scale)) for one in found]
        self._decimals = 1
        if style.trims:  # no figure may show more than it has
            both = zip(found, digits, strict=True)
            self._decimals = min(max(one.significant_figures - before, 0) for one, before in both)
        self._width = max(digits) + self._decimals + (1 if self._decimals else 0)

    def text(self, cell: Measurement | None) -> str:
        """The median of a cell, and how wide its times are spread where it warns; as wide where there is none."""
        if cell is None:
            return " " * len(self._format(1.0, ""))
        value = cell.median / self._scale
        if self._trims:
            value = trim_sigfig(value, cell.significant_figures)
        warning = f" (! {cell.iqr / cell.median * 100:.0f}%)" if self._warns and cell.has_warnings else ""
        return self._format(value, warning)

    def _format(self, value: float, warning: str) -> str:
        figure = f"{value:.{self._decimals}f}".rjust(self._width)
        return figure + (warning.rjust(WARNING_WIDTH) if self._warns else "")


class _Table:
    """Lays out the measurements of one label."""

    def __init__(self, results: Sequence[Measurement], style: _Style) -> None:
        self._label = results[0].label or ""
        self._unit, scale = select_unit(min(one.median for one in results))
        self._style = style
        self._warns = style.warns and any(one.has_warnings for one in results)
        cells = {(_row_key(one), one.description): one for one in results}
        keys = ordered_unique(row for row, _ in cells)
        self._rows: list[_RowKey] = sorted(keys, key=lambda row: (row.num_threads, row.env or ""))  # stable
        self._headers = ordered_unique(column for _, column in cells)
        self._cells = {row: [cells.get((row, column)) for column in self._headers] for row in self._rows}
        self._columns = [_Column(column, scale, style) for column in zip(*self._cells.values(), strict=True)]

    def render(self) -> str:
        """The table, its last line ended."""
        names = self._names()
        texts = {
            row: [name, *(column.text(cell) for column, cell in zip(self._columns, self._cells[row], strict=True))]
            for row, name in names.items()
        }
        headers = ["", *(header or "" for header in self._headers)]
        widths = [max(map(len, column)) for column in zip(headers, *texts.values(), strict=True)]
        first = BETWEEN.join(header.center(width) for header, width in zip(headers, widths, strict=True))
        lines = [f"[{f' {self._label} '.center(len(first) - 2, '-')}]", first]
        threads = None
        for row, (name, *figures) in texts.items():
            if row.num_threads != threads:
                threads = row.num_threads
                lines.append(f"{threads} threads: ".ljust(len(first), "-"))
            centered = [figure.center(width) for figure, width in zip(figures, widths[1:], strict=True)]
            lines.append(BETWEEN.join([name.ljust(widths[0]), *self._colored(row, centered)]))
        lines += ["", f"Times are in {unit_to_english(self._unit)}s ({self._unit})."]
        if self._warns:
            lines.append("(! XX%) Measurement has high variance, where XX is the IQR / median * 100.")
        return "\n".join([*lines, ""])

    def _names(self) -> dict[_RowKey, str]:
        """What stands at the front of each row: its name, and its environment where that is another than above."""
        envs = {row: row.env if row.env is not None else "Unspecified env" for row in self._rows}
        many = len(set(envs.values())) > 1
        width = (max(map(len, envs.values())) if many else 0) + 4
        names: dict[_RowKey, str] = {}
        above = None
        for row in self._rows:
            here = row.num_threads, envs[row]
            shown = f"({envs[row]})" if many and here != above else ""
            names[row] = f"  {shown.ljust(width)}{row.name}"
            above = here
        return names

    def _colored(self, row: _RowKey, texts: list[str]) -> list[str]:
        """The texts of a row's figures in the colors of their medians."""
        if self._style.colors is Colorize.NONE:
            return texts
        if self._style.colors is Colorize.ROWWISE:
            bests = [_best(self._cells[row])] * len(texts)
        else:
            group = [cells for other, cells in self._cells.items() if other.num_threads == row.num_threads]
            bests = [_best(column) for column in zip(*group, strict=True)]
        cells = zip(texts, self._cells[row], bests, strict=True)
        return [text if cell is None else _color(text, cell.median, best) for text, cell, best in cells]


def _row_key(one: Measurement) -> _RowKey:
    return _RowKey(one.num_threads, one.env, one.as_row_name)


def _best(cells: Iterable[Measurement | None]) -> float:
    return min((cell.median for cell in cells if cell is not None), default=math.inf)


def _color(text: str, value: float, best: float) -> str:
    if value <= best * 1.01 or value <= best + NEAR_S:
        start = BEST
    elif value <= best * 1.1:
        start = GOOD
    elif value >= best * 5:
        start = VERY_BAD
    elif value >= best * 2:
        start = BAD
    else:
        return text
    return f"{start}{text}{END}{END}"


class Compare:
    """Shows many measurements as tables: one for each label, a row for each sub-label, a column for each description.

    Replicates (measurements of equal tasks) are merged; rows are grouped by their number of threads.
    """

    def __init__(self, results: Iterable[Measurement]) -> None:
        self._results: list[Measurement] = []
        self._trims = self._warns = False
        self._colors = Colorize.NONE
        self.extend_results(results)

    def extend_results(self, results: Iterable[Measurement]) -> None:
        """Add measurements. UsageError, a ValueError, for what is none; then nothing is added."""
        added = list(results)
        for one in added:
            if not isinstance(one, Measurement):
                raise UsageError(f"Compare: expected instances of Measurement, got {type(one)}")
        self._results += added

    def trim_significant_figures(self) -> None:
        """Show of each figure only what its measurement is sure of."""
        self._trims = True

    def colorize(self, rowwise: bool = False) -> None:
        """Color each figure by how it compares with the best of its column and number of threads, or of its row."""
        self._colors = Colorize.ROWWISE if rowwise else Colorize.COLUMNWISE

    def highlight_warnings(self) -> None:
        """Show beside a figure how wide its times are spread, where that puts it in doubt."""
        self._warns = True

    def print(self) -> None:
        """Print the tables."""
        print(str(self))

    def __str__(self) -> str:
        style = _Style(trims=self._trims, warns=self._warns, colors=self._colors)
        of_label: dict[str | None, list[Measurement]] = {}
        for one in Measurement.merge(self._results):
            of_label.setdefault(one.label, []).append(one)
        return "\n".join(_Table(results, style).render() for results in of_label.values())
