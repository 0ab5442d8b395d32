"""Moving between devices."""

from __future__ import annotations

from resilin.core.device import CPU, device
from resilin.core.ops.registry import op
from resilin.core.tensor import Tensor


@op(complex=True, moves=True, samples=lambda r: [(r(3, 4), CPU, CPU)])
def transfer(xp, x, source=None, target=None):
    """A copy on another device."""
    return target.backend.from_host(source.backend.to_host(x), target.index or 0)


@transfer.vjp
def _(xp, g, _y, _x, source=None, target=None):
    if isinstance(g, Tensor):
        return move(g, source)
    return source.backend.from_host(target.backend.to_host(g), source.index or 0)


def move(tensor: Tensor, target: device) -> Tensor:
    """A recorded copy of `tensor` on `target`."""
    moved: Tensor = transfer.call(tensor, tensor._dev, target)
    moved._dev = target
    if moved._node is not None:
        moved._node.dev = target  # of the gradient that comes to it, which hooks see
    return moved
