"""Show what a worker's inner parts are at, under PyTorch's names."""

from __future__ import annotations

from resilin.rpc import current


def _rref_context_get_debug_info() -> dict[str, str]:
    """Return counts of references, values and forks."""
    found: dict[str, str] = current.require().rrefs.debug_info()
    return found


def _get_debug_info() -> dict[str, str]:
    """Return counts of references and calls."""
    return {**_rref_context_get_debug_info(), **current.require().get_debug_info()}
