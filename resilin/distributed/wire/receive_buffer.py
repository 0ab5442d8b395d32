"""Take memory for what a peer announces from the machine as bytes are written to it, not as they are announced."""

from __future__ import annotations

import numpy as np

from resilin.errors import DistNetworkError


def receive_buffer(count: int, rank: int) -> memoryview:
    """`count` bytes for what `rank` announced; DistNetworkError, which names it, where there is no such memory."""
    try:
        return np.empty(count, np.uint8).data  # bytearray would write zeros to all of it
    except (MemoryError, ValueError):
        raise DistNetworkError(f"rank {rank} announced {count} bytes, for which this process has no memory") from None
