"""Load the native module of resilin.distributed. `native` is None without it, and then `why` says why."""

from __future__ import annotations

from types import ModuleType

native: ModuleType | None
why: str

try:
    from resilin.distributed import _native as native  # type: ignore[attr-defined,no-redef]

    why = ""
except ImportError as error:  # built without a C++ compiler: hosts meet on sockets, with numpy's arithmetic
    native = None
    why = str(error)

shared_memory: bool = hasattr(native, "Segment")
"""Whether this process can take part in a shared-memory segment."""
