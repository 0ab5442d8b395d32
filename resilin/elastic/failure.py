"""Say who failed, how and where: one sentence first, then its traceback and last log lines. Only `read_*` do I/O."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from resilin._base import json_text
from resilin._base.text import visible

TAIL_LINES = 20
# what goes into records, which a store takes up to about a megabyte of, for all workers of a node together
MESSAGE_CHARS = 8_000
TRACEBACK_CHARS = 24_000
LINE_CHARS = 1_000
CAUSE_CHARS = 240  # in the reason of a generation, which all of its messages have
OTHERS_LINES = 200
_MOST_BYTES = 16 << 20  # of an error file: a message and a traceback
_TAIL_BYTES = 64 << 10
_RANK = re.compile(r"^\[rank\d+\]: ")  # what PyTorch puts before each line of a traceback
_HEAD = re.compile(r"(?:Traceback|  \+ Exception Group Traceback) \(most recent call last\):")
_RAISED = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?")
_FRAME = re.compile(r'^  (?:[|+ ]*)File "(.+)", line (\d+)', re.MULTILINE)
_LIBRARY = re.compile(r"[/\\](?:lib[/\\]python3[^/\\]*|(?:site|dist)-packages)[/\\]|^<frozen ")
_OURS = f"{os.sep}{Path(__file__).parents[1].name}{os.sep}"
_CRASHES = {
    signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGBUS, signal.SIGSYS, signal.SIGTRAP,
}  # fmt: skip
# exceptions that a peer's death causes: never the first cause while there is another
_SECONDARY = ("PeerLost", "GroupAborted", "WorldChanged", "CollectiveTimeout", "ConnectionResetError")

# what PyTorch's gloo raises then, as a RuntimeError
_PEER_GONE = ("Connection closed by peer", "Connection reset by peer")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The end of one worker."""

    rank: int
    """In `generation`, where it failed."""
    local_rank: int
    node: str
    host: str
    pid: int
    generation: int
    code: int
    """Exit status; negative: killed by that signal."""
    became: int | None = None
    """Its rank in a newer generation, which it had been given and not come to; None: none, or the same."""
    step: int | None = None
    at: str = ""
    type: str = ""
    """The exception's type, when the worker could tell."""
    message: str = ""
    traceback: str = ""
    log_tail: tuple[str, ...] = ()
    """Last lines it wrote, when they were not shown on the terminal, or nothing else says why it ended."""
    shown: bool = False
    """Whether its standard error went to the terminal."""
    kept: bool = False
    """Whether its standard error is in a file."""
    unanswered: str = ""
    """Others waited for it in vain until it was killed: what their error said, or what the watchdog has found."""
    overdue: bool = False
    """It was killed because a wait for it, or its own, took its group's whole timeout: no watchdog has named it."""
    missed: str = ""
    """It had ended with code 0, and others waited for it: what the error of one of them said."""
    others: tuple[str, ...] = ()
    """Where the other ranks were when it was ended because it held them up: their stacks."""
    hang_report: str = ""
    """The file with everything that was found then."""
    entering: bool = False
    """Whether it says that it was on its way into a generation: going back to its last commit, connecting, taking the
    state over. Who ends without a word may have met anything."""
    worked_in: int = 0
    """The last generation in which it said that it works on a step; 0: none."""
    early: str = ""
    """Which error it raised and at which line, before it came to `@elastic.run` and soon after its start."""
    late: bool = False
    """Whether training had finished everywhere: it is not restarted, because its state has ended with it."""
    log_dir: str = ""
    wall: float = 0.0
    """Seconds since the epoch; for people."""

    @property
    def how(self) -> str:
        """Say what happened, without who: "killed by SIGKILL", "raised ValueError: boom"."""
        if self.unanswered:
            limit = " within its group's timeout" if self.overdue else ""
            return f"did not answer{limit} and was killed ({self.unanswered})"
        if self.missed:
            return f"exited with code 0 while others waited for it ({visible(self.missed)})"
        if self.type:
            first = visible(shorten(self.message.strip().splitlines()[0], LINE_CHARS)) if self.message.strip() else ""
            return f"raised {self.type}{': ' if first else ''}{first}"
        if self.code < 0:
            return f"killed by {signal_name(-self.code)}"
        return f"exited with code {self.code}"

    @property
    def where(self) -> str:
        """ " at step 7 in all_reduce #41 ...", as far as it is known."""
        at = (f" at step {self.step}" if self.step is not None else "") + (f" in {self.at}" if self.at else "")
        return at + (f", before it became rank {self.became}" if self.became is not None else "")

    @property
    def cause(self) -> str:
        """Say in one word what ended it: the exception's type, a signal, Hang or ExitCode3."""
        if self.unanswered:
            return "Hang"
        if self.type:
            return self.type.rpartition(".")[2]
        return signal_name(-self.code).replace(" ", "") if self.code < 0 else f"ExitCode{self.code}"

    @property
    def sentence(self) -> str:
        """The first line of every report."""
        late = " after training had finished: not restarted" if self.late else ""
        return f"rank {self.rank} (host {self.host}, pid {self.pid}) {self.how}{self.where}{late}"

    @property
    def follows(self) -> bool:
        """Return whether it is what another worker's end causes."""
        return follows(vars(self))

    def details(self) -> list[str]:
        """Say what follows the sentence: nothing that the terminal has already shown."""
        lines = []
        if self.traceback and (self.unanswered or not self.shown):
            lines += self.traceback.rstrip().splitlines()
            lines += self.others
        elif self.log_tail:
            lines += ["last lines of its standard error:", *(f"  {line}" for line in self.log_tail)]
        elif self.shown and not self.kept and self.code > 0 and not self.type:
            lines.append(
                f"its standard error went to that of elastic-run on {self.host}; --tee 2 keeps its end for here"
            )
        if self.hang_report:
            lines.append(f"all ranks' stacks and collectives: {self.hang_report}")
        if self.log_dir:
            lines.append(f"logs: {self.log_dir}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """For the store and for the report file."""
        return asdict(self) | {"log_tail": list(self.log_tail), "others": list(self.others)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Failure:
        """The inverse of `to_json`."""
        lists = {name: tuple(body.get(name, ())) for name in ("log_tail", "others")}
        return cls(**{**body, **lists})


def shorten(text: str, limit: int) -> str:
    """`text` with its middle replaced by a note of how much was cut, when it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    return f"{text[:head]} [... {len(text) - limit} characters cut ...] {text[len(text) - limit + head :]}"


def signal_name(number: int) -> str:
    """ "SIGKILL" for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def fault_of(code: int) -> Literal["own", "external"]:
    """Return whether a process that ended with `code` did it itself (exit status, crash) or was killed by somebody."""
    return "own" if code >= 0 or -code in _CRASHES else "external"


def cause_in(records: Iterable[Mapping[str, Any]]) -> str:
    """Of failures as `Failure.to_json` the first cause: "pid 42 on box killed by SIGKILL at step 7"; "" of none.

    Of several it says whose it is: "rank 3, pid 42 on box, killed by SIGKILL".
    """
    whole = [body for body in records if "pid" in body]
    if not whole:
        return ""
    first = Failure.from_json(min(whole, key=follows))
    who = f"pid {first.pid} on {first.host}"
    who = who if len(whole) == 1 else f"rank {first.rank}, {who},"
    return shorten(f"{who} {first.how}{first.where}", CAUSE_CHARS)


def follows(body: Mapping[str, Any]) -> bool:
    """Return whether a failure, as `Failure.to_json`, is what another worker's end causes."""
    return body.get("type") in _SECONDARY or any(text in str(body.get("message", "")) for text in _PEER_GONE)


def place_of(kind: str, traceback: str) -> str:
    """Return which error it was and where: "KeyError at /home/me/train.py:12"; "" when the traceback names no line.

    The innermost frame of the program's own counts; one of a library where there is no other.
    """
    frames = _FRAME.findall(traceback)
    own = [frame for frame in frames if not _LIBRARY.search(frame[0]) and _OURS not in frame[0]]
    file, line = (own or frames or [("", "")])[-1]
    return shorten(f"{kind or 'an error'} at {file}:{line}", LINE_CHARS) if file else ""


def read_error_file(path: Path) -> dict[str, str]:
    """`type`, `message` and `traceback` from the file named by TORCHELASTIC_ERROR_FILE; empty when there is none.

    The format is torch's: {"message": {"message": "Type: text", "extraInfo": {"py_callstack": ..., "timestamp": ...}}}.
    """
    try:
        with path.open("rb") as file:
            body = json_text.parse(json_text.read(file, _MOST_BYTES))["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if isinstance(body, str):
        return {"type": "", "message": body, "traceback": ""}
    if not isinstance(body, dict):
        return {}
    kind, _, text = str(body.get("message", "")).partition(": ")
    extra = body.get("extraInfo")
    stack = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
    return {"type": kind, "message": text, "traceback": stack}


def guess_exception(tail: Sequence[str]) -> dict[str, str]:
    """`type` and `message` (its first line) from the last Python traceback in a log; empty when there is none."""
    lines = [_RANK.sub("", line) for line in tail]
    heads = [number for number, line in enumerate(lines) if _HEAD.match(line)]
    if not heads:
        return {}
    margin = "  | " if lines[heads[-1]].startswith(" ") else ""  # of an exception group
    after = (line.removeprefix(margin) for line in lines[heads[-1] + 1 :])
    told = next((line for line in after if line and not line.startswith(" ")), "")
    found = _RAISED.fullmatch(told.rstrip())
    return {"type": found[1].rpartition(".")[2], "message": found[2] or ""} if found else {}


def read_tail(path: Path) -> tuple[str, ...]:
    """The lines at the end of a log file; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(text.splitlines())
