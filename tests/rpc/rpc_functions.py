"""What the tests of RPC call at other workers."""

from __future__ import annotations

import functools
import threading
from typing import Any, NamedTuple

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin._base.clock import SYSTEM
from resilin.futures import Future

LINES = "\nFirst line of error \n next line of error \n last line of error"


class Tensors(NamedTuple):
    tensors: Any


class MyClass:
    def __init__(self, a: Any, delay_s: float = 0.0) -> None:
        self.a = a
        if delay_s:
            SYSTEM.sleep(delay_s)

    def plus(self, b: Any) -> Any:
        return self.a + b

    @classmethod
    def of_class(cls, d: Any, e: Any) -> Any:
        return d + e

    @staticmethod
    def static(f: Any) -> bool:
        return bool(f > 10)

    def increment(self, by: Any) -> None:
        self.a += by

    def get(self) -> Any:
        return self.a

    def slow(self, b: Any) -> Any:
        SYSTEM.sleep(0.3)
        return self.a + b


class SlowPickle:
    """Takes its time to be sent, and to be received."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __getstate__(self) -> tuple[float]:
        SYSTEM.sleep(self.seconds)
        return (self.seconds,)

    def __setstate__(self, state: tuple[float]) -> None:
        self.seconds = state[0]
        SYSTEM.sleep(self.seconds)


class TwoArguments(Exception):
    """Cannot be made of a text alone."""

    def __init__(self, flag: bool, text: str) -> None:
        self.flag = flag
        super().__init__(text)


def add3(a: Any, b: Any, c: Any) -> Any:
    return a + b + c


def identity(a: Any) -> Any:
    return a


def same(function: Any) -> Any:
    """Decorate, and change nothing."""
    return function


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return [function(*args, **kwargs)]

    return inner


@same
def decorated(a: Any) -> Any:
    return a


@wrapped
@same
def decorated_twice(a: Any) -> Any:
    return a


def raises() -> None:
    raise ValueError("Expected error")


def raises_lines() -> None:
    raise ValueError(LINES)


def raises_two_arguments() -> None:
    raise TwoArguments(True, "foo")


def sleeps(seconds: float = 1.0) -> Any:
    SYSTEM.sleep(seconds)
    return torch.tensor(1)


def nothing() -> None:
    return None


def nested(to: str) -> Any:
    return rpc.rpc_sync(to, torch.add, args=(torch.ones(2, 2), 1))


def nested_remote(to: str) -> Any:
    return rpc.remote(to, torch.add, args=(torch.ones(2, 2), 3)).to_here()


def nested_rrefs(to: str) -> Any:
    return rpc.remote(to, torch.add, args=(torch.ones(2), 1)), rpc.remote(to, torch.add, args=(torch.ones(2), 2))


def returns_rref(to: str) -> Any:
    return rpc.remote(to, torch.add, args=(torch.ones(2, 2), 1))


def sum_of(rref_a: Any, rref_b: Any) -> Any:
    return rref_a.to_here() + rref_b.to_here()


def add_to(rref: Any, value: Any) -> Any:
    return rref.to_here() + value


def call_on(method: Any, rref: Any, *args: Any) -> Any:
    return method(rref.local_value(), *args)


def local_rrefs(values: list[int]) -> list[Any]:
    return [rpc.RRef(MyClass(value)) for value in values]


def fetched(rref: Any) -> Any:
    return rref.to_here()


def is_confirmed(rref: Any) -> bool:
    return bool(rref.confirmed_by_owner())


def debug_info() -> dict[str, str]:
    return rpc._rref_context_get_debug_info()


kept: list[Any] = []
flag = threading.Event()
seen: list[Any] = []


def keep(thing: Any) -> None:
    kept.append(thing)


def let_go() -> None:
    kept.clear()


def note(thing: Any) -> None:
    seen.append(thing)


def noted() -> list[Any]:
    return list(seen)


def wait_for_flag() -> bool:
    return flag.wait(20.0)


def set_flag() -> None:
    flag.set()


def forward_chain(to: int, world_size: int, rref: Any, left: int) -> Any:
    if not left:
        return rref.to_here()
    after = (to + 1) % world_size
    return [rpc.remote(f"worker{to}", forward_chain, args=(after, world_size, rref, left - 1))]


def chain_of_calls(to: int, world_size: int, left: int) -> None:
    if left:
        rpc.rpc_async(f"worker{to}", chain_of_calls, args=((to + 1) % world_size, world_size, left - 1))
    else:
        note("end")


def returns_future() -> Any:
    return Future()


def takes_future(future: Any) -> None:
    return None
