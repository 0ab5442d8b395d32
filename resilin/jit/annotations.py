"""torch.jit.annotations: names that annotations of scripted functions are written with. They change nothing."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, Union  # noqa: F401, UP035 - programs import them from here

__all__ = ["BroadcastingList1", "BroadcastingList2", "BroadcastingList3"]


class _BroadcastingList:
    """`BroadcastingList2[int]`: two integers, or one for both."""

    def __getitem__(self, kind: Any) -> Any:
        return list[kind] | kind


BroadcastingList1 = BroadcastingList2 = BroadcastingList3 = _BroadcastingList()
