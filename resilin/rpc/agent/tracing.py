"""Calls as spans of a trace, called as in PyTorch's: "rpc_sync#function(caller -> callee)"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resilin._base import trace
from resilin.distributed.work.future import Future
from resilin.rpc.serialization import function_names
from resilin.rpc.worker_info import WorkerInfo


def called(how: str, function: Any, caller: WorkerInfo, callee: WorkerInfo) -> trace.span:
    """Return the span of a call for which its caller waits."""
    return trace.span(_name(how, function, caller, callee), trace.SpanKind.RPC, **_args(caller, callee))


def begun(
    how: str, function: Any, caller: WorkerInfo, callee: WorkerInfo, make: Callable[[], Future[Any]]
) -> Future[Any]:
    """Return the future that `make` gives; the span lasts from here until that is done."""
    recorder = trace.recorder
    if recorder is None:
        return make()
    args = {**_args(caller, callee), "Is asynchronized op": True}
    token = recorder.begin(_name(how, function, caller, callee), trace.SpanKind.RPC, args=args)
    try:
        future = make()
    except BaseException:
        recorder.end(token)
        raise
    future.when_done(lambda _: recorder.end(token))
    return future


def run(caller: int, number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs `function`, called by another worker's call of that number, as a span."""

    def spanned(*args: Any, **kwargs: Any) -> Any:
        facts = {"Src Rank": caller, "Call": number}
        with trace.span(f"rpc_call#{_shown(function)}", trace.SpanKind.RPC, **facts):
            return function(*args, **kwargs)

    return spanned


def _name(how: str, function: Any, caller: WorkerInfo, callee: WorkerInfo) -> str:
    return f"{how}#{_shown(function)}({caller.name} -> {callee.name})"


def _args(caller: WorkerInfo, callee: WorkerInfo) -> dict[str, Any]:
    return {"Src Rank": caller.id, "Dst Rank": callee.id}


def _shown(function: Any) -> str:
    """A function's qualified name, without its module; as in PyTorch's names."""
    found = getattr(function, "__qualname__", None)
    return found if isinstance(found, str) else function_names.shown(function).decode()
