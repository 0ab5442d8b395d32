"""Which descriptors a loader could leave behind."""

import contextlib
import os


def descriptors():
    """Open sockets, pipes and batches' memory of this process; not the tensors' arenas, which stay."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            target = os.readlink(f"/proc/self/fd/{number}")
            if target.startswith(("socket:", "pipe:", "/memfd:resilin-batch")):
                found.add((number, target))
    return found
