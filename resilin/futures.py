"""The names of torch.futures, which communication hooks return: see `resilin.dist` for what runs their callbacks."""

from __future__ import annotations

from resilin.dist.future import Future, collect_all, wait_all

__all__ = ["Future", "collect_all", "wait_all"]
