"""The names of torch.futures, which communication hooks return; `resilin.distributed` says what runs callbacks."""

from __future__ import annotations

from resilin.distributed.work.future import Future, collect_all, wait_all

__all__ = ["Future", "collect_all", "wait_all"]
