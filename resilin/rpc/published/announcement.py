"""Say that there is a version: the message of a publisher to its readers."""

from __future__ import annotations

import json
from typing import NamedTuple


class Announcement(NamedTuple):
    """What it says."""

    name: str
    epoch: str
    number: int

    def encoded(self) -> bytes:
        """Return the message."""
        return json.dumps(self).encode()


def decoded(data: bytes) -> Announcement:
    """Return what a message says. ValueError for what is none."""
    try:
        name, epoch, number = json.loads(data)
    except (TypeError, ValueError) as error:
        raise ValueError(f"no announcement of a version: {data!r:.80}: {error}") from None
    if not (isinstance(name, str) and isinstance(epoch, str) and type(number) is int and number > 0):
        raise ValueError(f"no announcement of a version: {data!r:.80}")
    return Announcement(name, epoch, number)
