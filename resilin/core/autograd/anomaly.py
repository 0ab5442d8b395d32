"""Anomaly mode: every node remembers where it was made, and a NaN gradient is an error that says so."""

from __future__ import annotations

from resilin.core.autograd.grad_mode import checked_flag, mode


class set_detect_anomaly:
    """Switch anomaly mode of this thread on or off at once; as a context manager, until its end."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = _switch(mode, check_nan)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        _switch(*self._before)


class detect_anomaly:
    """Inside, a backward that fails or gives NaN (unless `check_nan` is False) shows where the forward
    operation was called. Slow: for debugging."""

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = check_nan
        self._before = (False, True)

    def __enter__(self) -> None:
        self._before = _switch(True, self._check_nan)

    def __exit__(self, *exc: object) -> None:
        _switch(*self._before)


def is_anomaly_enabled() -> bool:
    """Whether anomaly mode is on in this thread."""
    return mode.anomaly


def is_anomaly_check_nan_enabled() -> bool:
    """Whether anomaly mode, where it is on, looks for NaN."""
    return mode.check_nan


def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
    """Switch anomaly mode of this thread on or off."""
    _switch(mode, check_nan)


def _switch(anomaly: bool, check_nan: bool) -> tuple[bool, bool]:
    before = mode.anomaly, mode.check_nan
    mode.anomaly = checked_flag("set_anomaly_enabled", "mode", anomaly)
    mode.check_nan = checked_flag("set_anomaly_enabled", "check_nan", check_nan)
    return before
