"""What a failed gRPC call means: may it be sent again, and which of our errors is it? Pure."""

from __future__ import annotations

from enum import Enum, auto

from resilin.errors import Compacted, LeaseLost, ResilinError, StoreError, StoreRefused, UsageError
from resilin.store.state import FutureRevision


class RetryVerdict(Enum):
    """What to do after a failed call."""

    UNSENT = auto()
    """The request never reached a store that could act: repeat it anywhere."""
    UNKNOWN = auto()
    """It may have been executed: repeat it only if a repetition does no harm."""
    STALE_TOKEN = auto()
    """Log in again, then repeat."""
    FINAL = auto()
    """The store has answered; the answer is an error."""


# Texts of grpc and of etcd that say that a request was not executed.
_UNSENT_TEXTS = (
    "failed to connect",
    "connection refused",
    "name resolution",
    "no leader",
    "not ready",
    "server stopped",
    "is closed",
)
_STALE_TEXTS = ("invalid auth token", "revision of auth store is old", "user name is empty")
_TRANSIENT = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN", "ABORTED"})


def judge(code: str, details: str) -> RetryVerdict:
    """The verdict on a call that failed with gRPC status `code` and text `details`."""
    text = details.lower()
    if any(stale in text for stale in _STALE_TEXTS):
        return RetryVerdict.STALE_TOKEN
    if code == "RESOURCE_EXHAUSTED" and "too many requests" in text:  # etcd applies its log too slowly just now
        return RetryVerdict.UNSENT
    if code not in _TRANSIENT:
        return RetryVerdict.FINAL
    if code == "UNAVAILABLE" and any(unsent in text for unsent in _UNSENT_TEXTS):
        return RetryVerdict.UNSENT
    return RetryVerdict.UNKNOWN


def to_error(method: str, endpoint: str, code: str, details: str) -> ResilinError:
    """Our error for a final answer."""
    text = details.removeprefix("etcdserver: ")
    where = f"{method} at {endpoint}: {text}"
    if "compacted" in text:
        return Compacted(f"{where}; list again", 0)
    if "future revision" in text:
        return FutureRevision(where)
    if "lease not found" in text:
        return LeaseLost(f"{where}: it expired or was revoked, its keys are gone")
    if code == "PERMISSION_DENIED" and "has no secret" in text:
        return StoreRefused(where)  # it says what to do
    if (
        code in ("UNAUTHENTICATED", "PERMISSION_DENIED")
        or "authentication failed" in text
        or judge(code, text) is (RetryVerdict.STALE_TOKEN)
    ):
        return StoreRefused(f"{where}: give this process the store's own secret, or user and password")
    if "authentication is not enabled" in text:
        return StoreRefused(f"{where}: that store has no secret, we were told one; it may be another job's store")
    if code == "INVALID_ARGUMENT":
        return UsageError(where)
    return StoreError(f"{where} ({code})")
