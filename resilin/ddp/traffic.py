"""Counts what the collectives of gradients carry."""

from __future__ import annotations

import threading


class Traffic:
    """Bytes and collectives of one rank since construction. Hooks count through `GradBucket.traffic`; any thread.

    payload_bytes:  what this rank handed to collectives: the size of its tensor, or of its message.
    wire_bytes:     what this rank sends for that over a ring of P ranks: 2(P-1)/P of an all-reduce's payload, P-1 times
                    the message of an all-gather. Over shared memory nothing is sent; it is the measure for slow links.
    copied_bytes:   what hooks that compute on the host copied between it and the device of the gradients, in `copies`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.payload_bytes = 0  # guarded by _lock, as the others
        self.wire_bytes = 0
        self.collectives = 0
        self.copied_bytes = 0
        self.copies = 0

    def all_reduce(self, nbytes: int, world_size: int) -> None:
        """Count an all-reduce of `nbytes` over `world_size` ranks."""
        self._count(nbytes, 2 * (world_size - 1) * nbytes // world_size)

    def all_gather(self, nbytes: int, world_size: int) -> None:
        """Count an all-gather to which this rank brings `nbytes`."""
        self._count(nbytes, (world_size - 1) * nbytes)

    def copied(self, nbytes: int) -> None:
        """Count one copy of `nbytes` between the host and a device."""
        with self._lock:
            self.copied_bytes += nbytes
            self.copies += 1

    def _count(self, payload: int, wire: int) -> None:
        with self._lock:
            self.payload_bytes += payload
            self.wire_bytes += wire
            self.collectives += 1

    def stats(self) -> dict[str, int]:
        """The counters."""
        with self._lock:
            return {
                "payload_bytes": self.payload_bytes,
                "wire_bytes": self.wire_bytes,
                "collectives": self.collectives,
                "copied_bytes": self.copied_bytes,
                "copies": self.copies,
            }

    def __repr__(self) -> str:
        return f"<Traffic {self.payload_bytes} bytes in {self.collectives} collectives>"
