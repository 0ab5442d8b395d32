"""What the tests of distributed autograd call at other workers, and how they check gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from rpc_workers import until

import resilin as torch
import resilin.distributed.autograd as dist_autograd
import resilin.distributed.rpc as rpc
from resilin.rpc import current

LOCAL, SYNC, ASYNC, REMOTE = "local", "rpc_sync", "rpc_async", "remote"
WAYS = (SYNC, ASYNC, REMOTE)

kept = torch.ones(3, 3, requires_grad=True)
kept_contexts: dict[int, int] = {}
go_on = threading.Event()


class SimulatedError(torch.autograd.Function):
    """The identity, whose backward fails while `fails`."""

    fails = True

    @staticmethod
    def forward(ctx: Any, value: Any) -> Any:
        return value * 1

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if SimulatedError.fails:
            raise ValueError("Simulate error on backward pass")
        return grad


def run(way: str, to: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call `function` in one of the ways."""
    if way == LOCAL:
        return function(*args)
    if way == SYNC:
        return rpc.rpc_sync(to, function, args=args)
    if way == ASYNC:
        return rpc.rpc_async(to, function, args=args).wait()
    return rpc.remote(to, function, args=args).to_here()


def add(a: Any, b: Any) -> Any:
    return a + b


def multiply(a: Any, b: Any) -> Any:
    return a * b


def failing(a: Any, b: Any) -> Any:
    return (SimulatedError.apply(a + b) * a * b).sum()


def set_failing(value: bool) -> None:
    SimulatedError.fails = value


def kept_tensor() -> Any:
    return kept


def add_kept(value: Any) -> Any:
    return kept * value


def add_to_reference(rref: Any, value: Any) -> Any:
    return rref.local_value() * 2 + value


def add_to_far_reference(owner: str, rref: Any, value: Any) -> Any:
    return rpc.rpc_sync(owner, add_to_reference, args=(rref, value))


def nested(a: Any, b: Any, ways: Sequence[str]) -> Any:
    """Add by workers, each of which calls the next."""
    if not ways:
        return a * b + a
    return rpc.rpc_sync(ways[0], nested, args=(a * 1, b * 1, list(ways[1:])))


def between(a: Any, b: Any, to: str) -> Any:
    """Use values before and after a nested call."""
    c, d = a * b, a + b
    return a * b * c * d * rpc.rpc_sync(to, add, args=(c, d))


def gradient_of_reference(context_id: int, rref: Any) -> Any:
    return dist_autograd.get_gradients(context_id)[rref.local_value()]


def gradient_of_kept(context_id: int) -> Any:
    return dist_autograd.get_gradients(context_id).get(kept)


def has_context(context_id: int) -> bool:
    try:
        dist_autograd._is_valid_context(context_id)
    except RuntimeError:
        return False
    return True


def current_context_id() -> int:
    return dist_autograd._current_context()._context_id()


def contexts_here() -> int:
    return len(current.require().gradients.backwards.contexts)


def none_is_left(workers: Sequence[str]) -> None:
    """Wait until no worker has a context any more."""
    until(lambda: not any(rpc.rpc_sync(name, contexts_here) for name in workers))


def grads(context_id: int, *tensors: Any) -> list[Any]:
    """The gradients of the context by these tensors, as lists; None where there is none."""
    found = dist_autograd.get_gradients(context_id)
    return [found[tensor].tolist() if tensor in found else None for tensor in tensors]


def local_grads(loss: Any, *tensors: Any) -> list[Any]:
    """The gradients of a local backward, as lists."""
    found = torch.autograd.grad(loss, [tensor for tensor in tensors if tensor.requires_grad], allow_unused=True)
    by_id = dict(zip([id(tensor) for tensor in tensors if tensor.requires_grad], found, strict=True))
    return [None if by_id.get(id(tensor)) is None else by_id[id(tensor)].tolist() for tensor in tensors]


def fresh(*shape: int, requires_grad: bool = True) -> Any:
    return torch.rand(shape).requires_grad_(requires_grad)
