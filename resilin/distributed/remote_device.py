"""Name a device of a worker: `_remote_device("worker1/cuda:0")`."""

from __future__ import annotations

from resilin.core.device import device
from resilin.errors import UsageError, UsageTypeError


class _remote_device:
    """A device of another process, or of this one.

    remote_device: "<worker>/<device>", "rank:<rank>/<device>", each also without "/<device>" (which is "cpu" then), or
    "<device>" alone, or a device: one of this process.
    """

    def __init__(self, remote_device: str | device) -> None:
        self._worker_name: str | None = None
        self._rank: int | None = None
        if isinstance(remote_device, device):
            self._device = remote_device
            return
        if not isinstance(remote_device, str):
            raise UsageTypeError(f"Invalid type for remote_device: {type(remote_device)}")
        owner, slash, where = remote_device.partition("/")
        if not slash and (found := _local(owner)) is not None:
            self._device = found
            return
        if not owner or "/" in where:
            raise _not_parsed(remote_device)
        self._device = device(where if slash else "cpu")
        kind, colon, number = owner.partition(":")
        if not colon:
            self._worker_name = owner
        elif kind == "rank" and number.isdigit():
            self._rank = int(number)
        else:
            raise _not_parsed(remote_device)

    def worker_name(self) -> str | None:
        """Return the name of the worker; None where it is not named."""
        return self._worker_name

    def rank(self) -> int | None:
        """Return the rank of the worker; None where it is not named by it."""
        return self._rank

    def device(self) -> device:
        """Return the device there."""
        return self._device

    def __repr__(self) -> str:
        if self._worker_name is not None:
            return f"{self._worker_name}/{self._device}"
        return str(self._device) if self._rank is None else f"rank:{self._rank}/{self._device}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _remote_device) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[str | None, int | None, str]:
        return self._worker_name, self._rank, str(self._device)


def _local(text: str) -> device | None:
    try:
        return device(text)
    except (RuntimeError, TypeError, ValueError):  # no device's name: a worker's
        return None


def _not_parsed(text: str) -> UsageError:
    return UsageError(
        f"Could not parse remote_device: {text}. The valid format is "
        "'<workername>/<device>' or 'rank:<rank>/<device>' or '<device>'"
    )
