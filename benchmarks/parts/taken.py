"""The samples of a benchmark that takes many runs: kept in a file, so that it can be taken in pieces."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Options, Row
from benchmarks.parts.programs import BenchmarkError
from resilin.errors import UsageError

Result = dict[str, Any]


class Taken:
    """What each run of a benchmark found, by (round, name).

    With `--resume` each result is written to its file as soon as it is known, and what is there already is not run
    again: a benchmark that was ended goes on where it was. UsageError when the file's figures are of another machine,
    version or kind of run.
    """

    def __init__(self, options: Options, **kind: object) -> None:
        self._path = path = options.resume
        stamp = harness.machine(options.peer_python)
        self._stamp = {key: text for key, text in stamp.items() if key != "load average"}
        self._stamp |= {key: str(value) for key, value in kind.items()}
        self._results: dict[str, list[Result]] = {}
        self.failures: dict[str, str] = {}
        """Why a run of a peer found nothing, by its round and name."""
        self._known: dict[str, Result] = {}
        if path is not None and path.exists():
            self._load(path)

    def _load(self, path: Path) -> None:
        kept = json.loads(path.read_text(encoding="utf-8"))
        other = {key for key in {*kept["stamp"], *self._stamp} if kept["stamp"].get(key) != self._stamp.get(key)}
        if other:
            differ = "; ".join(f"{key} {kept['stamp'].get(key)}, now {self._stamp.get(key)}" for key in sorted(other))
            raise UsageError(f"--resume {path}: its samples are not of the same thing: {differ}")
        self._known, self.failures = kept["results"], kept["failures"]

    def run(self, number: int, name: str, measure: Callable[[], Result], *, peer: bool = False) -> None:
        """Take the sample of round `number` of `name`, unless it is there. What a `peer` fails at is noted only."""
        key = f"{number}/{name}"
        if key in self.failures:
            return
        if key not in self._known:
            try:
                self._known[key] = measure()
            except BenchmarkError as error:
                if not peer:
                    raise
                print(error, file=sys.stderr)
                self.failures[key] = str(error)
            self._keep()
        if key in self._known:
            self._results.setdefault(name, []).append(self._known[key])

    def _keep(self) -> None:
        if self._path is not None:
            found = {"stamp": self._stamp, "results": self._known, "failures": self.failures}
            partial = self._path.with_name(f"{self._path.name}.partial")
            partial.write_text(json.dumps(found), encoding="utf-8")
            partial.replace(self._path)

    def names(self) -> list[str]:
        """Of all runs that found something."""
        return list(self._results)

    def results(self, name: str) -> list[Result]:
        """What the runs of `name` found, in the order of rounds."""
        return self._results.get(name, [])

    def samples(self, name: str) -> list[float]:
        """The samples of all runs of `name`."""
        return [sample for result in self.results(name) for sample in result["samples"]]

    def rows(self, what: str, ours: str, peers: Mapping[str, str]) -> list[Row]:
        """`ours` beside each of `peers`, whose text is added to `what`; alone where no peer has a sample."""
        samples = {"resilin": self.samples(ours)}
        beside = {text: self.samples(name) for name, text in peers.items()}
        rows = [harness.timing_row(what + text, {**samples, "torch": peer}) for text, peer in beside.items() if peer]
        return rows or [harness.timing_row(what, samples)]

    def notes(self) -> list[str]:
        """One sentence for each run of a peer that found nothing."""
        why = {key: text.splitlines()[0].rpartition(": ")[2] for key, text in self.failures.items()}
        return [
            f"Without a figure: {key.partition('/')[2]}, round {int(key.partition('/')[0]) + 1}: {text}."
            for key, text in why.items()
        ]
