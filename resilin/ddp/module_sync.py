"""Makes sure that all ranks wrap the same module: shapes, settings and arithmetic are compared when it is wrapped."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import resilin.distributed as dist
from resilin._base.text import visible
from resilin.core.machine import numeric_fingerprint
from resilin.core.tensor import Tensor
from resilin.ddp import arguments
from resilin.distributed.agreement import compare
from resilin.distributed.agreement.refuse import propagate_errors
from resilin.distributed.wire.frames import Kind

_NAME = "DistributedDataParallel"


def propagating(process_group: Any, init_sync: Any) -> propagate_errors:
    """Around the checks of this rank's arguments: others, which would wait in `check_equal`, hear what it refuses.

    With init_sync=False ranks compare nothing, and nobody is told.
    """
    return propagate_errors(
        lambda: arguments.group_of(process_group) if init_sync else None, Kind.ALL_GATHER, function=_NAME
    )


def check_equal(
    named: Sequence[tuple[str, Tensor]], settings: Mapping[str, str], group: dist.ProcessGroup, given: Any
) -> list[Any]:
    """Compare names, shapes, dtypes and `requires_grad` of all tensors, and `settings`, over the ranks; what each rank
    has `given`.

    Raises CollectiveMismatch on every rank; it names the first tensor or setting that differs, and both sides. Ranks
    whose arithmetic differs (native code on some only, other instruction sets) are allowed, with a warning on rank 0.
    """
    # a rank that compares nothing goes on to something else
    with compare.explain_mismatch(_NAME, "init_sync=True here; was it False on another rank? "):
        everybody = compare.compare_parameters(
            _NAME,
            compare.entries_of(named),
            settings,
            group,
            same="all ranks must wrap the same model, with parameters registered in the same order",
            given=(numeric_fingerprint.describe(), given),
        )
    if group.rank() == 0:
        _warn_of_mixed_arithmetic([theirs for theirs, _ in everybody])
    return [theirs for _, theirs in everybody]


def _warn_of_mixed_arithmetic(everybody: Sequence[str]) -> None:
    other = next((rank for rank, theirs in enumerate(everybody) if theirs != everybody[0]), None)
    if other is not None:
        warnings.warn(
            f"DistributedDataParallel: rank 0 computes with {everybody[0]}; rank {other} with "
            f"{visible(everybody[other])}. Each "
            "rank applies the optimizer itself, so parameters drift apart by rounding errors, and fixed shards do not "
            "give the same bits in every world. Install the same build everywhere (`resilin doctor` shows what runs), "
            "or set RESILIN_NATIVE=0 and one OPENBLAS_CORETYPE on all hosts",
            stacklevel=4,
        )
