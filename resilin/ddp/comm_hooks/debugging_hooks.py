"""A hook that communicates nothing."""

from __future__ import annotations

from typing import Any

from resilin.core.tensor import Tensor
from resilin.ddp.comm_hooks.exchange import at_once
from resilin.ddp.grad_bucket import GradBucket
from resilin.distributed.work.future import Future


def noop_hook(_: Any, bucket: GradBucket) -> Future[Tensor]:
    """Leave every rank its own gradients: what a step would cost if communication were free.

    Ranks drift apart; also what model averaging (`resilin.ddp.model_averaging`) needs when only it communicates.
    """
    return at_once(bucket.buffer())
