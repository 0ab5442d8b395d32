"""The few names of PyTorch's compiled module that libraries touch when they are imported. Behind them is nothing."""

from __future__ import annotations

from typing import Any

from resilin.core.public import dispatch


class DispatchKey:
    """Names of PyTorch's kinds of dispatch: `DispatchKey.AutocastCPU`. They choose nothing here."""

    AutocastCPU = "AutocastCPU"
    AutocastCUDA = "AutocastCUDA"
    AutocastXPU = "AutocastXPU"
    CPU = "CPU"
    CUDA = "CUDA"
    Meta = "Meta"
    AutogradCPU = "AutogradCPU"


DisableTorchFunctionSubclass = dispatch.Disable
DisableTorchFunction = dispatch.DisableAll


class DispatchKeySet:
    """A set of such names."""

    def __init__(self, *keys: str) -> None:
        self.keys = frozenset(keys)

    def __or__(self, other: DispatchKeySet) -> DispatchKeySet:
        return DispatchKeySet(*self.keys, *other.keys)

    def has(self, key: str) -> bool:
        """Whether `key` is in it."""
        return key in self.keys


class _ExcludeDispatchKeyGuard:
    """A block in which some kinds of dispatch do not count. There are none here."""

    def __init__(self, keys: DispatchKeySet) -> None:
        self.keys = keys

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def _log_api_usage_once(event: str) -> None:
    """Do nothing: nobody is told what is used."""


def _get_tracing_state() -> None:
    """None: nothing is traced."""


def __getattr__(name: str) -> Any:
    raise AttributeError(f"torch._C has no {name!r}: resilin has nothing of PyTorch's compiled code", name=name)
