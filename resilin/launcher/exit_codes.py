"""The exit codes of `elastic-run`, and which error leads to which."""

from __future__ import annotations

import select
import signal
import traceback
from collections.abc import Callable

from resilin._base import env, standard_error
from resilin._base.text import indented
from resilin.errors import (
    CheckpointError,
    RendezvousError,
    ResilinError,
    SecretRequired,
    StorageError,
    StorageMissing,
    StoreError,
    StoreRefused,
    UsageError,
)

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
RENDEZVOUS = 4
REFUSED = 5
INTERNAL = 6
INTERRUPTED = 128 + signal.SIGINT

HELP = """\
exit codes:
  0      all workers succeeded
  1      workers failed for good (a report is printed)
  2      wrong usage
  3      the store or endpoint cannot be reached or used
  4      the rendezvous failed: too few nodes came in time, or the job has ended
  5      refused for security: a wrong secret, none although something would listen beyond loopback, or a store whose
         files are another user's
  6      internal error
  7      interrupted: all workers were asked to leave (SIGTERM) before training had finished
  128+N  ended by signal N; 141: nobody reads the output any more
"""


def of(error: BaseException) -> int:
    """The exit code for an error that ended the launcher."""
    for kind, code in (
        (SecretRequired, REFUSED),
        (StoreRefused, REFUSED),
        (UsageError, USAGE),
        (StoreError, UNREACHABLE),
        (RendezvousError, RENDEZVOUS),
        (StorageMissing, USAGE),
        (StorageError, UNREACHABLE),
        (CheckpointError, FAILED),
    ):
        if isinstance(error, kind):
            return code
    return INTERNAL


def guarded(command: str, body: Callable[[], int]) -> int:
    """The exit code of `body`. An error becomes one line and its own code; only LOGLEVEL=DEBUG shows a traceback."""
    try:
        return body()
    except KeyboardInterrupt:  # before the agent handles signals, or after it
        return INTERRUPTED
    except Exception as error:  # whatever it is, a command ends with one line
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            raise  # `entry` ends the command
        if (env.get("LOGLEVEL") or "").upper() == "DEBUG":
            standard_error.write(indented(traceback.format_exc().rstrip()))
        if isinstance(error, ResilinError):
            standard_error.write(indented(f"{command}: error: {error}"))
        else:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            advice = "LOGLEVEL=DEBUG shows where; please report it"
            standard_error.write(indented(f"{command}: internal error: {what} ({advice})"))
        return of(error)


def _nobody_reads() -> bool:
    """Whether standard output or error is a pipe or a socket whose reader has gone."""
    outputs = select.poll()
    for stream in (1, 2):
        outputs.register(stream, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in outputs.poll(0))
