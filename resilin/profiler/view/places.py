"""Finds the file and line that a trace names, beneath folders that the user chose: nothing else is ever opened.

Names of functions are "training/loop.py(12): step", as traces write them. They come from files of anybody: a place is
known to the page by its number in a list that is made here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

_FUNCTION = re.compile(r"([^\0\n]{1,4000}?)\((\d{1,9})\): ")


@dataclass(frozen=True)
class SourceLine:
    """A line of a file."""

    text: str
    """For people."""
    path: Path | None
    """None: it does not lie beneath the chosen folders, or is not there."""
    line: int

    @property
    def link(self) -> str:
        """What VS Code opens it by; empty where there is no file."""
        return f"vscode://file{quote(str(self.path))}:{self.line}" if self.path else ""


class Places:
    """All places of a report, each once."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder.resolve() for folder in folders]
        self._numbers: dict[str, int] = {}  # by the name of a function
        self._files: dict[str, Path | None] = {}
        self.found: list[SourceLine] = []

    def number(self, name: str) -> int:
        """Return the number of the place where a function is; -1 for a name that is none of a function."""
        known = self._numbers.get(name)
        if known is None:
            match = _FUNCTION.match(name)
            known = -1
            if match is not None:
                known = len(self.found)
                self.found.append(SourceLine(f"{match[1]}:{match[2]}", self._find(match[1]), int(match[2])))
            self._numbers[name] = known
        return known

    def nearest(self, functions: Iterable[str]) -> str:
        """Return the first of the names of functions whose file is known here, else the first; empty without any.

        Of those around an operation, the innermost first: what the user wrote is told, not what it called in libraries.
        """
        first = ""
        for name in functions:
            number = self.number(name)
            if number >= 0 and self.found[number].path is not None:
                return name
            first = first or (name if number >= 0 else "")
        return first

    def _find(self, file: str) -> Path | None:
        if file not in self._files:
            self._files[file] = self._looked_for(file)
        return self._files[file]

    def _looked_for(self, file: str) -> Path | None:
        for folder in self._folders:
            try:
                path = (folder / file).resolve()  # of an absolute name this is the name itself
                if path.is_relative_to(folder) and path.is_file():
                    return path
            except (OSError, ValueError, RuntimeError):  # a name too long for files, or links in a circle
                continue
        return None
