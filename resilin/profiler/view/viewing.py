"""What `resilin trace view` does: reads traces, makes the report, and serves it or writes it as one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from resilin.core.whole_file import write_whole
from resilin.errors import UsageError
from resilin.profiler.traces import reports
from resilin.profiler.traces.fetching import fetched
from resilin.profiler.view import page_files, report
from resilin.profiler.view.editor import Editor
from resilin.profiler.view.places import SourceLine
from resilin.profiler.view.report import Opens
from resilin.profiler.view.server import ViewServer


@dataclass(frozen=True)
class Report:
    """Of traces that were read."""

    title: str
    data: str
    """JSON, see `report`."""
    places: list[SourceLine]
    notes: list[str]


def read(given: Sequence[str], sources: Sequence[Path], most_bytes: int, opens: Opens, last_ns: int = 0) -> Report:
    """Read traces at paths or URLs. UsageError when there are none, StorageError when a bucket does not answer.

    sources: folders beneath which files may be opened. most_bytes: of the text of each.
    """
    title = ", ".join(one.rstrip("/").rpartition("/")[2] or one for one in given)
    with fetched(given, most_bytes) as paths:
        found = reports.aligned(paths, last_ns, most_bytes)
    values, places = report.make(found, title, sources)
    return Report(title, report.to_json(values, places, opens), places.found, found.notes)


def export(made: Report, path: Path) -> int:
    """Write a report as one file: whole, or not at all. Return its bytes. UsageError when it cannot be written."""
    text = page_files.as_one_file(made.data, made.title).encode()
    try:
        write_whole(path, lambda file: file.write(text))
    except OSError as error:
        raise UsageError(f"--export {path}: cannot be written: {error.strerror or error}") from None
    return len(text)


def listen(port: int, editor: Editor | None) -> ViewServer:
    """Return a server that listens, and answers once it runs. UsageError when the port is taken."""
    return ViewServer(port, editor)
