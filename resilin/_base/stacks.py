"""Where a worker's main thread is, told to its agent even when the worker can do nothing any more.

A worker leaves `SIGNAL` to Python's faulthandler, whose C code needs neither the interpreter's lock nor Python code to
run: the thread that the kernel gives the signal to, which is the main one, writes its own Python stack to `FILE` in the
worker's folder. Only a process that the kernel does not run (stopped, or in uninterruptible sleep) writes nothing.

Its own, not those of all threads, which faulthandler can write, too: without the interpreter's lock the others' change
while they are read, and a process with a busy second thread died of that (SIGSEGV) within some hundred looks.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from pathlib import Path

from resilin._base import private_files

FILE = "stacks.txt"
SIGNAL = signal.SIGRTMIN + 9  # programs have their own uses for SIGUSR1 and SIGUSR2
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_OURS = f"{os.sep}{Path(__file__).parents[1].name}{os.sep}"
_BASE, _DIST = (f"{_OURS}{package}{os.sep}" for package in ("_base", "distributed"))
# what collectives and messages run in
_CALLS = tuple(f"{_DIST}{file}" for file in ("group/collective_queue.py", "group/p2p_transport.py"))
_LIBRARY = re.compile(r"[/\\]lib[/\\]python3[^/\\]*[/\\](?!(?:site|dist)-packages)|<frozen ")
_file = -1  # open for good: a signal may come until the last moment


def watch(folder: Path) -> None:
    """From now on `SIGNAL` writes the main thread's stack. A folder that cannot be written: nothing is."""
    global _file
    if _file >= 0:
        return
    try:
        _file = private_files.open_file(folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError:  # a worker does not end because nobody could look at it, or another user has a hand in the file
        return
    faulthandler.register(SIGNAL, file=_file, all_threads=False)


def answers(pid: int) -> bool:
    """Whether process `pid` has a handler for `SIGNAL`: without one the signal would end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (SIGNAL - 1) & 1)


def place(text: str) -> str:
    """`file:line in function` of the program's own innermost frame in what faulthandler wrote; "" when it has none.

    A frame of the standard library or of ours is named only when there is no other.
    """
    frames = [found for line in frames_of(text) if (found := _FRAME.fullmatch(line))]
    own = [each for each in frames if not _LIBRARY.search(each["file"]) and _OURS not in each["file"]]
    return next((f"{each['file']}:{each['line']} in {each['function']}" for each in (*own, *frames)), "")


def strays(text: str) -> bool:
    """Whether the main thread is in the middle of a call of resilin.distributed, and waits there for nobody.

    It has gone from there into other code: a signal's handler, an object's end, a hook.
    """
    files = [found["file"] for line in frames_of(text) if (found := _FRAME.fullmatch(line))]
    told = [file for file in files if not _LIBRARY.search(file) and _BASE not in file]
    return bool(told) and _DIST not in told[0] and any(file.endswith(_CALLS) for file in told)


def frames_of(text: str) -> list[str]:
    """Of what faulthandler wrote, the lines of the newest stack's frames, the innermost first."""
    return re.split(r"^Stack .*\n", text, flags=re.MULTILINE)[-1].splitlines()
