"""Let a process end with its parent, by the kernel's hand. Linux."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have this process get signal `number` when its parent ends; end at once if `parent` is its parent no more.

    The kernel means the thread that forked: only a main thread lives as long as its process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
