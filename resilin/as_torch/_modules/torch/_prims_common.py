"""torch._prims_common: what libraries import of it when they describe their compiled operators."""

from __future__ import annotations


def alert_not_deterministic(caller: str) -> None:
    """Do nothing: operators here give the same bits, or say themselves that they do not."""
