"""Opens a line of a file in the user's editor: a command that the user gave, never a shell."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

from resilin.errors import UsageError

_FIELDS = re.compile(r"\{(file|line)\}")


class Editor:
    """A command with `{file}` and `{line}` in it, as `code -g {file}:{line}`."""

    def __init__(self, template: str) -> None:
        """Take the command apart. UsageError when it names no file, or its program is not there."""
        try:
            self._words = shlex.split(template)
        except ValueError as error:
            raise UsageError(f"--editor {template!r}: {error}") from None
        if not self._words or not any("{file}" in word for word in self._words[1:]):
            raise UsageError(
                f"--editor {template!r}: expected a command with {{file}} and {{line}}, as: code -g {{file}}:{{line}}"
            )
        program = shutil.which(self._words[0])
        if program is None:
            raise UsageError(f"--editor {template!r}: there is no program {self._words[0]!r}")
        self._words[0] = program
        self._started: list[subprocess.Popen[bytes]] = []

    def command(self, path: Path, line: int) -> list[str]:
        """Return the words that are run for a line of a file."""
        values = {"file": str(path), "line": str(line)}
        return [self._words[0], *(_FIELDS.sub(lambda found: values[found[1]], word) for word in self._words[1:])]

    def open(self, path: Path, line: int) -> None:
        """Start the editor, and do not wait for it. OSError when it cannot be started."""
        self._started = [one for one in self._started if one.poll() is None]  # takes leave of those that have ended
        self._started.append(
            subprocess.Popen(self.command(path, line), stdin=subprocess.DEVNULL, start_new_session=True)
        )

    def wait(self) -> None:
        """Come back when all editors that were started have ended."""
        for one in self._started:
            one.wait()
