"""Backends: what stands behind a device. docs/backends.md shows how to write one."""

from resilin.core.backends.base import ArrayBackend
from resilin.core.backends.numpy import NumpyBackend, make_xp

__all__ = ["ArrayBackend", "NumpyBackend", "make_xp"]
