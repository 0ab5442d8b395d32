"""Makes sure that all ranks shard the same module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import resilin.distributed as dist
from resilin.core.tensor import Tensor
from resilin.distributed.agreement import compare
from resilin.distributed.agreement.refuse import propagate_errors
from resilin.distributed.wire.frames import Kind
from resilin.zero import agreement

_NAME = "zero.shard"


def propagating(process_group: Any, init_sync: Any) -> propagate_errors:
    """Around the checks of this rank's arguments: the others, which would wait in `check`, hear what it refuses.

    With init_sync=False ranks compare nothing, and nobody is told.
    """
    return propagate_errors(
        lambda: agreement.group_of(_NAME, process_group) if init_sync else None, Kind.ALL_GATHER, function=_NAME
    )


def check(named: Sequence[tuple[str, Tensor]], settings: Mapping[str, str], group: dist.ProcessGroup) -> None:
    """Compare names, shapes, dtypes, `requires_grad` and `settings` (arguments, as text) over the ranks.

    Raises CollectiveMismatch on every rank; it names the first tensor that differs, or the settings, and both sides.
    """
    # a rank that compares nothing goes on to something else
    with compare.explain_mismatch(_NAME, "init_sync=True here; was it False on another rank? "):
        compare.compare_parameters(
            _NAME,
            compare.entries_of(named),
            settings,
            group,
            same="all ranks must shard the same module, with parameters registered in the same order",
        )
