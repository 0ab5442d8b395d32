"""The lock under which names are loaded on first use.

Python locks each module for itself: two threads that begin to load overlapping packages at different modules find one
another's half made. A fork waits for loads under way, so that its child has no half-made module. Modules of resilin
must not load one another by attribute (`from resilin import dist`): whoever loads them by an import statement does not
hold this lock, and would wait for it.
"""

from __future__ import annotations

import os
import threading

lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
