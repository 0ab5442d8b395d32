"""Help the optimizers that compute a step in numpy: 16-bit arrays are widened, complex ones refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from resilin.core.kernels.common import Array
from resilin.core.ops.errstate import is_half, put_rounded, widened
from resilin.optim.optimizer import Group


@contextlib.contextmanager
def in_float32(arrays: Sequence[Array]) -> Iterator[Sequence[Array]]:
    """Give `arrays` (a parameter, its gradient, its states) to be written; 16-bit ones as float32, rounded at last."""
    if not any(map(is_half, arrays)):
        yield arrays
        return
    wide = list(map(widened, arrays))
    yield wide
    for place, (array, result) in enumerate(zip(arrays, wide, strict=True)):
        if place != 1 and array is not result:
            put_rounded(array, result)


def refuse_complex(where: str, group: Group) -> None:
    """Raise NotImplementedError for a group with complex parameters."""
    if any(p.is_complex() for p in group["params"]):
        raise NotImplementedError(f"{where}: complex parameters are not supported; real ones are")
