"""What no worker can send, run or answer: an error at the caller, in each way of calling; the worker goes on."""

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from rpc_functions import identity
from rpc_workers import Me, on_workers, until

import resilin as torch
import resilin.distributed.rpc as rpc


class NotRead:
    """Can be sent, and not be read."""

    def __reduce__(self) -> Any:
        return not_read, ()


def not_read() -> None:
    raise LookupError("it does not want to be read")


class NotSent:
    """Cannot be sent."""

    def __reduce__(self) -> Any:
        raise LookupError("it does not want to be sent")


class Unspeakable(Exception):
    """Has no words."""

    def __str__(self) -> str:
        raise LookupError("it has no words")


class Bound(Exception):
    """Has attributes that cannot be sent."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()
        self.number = 7


def raises_unspeakable() -> None:
    raise Unspeakable


def raises_bound() -> None:
    raise Bound("it is bound")


def raises_local() -> None:
    class Inner(Exception):
        pass

    raise Inner("of an inner class")


def leaves() -> None:
    sys.exit(3)


def interrupts() -> None:
    raise KeyboardInterrupt("by nobody")


def recurses(depth: int = 0) -> None:
    recurses(depth + 1)


def deep(levels: int = 100_000) -> list[Any]:
    thing: list[Any] = []
    for _ in range(levels):
        thing = [thing]
    return thing


def generates() -> Any:
    yield 1


def made(kind: type) -> Any:
    return kind()


def _sync(*call: Any, **more: Any) -> Any:
    return rpc.rpc_sync(*call, **more)


def _async(*call: Any, **more: Any) -> Any:
    return rpc.rpc_async(*call, **more).wait()


def _remote(*call: Any, **more: Any) -> Any:
    return rpc.remote(*call, **more).to_here()


WAYS: tuple[Callable[..., Any], ...] = (_sync, _async, _remote)
CALLS: tuple[tuple[Any, tuple[Any, ...], str], ...] = (
    (identity, (NotSent(),), "it does not want to be sent"),
    (identity, (NotRead(),), "it does not want to be read"),
    (identity, (threading.Lock,), ""),  # fine: a class goes by its name
    (identity, (generates(),), "generator"),
    (identity, (deep(),), "recursion"),
    (made, (NotSent,), "it does not want to be sent"),
    (made, (NotRead,), "it does not want to be read"),
    (generates, (), "generator"),
    (deep, (), "recursion"),
    (recurses, (), "recursion"),
    (raises_unspeakable, (), "Unspeakable"),
    (raises_bound, (), "it is bound"),
    (raises_local, (), "of an inner class"),
    (leaves, (), "SystemExit"),
    (interrupts, (), "KeyboardInterrupt"),
    (identity, (1, 2, 3), "positional"),
    (min, (), "min expected"),
    (3, (), "callable"),
    (rpc.Future, (), "pickle"),
)


@on_workers(2)
def test_whatever_is_wrong_with_a_call_is_its_callers_error_and_the_worker_goes_on(me: Me) -> None:
    for function, args, said in CALLS:
        for way in WAYS:
            if not said:
                assert way(me.next, function, args=args) is args[0]
                continue
            with pytest.raises(BaseException) as caught:
                way(me.next, function, args=args)
            assert said in repr(caught.value), f"{way.__name__} {function}: {caught.value!r}"
            assert isinstance(caught.value, Exception), f"{way.__name__} {function}: an error of elsewhere ends nobody"
            assert rpc.rpc_sync(me.next, identity, args=("still here",)) == "still here"
    del caught
    gc.collect()  # of tracebacks, which hold what was called with
    me.meet("called")
    until(lambda: rpc._get_debug_info()["agent.num_running_calls"] == "0")
    until(lambda: all(text == "0" for text in rpc._rref_context_get_debug_info().values()))


@on_workers(2)
def test_references_in_calls_that_were_not_made_are_returned(me: Me) -> None:
    own, theirs = rpc.RRef(torch.ones(2)), rpc.remote(me.next, torch.ones, args=(2,))
    theirs.to_here()
    for way in WAYS:
        for to, args in (
            ("nobody", (own, theirs)),
            *((to, ([own, theirs, NotSent()],)) for to in (me.next, me.name(me.rank))),
        ):
            with pytest.raises(Exception, match=r"could not find destination|want to be sent"):
                way(to, identity, args=args)
    del own, theirs, args
    gc.collect()
    me.meet("called")
    until(lambda: all(text == "0" for text in rpc._rref_context_get_debug_info().values()))


@on_workers(2, setup=False)
def test_calls_after_the_end_are_refused_in_each_way_and_through_references(me: Me) -> None:
    me.init()
    rref = rpc.remote(me.next, torch.ones, args=(2,))
    rref.to_here()
    rpc.shutdown()
    calls = [lambda way=way: way(me.next, min, args=(1, 2)) for way in WAYS]
    for call in (*calls, rref.to_here, lambda: rref.rpc_sync().size(), lambda: rref.rpc_async().size()):
        with pytest.raises(RuntimeError, match=r"RPC has not been initialized|has been deleted"):
            call()
