"""Hooks that compute with numpy, for gradients that lie on a device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from resilin.core.device import CPU
from resilin.core.tensor import Tensor
from resilin.ddp.grad_bucket import GradBucket
from resilin.distributed.work.future import Future


def on_host(hook: Callable[..., Future[Tensor]]) -> Callable[..., Future[Tensor]]:
    """Marks a hook that computes, and sends, in the host's memory. Of a bucket on a device it is given a copy there,
    and what it returns is copied into the bucket: one copy each way, counted in the bucket's traffic."""

    @functools.wraps(hook)
    def wrapped(state: Any, bucket: GradBucket, *args: Any, **kwargs: Any) -> Future[Tensor]:
        return hook(state, bucket if bucket.buffer()._dev is CPU else bucket.on_host(), *args, **kwargs)

    return wrapped
