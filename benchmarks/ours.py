"""`python -m benchmarks.ours CASE ...`: run one case on resilin."""

from __future__ import annotations

import sys
from typing import Any

import resilin
import resilin.data
import resilin.distributed
from benchmarks.library import Later, Library, main


def _ddp(module: Any, **kwargs: Any) -> Any:
    return resilin.ddp.DistributedDataParallel(module, **kwargs)


def _zero(*args: Any, **kwargs: Any) -> Any:
    return resilin.zero.ZeroRedundancyOptimizer(*args, **kwargs)


def _shard(*args: Any, **kwargs: Any) -> Any:
    return resilin.zero.shard(*args, **kwargs)


if __name__ == "__main__":
    main(
        Library(
            name="resilin",
            version=resilin.__version__,
            torch=resilin,
            dist=resilin.distributed,
            data=resilin.data,
            backend="cpu",
            ddp=_ddp,
            comm_hooks=Later("resilin.ddp.comm_hooks"),
            zero=_zero,
            shard=_shard,
            checkpoint=Later("resilin.checkpoint"),
            rpc=Later("resilin.distributed.rpc"),
            pipelining=Later("resilin.pipeline"),
            memory=Later("resilin.core.machine.memory"),
            elastic=Later("resilin.elastic"),
        ),
        sys.argv[1:],
    )
