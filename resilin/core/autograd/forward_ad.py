"""Forward mode with dual tensors: `dual_level`, `make_dual`, `unpack_dual`, as in torch.autograd.forward_ad.

A dual tensor is its primal at a place of its own in the graph; its level keeps the tangent. `unpack_dual` finds a
tangent by two backwards from the tensor to the level's duals (see `transforms.py`), so that every op that has a
gradient has a tangent. Inside a level operations are therefore recorded: dual tensors require gradients, and a
no_grad() inside the level hides a tensor from its tangent, unlike in PyTorch.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from resilin.core.autograd import tangents as by_nodes
from resilin.core.autograd.batched_vjp import pull
from resilin.core.autograd.grad_mode import enable_grad, mode
from resilin.core.autograd.transforms import depends_on_more, new_place, zeros_with
from resilin.core.batching.levels import union
from resilin.core.tensor import Tensor


class UnpackedDualTensor(NamedTuple):
    """The two parts of a dual tensor; `tangent` is None for a tensor that does not depend on any."""

    primal: Tensor
    tangent: Tensor | None


class _Level:
    def __init__(self) -> None:
        self.recording = mode.grad  # what it was before
        self.duals: list[tuple[Tensor, Tensor]] = []


class _Levels(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Level] = []


_levels = _Levels()


def is_active() -> bool:
    """Return whether this thread is inside a level of forward mode."""
    return bool(_levels.stack)


def enter_dual_level() -> int:
    """Begin a level of forward mode in this thread; gives its number. RuntimeError inside another: there is one."""
    if _levels.stack:
        raise RuntimeError("Nested forward mode AD is not supported at the moment")
    _levels.stack.append(_Level())
    mode.grad = True
    return len(_levels.stack) - 1


def exit_dual_level(*, level: int | None = None) -> None:
    """End the level: its tensors have no tangents any more. RuntimeError when there is none, or not this one."""
    last = len(_levels.stack) - 1
    if last < 0 or (level is not None and level != last):
        raise RuntimeError(
            "Trying to exit a forward AD level that was not the last one that was created. This is not supported."
        )
    mode.grad = _levels.stack.pop().recording


class dual_level:
    """Inside, tensors can be dual. `with dual_level(): ...`"""

    def __enter__(self) -> int:
        return enter_dual_level()

    def __exit__(self, *exc: object) -> None:
        exit_dual_level()


def _level(number: int | None, action: str) -> _Level:
    if not _levels.stack or (number is not None and not 0 <= number < len(_levels.stack)):
        raise RuntimeError(
            f"Trying to {action} for forward AD but no level exists, make sure to enter_dual_level() first."
        )
    return _levels.stack[-1]


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> Tensor:
    """`tensor` as a dual tensor, whose derivative in the direction wanted is `tangent`, of its shape and dtype.

    RuntimeError outside a level and for another shape or dtype; ValueError for integers.
    """
    here = _level(level, "create a dual Tensor")
    for what, value in (("primal", tensor), ("tangent", tangent)):
        if not (value.is_floating_point() or value.is_complex()):
            raise ValueError(f"Expected {what} to be floating point or complex, but got: {value.dtype}")
    if tensor.shape != tangent.shape or tensor.dtype is not tangent.dtype:
        raise RuntimeError(
            f"make_dual: the tangent must be like the primal, {tensor.dtype} {tuple(tensor.shape)}, got "
            f"{tangent.dtype} {tuple(tangent.shape)}"
        )
    made = new_place(tensor)
    here.duals.append((made, tangent))
    return made


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """(primal, tangent) of a tensor that was computed from dual ones; outside a level the tangent is None."""
    if not _levels.stack:
        return UnpackedDualTensor(tensor, None)
    here = _level(level, "unpack a dual Tensor")
    found = _tangent(tensor, here) if tensor.requires_grad else None
    outer = depends_on_more([tensor], [dual for dual, _ in here.duals])
    return UnpackedDualTensor(tensor if outer else tensor.detach(), found)


def _tangent(tensor: Tensor, level: _Level) -> Tensor | None:
    duals, tangents = [d for d, _ in level.duals], [t for _, t in level.duals]
    if not duals:
        return None
    outer = level.recording and (depends_on_more([tensor], duals) or any(t.requires_grad for t in tangents))
    if by_nodes.needed([tensor]):
        pushed = by_nodes.push([tensor], duals, tangents)[0]
        return pushed if pushed is None or outer else pushed.detach()
    with enable_grad():
        dummy = zeros_with(tensor, union(duals)).requires_grad_()
        first = pull([tensor], duals, [dummy], retain_graph=True, create_graph=True, summed=True)
        pairs = [(g, t) for g, t in zip(first, tangents, strict=True) if g is not None]
        if not pairs:
            return None
        pairs = [(g, t) for g, t in pairs if g.requires_grad]
        if not pairs:
            return dummy.detach()
        gradients, seeds = [g for g, _ in pairs], [t for _, t in pairs]
        found: Any = pull(gradients, [dummy], seeds, retain_graph=True, create_graph=outer)[0]
    return dummy.detach() if found is None else found if outer else found.detach()
