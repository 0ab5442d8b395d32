"""Load the native module of resilin.rpc. `native` is None without it, and then `why` says why."""

from __future__ import annotations

from typing import Any

native: Any
"""The module `resilin.rpc._native`, or None."""
why: str
"""Why `native` is None; empty when it is loaded."""

try:
    from resilin.rpc import _native as native  # type: ignore[attr-defined,no-redef]

    why = ""
except ImportError as error:  # built without a C++ compiler, or not on Linux: workers of one host meet on sockets
    native = None
    why = f"{error}; install a C++ compiler (Debian: apt install g++) and reinstall resilin"
