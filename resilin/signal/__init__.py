"""Signals: the names of torch.signal."""

from resilin.signal import windows

__all__ = ["windows"]
