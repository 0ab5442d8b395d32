"""Functions whose result comes later: called at once, with a future, and as references."""

from collections.abc import Callable
from typing import Any

import pytest
from rpc_functions import identity
from rpc_workers import Me, on_workers

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin.errors import UsageTypeError
from resilin.futures import Future


@rpc.functions.async_execution
def add_there(to: str, x: Any, y: Any) -> Any:
    return rpc.rpc_async(to, torch.add, args=(x, y))


@rpc.functions.async_execution
def add_there_chained(to: str, x: Any, y: Any, z: Any) -> Any:
    return rpc.rpc_async(to, torch.add, args=(x, y)).then(lambda done: done.wait() + z)


@rpc.functions.async_execution
def add_there_nested(to: str, x: Any, y: Any, z: Any) -> Any:
    out: Future[Any] = Future()

    def second(done: Future[Any]) -> None:
        rpc.rpc_async(to, torch.add, args=(done.wait(), z)).then(lambda last: out.set_result(last.wait()))

    rpc.rpc_async(to, torch.add, args=(x, y)).then(second)
    return out


@rpc.functions.async_execution
def add_many(to: str, x: Any, count: int, step: Any) -> Any:
    futures = [rpc.rpc_async(to, torch.add, args=(x, n * step)) for n in range(count)]
    return torch.futures.collect_all(futures).then(lambda done: sum(future.wait() for future in done.wait()))


@rpc.functions.async_execution
def raises_there() -> Any:
    raise RuntimeError("Expected error")


@rpc.functions.async_execution
def fails_later() -> Any:
    future: Future[Any] = Future()
    future.set_exception(ValueError("Later error"))
    return future


@rpc.functions.async_execution
def no_future() -> Any:
    return torch.zeros(2)


@rpc.functions.async_execution
def at_once(value: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


waiting: list[Future[Any]] = []


@rpc.functions.async_execution
def batched(value: int, size: int) -> Any:
    """Is answered when `size` callers have come."""
    future: Future[Any] = Future()
    waiting.append(future)
    if len(waiting) == size:
        for each in list(waiting):
            each.set_result(size)
        waiting.clear()
    return future


class Adder:
    @staticmethod
    @rpc.functions.async_execution
    def static_inside(to: str, x: Any) -> Any:
        return rpc.rpc_async(to, torch.add, args=(x, 1))

    @rpc.functions.async_execution
    @staticmethod
    def static_outside(to: str, x: Any) -> Any:
        return rpc.rpc_async(to, torch.add, args=(x, 1))

    @classmethod
    @rpc.functions.async_execution
    def class_inside(cls, to: str, x: Any) -> Any:
        return rpc.rpc_async(to, torch.add, args=(x, 1)).then(lambda done: (cls.__name__, done.wait()))

    @rpc.functions.async_execution
    @classmethod
    def class_outside(cls, to: str, x: Any) -> Any:
        return rpc.rpc_async(to, torch.add, args=(x, 1)).then(lambda done: (cls.__name__, done.wait()))

    @rpc.functions.async_execution
    def bound(self, to: str, x: Any) -> Any:
        return rpc.rpc_async(to, torch.add, args=(x, 1))


WAYS: list[Callable[..., Any]] = [
    lambda to, function, *args: rpc.rpc_sync(to, function, args=args),
    lambda to, function, *args: rpc.rpc_async(to, function, args=args).wait(),
    lambda to, function, *args: rpc.remote(to, function, args=args).to_here(),
]


@on_workers(3)
def test_the_call_ends_with_the_future(me: Me) -> None:
    third, one = me.name(me.rank + 2), torch.ones(2)
    for call in WAYS:
        for to in (me.next, me.name(me.rank)):
            assert torch.equal(call(to, add_there, third, one, 1), one * 2)
            assert torch.equal(call(to, add_there_chained, third, one, 1, 2), one * 4)
            assert torch.equal(call(to, add_there_nested, third, one, 1, 2), one * 4)
            assert torch.equal(call(to, add_many, third, one, 4, 1), one * 10)
            assert call(to, at_once, 5) == 5


@on_workers(2)
def test_static_class_and_bound_methods_in_any_order(me: Me) -> None:
    own, one = me.name(me.rank), torch.ones(1)
    for call in WAYS:
        for function in (Adder.static_inside, Adder.static_outside, Adder().bound):
            assert float(call(me.next, function, own, one)) == 2
        for function in (Adder.class_inside, Adder.class_outside):
            name, value = call(me.next, function, own, one)
            assert name == "Adder"
            assert float(value) == 2


@on_workers(2)
def test_methods_through_proxies(me: Me) -> None:
    own, one = me.name(me.rank), torch.ones(1)
    for rref in (rpc.remote(me.next, Adder), rpc.RRef(Adder())):
        for name in ("bound", "static_inside", "static_outside"):
            assert float(getattr(rref.rpc_sync(), name)(own, one)) == 2
            assert float(getattr(rref.rpc_async(), name)(own, one).wait()) == 2
            assert float(getattr(rref.remote(), name)(own, one).to_here()) == 2
        assert rref.rpc_sync().class_inside(own, one)[0] == rref.rpc_sync().class_outside(own, one)[0] == "Adder"


@on_workers(2)
def test_what_it_raises_now_or_later_is_the_callers(me: Me) -> None:
    for call in WAYS:
        with pytest.raises(RuntimeError, match="Expected error"):
            call(me.next, raises_there)
        with pytest.raises(ValueError, match="Later error"):
            call(me.next, fails_later)
        with pytest.raises(
            RuntimeError,
            match=r"Functions decorated with @rpc\.async_function must return a resilin\.futures\.Future object,",
        ):
            call(me.next, no_future)


@on_workers(2, num_worker_threads=1)
def test_callers_whose_results_come_later_take_no_threads(me: Me) -> None:
    if me.rank == 0:
        futures = [rpc.rpc_async(me.next, batched, args=(n, 20)) for n in range(20)]
        assert [future.wait() for future in futures] == [20] * 20
    me.meet("done")


@on_workers(1)
def test_called_here_it_returns_its_future(me: Me) -> None:
    assert at_once(3).wait() == 3
    assert Adder.class_outside(me.name(0), torch.ones(())).wait()[0] == "Adder"
    assert rpc.functions.async_execution(identity).__name__ == "identity"
    with pytest.raises(UsageTypeError, match="expected a function"):
        rpc.functions.async_execution(3)  # type: ignore[arg-type]
