"""`python -m benchmarks.ours CASE ...`: run one case on resilin."""

from __future__ import annotations

import sys
from typing import Any

import resilin
import resilin.data
import resilin.dist
from benchmarks.library import Library, main


class _Later:
    """Loads a package when a case asks for it: the other cases must not pay for it."""

    def __init__(self, package: str) -> None:
        self._package = package

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(resilin, self._package), name)


def _ddp(module: Any, **kwargs: Any) -> Any:
    return resilin.ddp.DistributedDataParallel(module, **kwargs)


def _zero(*args: Any, **kwargs: Any) -> Any:
    return resilin.zero.ZeroRedundancyOptimizer(*args, **kwargs)


if __name__ == "__main__":
    main(
        Library(
            name="resilin",
            version=resilin.__version__,
            torch=resilin,
            dist=resilin.dist,
            data=resilin.data,
            backend="cpu",
            ddp=_ddp,
            zero=_zero,
            checkpoint=_Later("checkpoint"),
            elastic=_Later("elastic"),
        ),
        sys.argv[1:],
    )
