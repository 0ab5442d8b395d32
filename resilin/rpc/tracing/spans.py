"""Calls as spans of a trace, called as in PyTorch's: "rpc_sync#function(caller -> callee)"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from resilin._base import trace
from resilin.distributed.work.future import Future
from resilin.rpc.serialization import function_names
from resilin.rpc.tracing import remote_events
from resilin.rpc.worker_info import WorkerInfo


@contextmanager
def called(how: str, function: Any, caller: WorkerInfo, callee: WorkerInfo, **facts: Any) -> Iterator[None]:
    """Let the block, which makes a call, be its span, and have the callee tell a profile what it does.

    facts: arguments of the span beside its workers.
    """
    recorder = trace.recorder
    if recorder is None:
        yield
        return
    name, args = _name(how, function, caller, callee), {**_args(caller, callee), **facts}
    token = recorder.begin(name, trace.SpanKind.RPC, args=args)
    asked = remote_events.ask(name, recorder, caller.id, callee.id)
    try:
        with remote_events.asking(asked):
            yield
    finally:
        recorder.end(token, None if asked is None else asked.args(args))


def begun(
    how: str,
    function: Any,
    caller: WorkerInfo,
    callee: WorkerInfo,
    make: Callable[[], Future[Any]],
    **facts: Any,
) -> Future[Any]:
    """Return the future that `make` gives; the span lasts from here until that is done."""
    recorder = trace.recorder
    if recorder is None:
        return make()
    name, args = _name(how, function, caller, callee), {**_args(caller, callee), "Is asynchronized op": True, **facts}
    token = recorder.begin(name, trace.SpanKind.RPC, args=args)
    asked = remote_events.ask(name, recorder, caller.id, callee.id)
    try:
        with remote_events.asking(asked):
            future = make()
    except BaseException:
        recorder.end(token)
        raise
    future.when_done(lambda _: recorder.end(token, None if asked is None else asked.args(args)))
    return future


def fetched(caller: WorkerInfo, owner: WorkerInfo) -> AbstractContextManager[None]:
    """Return a block, which brings a value from its owner, as its span."""
    return trace.span(f"to_here#({caller.name})->({owner.name})", trace.SpanKind.RPC, **_args(caller, owner))


def run(
    caller: int, number: int, function: Callable[..., Any], collected: remote_events.Collected | None
) -> Callable[..., Any]:
    """Return a function that runs `function`, called by another worker's call of that number, as a span."""

    def spanned(*args: Any, **kwargs: Any) -> Any:
        facts = {"Src Rank": caller, "Call": number}
        with trace.span(f"rpc_call#{_shown(function)}", trace.SpanKind.RPC, **facts):
            if collected is None:
                return function(*args, **kwargs)
            with collected.here():
                return function(*args, **kwargs)

    return spanned


def _name(how: str, function: Any, caller: WorkerInfo, callee: WorkerInfo) -> str:
    return f"{how}#{_shown(function)}({caller.name} -> {callee.name})"


def _args(caller: WorkerInfo, callee: WorkerInfo) -> dict[str, Any]:
    return {"Src Rank": caller.id, "Dst Rank": callee.id, "node_id": caller.id}


def _shown(function: Any) -> str:
    """A function's qualified name, without its module; as in PyTorch's names."""
    found = getattr(function, "__qualname__", None)
    return found if isinstance(found, str) else function_names.shown(function).decode()
