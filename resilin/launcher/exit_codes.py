"""The exit codes of `elastic-run`, and which error leads to which."""

from __future__ import annotations

from resilin.errors import RendezvousError, SecretRequired, StoreError, StoreRefused, UsageError

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
RENDEZVOUS = 4
REFUSED = 5
INTERNAL = 6

HELP = """\
exit codes:
  0      all workers succeeded
  1      workers failed for good (a report is printed)
  2      wrong usage
  3      the store or endpoint cannot be reached or used
  4      the rendezvous failed: too few nodes came in time, or the job has ended
  5      refused for security: a wrong secret, or none although something would listen beyond loopback
  6      internal error
  128+N  ended by signal N
"""


def of(error: BaseException) -> int:
    """The exit code for an error that ended the launcher."""
    for kind, code in (
        (SecretRequired, REFUSED),
        (StoreRefused, REFUSED),
        (UsageError, USAGE),
        (StoreError, UNREACHABLE),
        (RendezvousError, RENDEZVOUS),
    ):
        if isinstance(error, kind):
            return code
    return INTERNAL
