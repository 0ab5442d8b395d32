"""Reading as many bytes as somebody announces: memory is taken as they come, not as they are announced."""

from __future__ import annotations

from typing import BinaryIO

_STEP_BYTES = 1 << 20


def read(file: BinaryIO, count: int) -> bytes:
    """The next `count` bytes of `file`, fewer where it ends."""
    if count <= _STEP_BYTES:
        return file.read(count)
    made = bytearray()
    while len(made) < count:
        part = file.read(min(count - len(made), _STEP_BYTES))
        if not part:
            break
        made += part
    return bytes(made)
