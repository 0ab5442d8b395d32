"""Backends: what stands behind a device. docs/backends.md shows how to write one."""

from resilin.core.backends.base import Backend
from resilin.core.backends.numpy import NumpyBackend, make_xp

__all__ = ["Backend", "NumpyBackend", "make_xp"]
