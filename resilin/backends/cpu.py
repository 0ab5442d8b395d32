"""torch.backends.cpu: what libraries ask of the processor before they choose one of their ways."""

from __future__ import annotations

__all__ = ["get_cpu_capability"]


def get_cpu_capability() -> str:
    """Return "DEFAULT", PyTorch's word for a processor that it has no vector kernels for: none of those are here."""
    return "DEFAULT"
